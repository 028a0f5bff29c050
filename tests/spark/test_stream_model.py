"""A stream on a cluster that grows, expires, comes anew and goes away, under an engine that dies.

The engine does what Spark does: it writes a batch's end down before it reads the batch, reads what
was planned, and on a restart plans the unfinished batch again. A sink keeps one result a batch, so
what is wrong in it is the source's doing: a message twice, one left out, or none of both and no
error.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.planning import NO_LIMIT, StreamPlanner
from tests.spark.support.fake_brokers import FakeBrokers, FakeQueue
from tests.spark.support.stream_place import limit_of
from tests.support.amounts import examples

QUEUES = [QueueKey("T", "a", 0), QueueKey("T", "b", 0), QueueKey("T", "a", 1)]
POSITIONS = ["earliest", "latest"]
ACTIONS = [
    *["send"] * 5,
    *["batch"] * 5,
    "expire",
    *["anew"] * 2,
    *["crash"] * 2,
    "grow",
    "shrink",
    "down",
    "up",
    "die",
    "die in a batch",
    "run to a target",
]


class NumberedQueue(FakeQueue):
    """Its messages are stored in the order of their numbers."""

    def stored_at(self, offset: int) -> int:
        _, number, _ = self.messages[offset]  # type: ignore[misc]
        return int(number)


class World:
    """Cluster, engine and sink."""

    def __init__(self, lenient: bool, maximum: int | None, position: str) -> None:
        self.lenient = lenient
        self.brokers = FakeBrokers()
        self.brokers.queues = {key: NumberedQueue() for key in QUEUES[:2]}
        self.clock = self.brokers.clock
        given = {"nameServer": "n:1", "topic": "T", "startingOffsets": position}
        given |= {"failOnDataLoss": str(not lenient), "retryTimeoutMs": "0"}
        given |= {"maxRecordsPerPartition": "3", "offsetCacheMs": "0", "metadataRefreshMs": "100"}
        if maximum is not None:
            given["maxOffsetsPerTrigger"] = str(maximum)
        self.options = SourceOptions.from_options(given, streaming=True)
        self.numbers = count()
        # The engine's checkpoint, as texts.
        self.log: list[str] = []
        self.done_count = 0  # of batches
        self.sink: dict[int, list[Any]] = {}
        # Queues whose offsets went back, until the engine has seen it.
        self.unseen: set[QueueKey] = set()
        self.may_repeat: set[Any] = set()
        self.may_miss: set[Any] = set()
        self.restart()
        self.log.append(json.dumps(self.planner.initial().to_json()))
        if position == "latest":  # its first batch says that it begins before all messages
            self.log.append(json.dumps(self.planner.latest(QueueOffsets(), NO_LIMIT).to_json()))

    # What happens

    def send(self, key: QueueKey, size: int) -> None:
        queue = self.brokers.queues[key]
        if key in self.unseen and not self.knows(key):
            # More would hide from everybody that offsets went back.
            size = min(size, self.position(key) - 1 - queue.end)
        for number in range(max(0, size)):
            message = (key, next(self.numbers), number)
            if key in self.unseen:
                if not self.knows(key) and queue.first > 0:
                    self.may_miss.add(message)
                # With failOnDataLoss=false a batch that is read again after a crash has some of
                # them, and where it ends is no place of this life.
                self.may_repeat.add(message)
            queue.messages.append(message)

    def expire(self, key: QueueKey, size: int) -> None:
        queue = self.brokers.queues[key]
        queue.first = min(queue.end, queue.first + size)
        if key in self.unseen:
            self.may_miss.update(queue.messages[queue.first :])

    def go_back(self, key: QueueKey, size: int, *, anew: bool) -> None:
        """Lose all messages, or the last ones; only when the engine can notice it."""
        queue = self.brokers.queues[key]
        end = 0 if anew else max(queue.first, queue.end - size)
        if end >= self.position(key) or key in self.unseen:
            return
        self.may_miss.update(queue.messages[end:])
        if anew:
            self.brokers.queues[key] = NumberedQueue(routed=queue.routed)
        else:
            del queue.messages[end:]
            self.may_repeat.update(queue.messages if queue.first == 0 else ())
        self.unseen.add(key)

    def position(self, key: QueueKey) -> int:
        return min(QueueOffsets.from_json(text).get(key, 0) for text in self.log[-2:])

    def knows(self, key: QueueKey) -> bool:
        """Whether the checkpoint says which message it has read last."""
        offsets = [QueueOffsets.from_json(text) for text in self.log[-2:]]
        return all(key in each.before or not each.get(key) for each in offsets)

    # The engine

    def restart(self) -> None:
        self.planner = StreamPlanner(self.brokers, self.options)
        if len(self.log) - 1 > self.done_count:
            self.run_batch()

    def step(self, *, die: bool = False) -> bool:
        """Do one trigger; whether there was anything to do."""
        self.clock.now_s += 31
        if len(self.log) - 1 > self.done_count:  # the last try failed: Spark starts anew
            self.restart()
        start = QueueOffsets.from_json(self.log[-1])
        end = self.planner.latest(start, limit_of(self.options))
        if not self.brokers.down:
            self.unseen.clear()
        text = json.dumps(end.to_json())
        if text == self.log[-1]:
            return False
        self.log.append(text)
        if die:
            self.planner.plan(start, end)
            self.restart()
        else:
            self.run_batch()
        return True

    def run_batch(self) -> None:
        start, end = (QueueOffsets.from_json(text) for text in self.log[-2:])
        rows = [row for each in self.planner.plan(start, end) for row in self.read(each)]
        self.done_count = len(self.log) - 1
        self.sink[self.done_count] = rows
        self.planner.commit(end)

    def read(self, wanted: OffsetRange) -> list[Any]:
        """A task: all of its range, or what is left of it with failOnDataLoss=false."""
        if wanted.broker_name in self.brokers.down:
            raise RocketMQError("away")
        queue = self.brokers.queues[wanted.key]
        start, end = max(wanted.start, queue.first), min(wanted.end, queue.end)
        if not self.lenient and (start, end) != (wanted.start, wanted.end):
            raise DataLost(wanted.key, wanted.start, start, 1)
        return queue.messages[start:end]

    def run_to_target(self) -> None:
        target = {key: queue.end for key, queue in self.brokers.queues.items()}
        self.planner.freeze()
        for _ in range(1000):
            if not self.step():
                break
        else:
            raise AssertionError("it never ends")
        reached = QueueOffsets.from_json(self.log[-1])
        self.planner = StreamPlanner(self.brokers, self.options)
        known = {key for key in target if self.brokers.queues[key].routed or key in reached}
        assert all(reached.get(key, 0) == target[key] for key in known)


def do(world: World, action: str, key: QueueKey, size: int) -> None:
    known = key in world.brokers.queues
    match action:
        case "send" if known:
            world.send(key, size)
        case "expire" if known:
            world.expire(key, size)
        case "anew" | "crash" if known:
            world.go_back(key, 1 + size // 3, anew=action == "anew")
            world.send(key, size // 2)
        case "grow":
            world.brokers.queues.setdefault(key, NumberedQueue()).routed = True
        case "shrink" if key in QueueOffsets.from_json(world.log[-1]) and key != QUEUES[0]:
            world.brokers.queues[key].routed = False
        case "down":
            world.brokers.down.add(key.broker_name)
        case "up":
            world.brokers.down.clear()
            world.clock.now_s += 60
        case "die":
            world.restart()
        case "run to a target":
            world.brokers.down.clear()
            world.clock.now_s += 60
            world.run_to_target()
        case "batch" | "die in a batch":
            world.step(die=action == "die in a batch")
        case _:
            pass


def delivered(world: World) -> list[Any]:
    return [row for number in sorted(world.sink) for row in world.sink[number]]


def check_order(world: World, rows: list[Any]) -> None:
    """Messages of one queue come in the order in which they were sent."""
    last: dict[QueueKey, int] = {}
    for key, number, _ in rows:
        if number not in (row[1] for row in world.may_repeat):
            assert last.get(key, -1) < number
            last[key] = number


SCRIPTS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(QUEUES), st.integers(0, 12)),
    min_size=6,
    max_size=40,
)


@examples(50, 400)
@given(SCRIPTS, st.booleans(), st.none() | st.integers(1, 20), st.sampled_from(POSITIONS))
@example(
    [("grow", QUEUES[2], 0), ("send", QUEUES[2], 1), ("expire", QUEUES[2], 1)],
    False,
    None,
    "earliest",
)
def test_every_message_once_or_an_error(
    script: list[tuple[str, QueueKey, int]], lenient: bool, maximum: int | None, position: str
) -> None:
    world = World(lenient, maximum, position)
    unlucky = 0
    for action, key, size in script:
        try:
            do(world, action, key, size)
        except DataLost:
            assert not lenient
            return
        except RocketMQError:
            unlucky += 1  # a broker is away; Spark starts the query again
    world.brokers.down.clear()
    world.clock.now_s += 60
    try:
        world.restart()
        while world.step():
            pass
    except DataLost:
        assert not lenient
        return
    rows = delivered(world)
    often = Counter(rows)
    assert {row for row, times in often.items() if times > 1} <= world.may_repeat
    check_order(world, rows)
    there = {
        message
        for queue in world.brokers.queues.values()
        for message in queue.messages[queue.first :]
    }
    assert there - often.keys() <= world.may_miss
    if not lenient:
        # Nothing was lost without an error: all that was ever sent is there.
        sent = {m for queue in world.brokers.queues.values() for m in queue.messages}
        assert sent <= often.keys()
        assert not world.may_repeat & often.keys() or max(often.values(), default=1) == 1
