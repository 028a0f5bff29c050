"""A cluster in memory, for the decisions of the source: queues that grow, expire and come anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from skylarkmq.client.errors import ConnectionFailed, RocketMQError, RouteNotFound
from skylarkmq.client.wire.api_consumer import KeyAnswer
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.spark.offsets import QueueKey

T = TypeVar("T")


@dataclass
class FakeQueue:
    """Messages by queue offset; those before `first` have expired."""

    first: int = 0
    messages: list[object] = field(default_factory=list[object])
    """From offset 0 on; index = queue offset."""
    routed: bool = True
    stored_ms: int = 0
    """When its first message was stored; each of the others a millisecond later."""

    def stored_at(self, offset: int) -> int:
        return self.stored_ms + offset

    def fingerprint(self, offset: int) -> Fingerprint | None:
        """Of a message; None: it is not there."""
        if not self.first <= offset < self.end:
            return None
        return Fingerprint(offset * 100, self.stored_at(offset), 7)

    @property
    def end(self) -> int:
        return len(self.messages)


class FakeClock:
    """Time that passes when it is told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


class FakeBrokers:
    """The part of `BlockingClient` that planners use; counts the questions."""

    def __init__(self, queues: Iterable[tuple[str, str, int]] = ()) -> None:
        self.clock = FakeClock()
        self.queues = {QueueKey(*key): FakeQueue() for key in queues}
        self.down: set[str] = set()
        self.name_server_down = False
        self.refusal: RocketMQError | None = None
        self.filter_refusal: RocketMQError | None = None
        self.untold: RocketMQError | None = None
        """Why nobody may look at a message."""
        self.looked_as: set[str] = set()
        """Groups in whose names messages were looked at."""
        self.committed: dict[tuple[str, QueueKey], int] = {}
        self.times: dict[QueueKey, list[int]] = {}
        self.keys: dict[tuple[str, str], KeyAnswer] = {}
        """What the index of a broker has: by the broker's name and the key."""
        self.asked: list[str] = []

    def send(self, key: tuple[str, str, int], *messages: object) -> None:
        self.queues[QueueKey(*key)].messages += messages

    def topics(self) -> list[str]:
        self._name_server("topics")
        return sorted({key.topic for key, queue in self.queues.items() if queue.routed})

    def read_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[QueueKey]:
        self._name_server("route")
        mine = {key: queue for key, queue in self.queues.items() if key.topic == topic}
        if not mine:
            raise RouteNotFound(topic, "topic_missing", "")
        return sorted(key for key, queue in mine.items() if queue.routed)

    def min_offsets(
        self,
        queues: Iterable[QueueKey],
        failed: dict[QueueKey, RocketMQError] | None = None,
        *,
        master_only: bool = False,
    ) -> dict[QueueKey, int]:
        return self._each("min", queues, failed, {k: q.first for k, q in self.queues.items()})

    def max_offsets(
        self,
        queues: Iterable[QueueKey],
        failed: dict[QueueKey, RocketMQError] | None = None,
        *,
        master_only: bool = False,
    ) -> dict[QueueKey, int]:
        return self._each("max", queues, failed, {k: q.end for k, q in self.queues.items()})

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        self.asked.append("time")
        known = self.queues[queue]
        times = self.times.get(queue) or [known.stored_at(n) for n in range(known.end)]
        later = [offset for offset, time_ms in enumerate(times) if time_ms >= timestamp_ms]
        return later[0] if later else self.queues[queue].end

    def fingerprints(
        self,
        places: Mapping[QueueKey, int],
        failed: dict[QueueKey, RocketMQError] | None = None,
        *,
        group: str,
    ) -> dict[QueueKey, Fingerprint]:
        self.looked_as.add(group)
        there = {
            key: (queue.fingerprint(places[key]) if key in places else None)
            for key, queue in self.queues.items()
        }
        if self.untold is not None:
            assert failed is not None
            failed |= dict.fromkeys(places, self.untold)
            return {}
        answers = self._each("looks", places, failed, there)
        return {key: each for key, each in answers.items() if each is not None}

    def committed_offsets(
        self,
        group: str,
        queues: Iterable[QueueKey],
        failed: dict[QueueKey, RocketMQError] | None = None,
    ) -> dict[QueueKey, int | None]:
        self.asked.append("committed")
        return {key: self.committed.get((group, key)) for key in queues}

    def places_of(self, queue: QueueKey, key: str) -> KeyAnswer:
        self.asked.append(f"key {queue.broker_name} {key}")
        if queue.broker_name in self.down:
            raise ConnectionFailed(queue.broker_name, "refused")
        return self.keys.get((queue.broker_name, key), KeyAnswer([], True))

    def check_filter(self, queue: QueueKey, subscription: object, *, group: str) -> None:
        self.asked.append(f"filter {queue.broker_name}")
        if self.filter_refusal is not None:
            raise self.filter_refusal

    def read(self, start: int, end: int, key: QueueKey) -> list[object] | None:
        """Messages of a range; None when one of them is not there."""
        queue = self.queues[key]
        if start < queue.first or end > queue.end:
            return None
        return queue.messages[start:end]

    def _each(
        self,
        what: str,
        queues: Iterable[QueueKey],
        failed: dict[QueueKey, RocketMQError] | None,
        answers: dict[QueueKey, T],
    ) -> dict[QueueKey, T]:
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal
        found: dict[QueueKey, T] = {}
        for key in queues:
            if key.broker_name in self.down or key not in answers:
                error = ConnectionFailed(key.broker_name, "refused")
                if failed is None:
                    raise error
                failed[key] = error
            else:
                found[key] = answers[key]
        return found

    def _name_server(self, what: str) -> None:
        self.asked.append(what)
        if self.name_server_down:
            raise ConnectionFailed("name server", "refused")
