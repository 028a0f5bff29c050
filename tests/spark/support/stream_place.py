"""A cluster in memory and a stream that is planned on it."""

from __future__ import annotations

from collections.abc import Mapping

from skylarkmq.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.planning import Limit, StreamPlanner
from tests.spark.support.fake_brokers import FakeBrokers

A0, A1, A2 = (QueueKey("T", "a", number) for number in range(3))
B0 = QueueKey("T", "b", 0)


def limit_of(options: SourceOptions) -> Limit:
    """What the options allow a batch to hold."""
    return Limit(options.max_offsets_per_trigger, options.min_offsets_per_trigger)


class FakeWriteBack:
    def __init__(self) -> None:
        self.put_: list[dict[QueueKey, int]] = []
        self.closed = 0

    def put(self, offsets: Mapping[QueueKey, int]) -> None:
        self.put_.append(dict(offsets))

    def close(self, timeout_s: float = 3.0) -> None:
        self.closed += 1


class Place:
    """A cluster, and a query on it."""

    def __init__(self, *queues: QueueKey, **options: object) -> None:
        self.brokers = FakeBrokers(queues)
        self.clock = self.brokers.clock
        self.write_back = FakeWriteBack()
        self.given = {
            "nameServer": "n:1",
            "topic": "T",
            "startingOffsets": "earliest",
            "retryTimeoutMs": "10s",
            "offsetCacheMs": "0",
            **{name: str(value) for name, value in options.items()},
        }
        self.restart()

    def restart(self) -> None:
        options = SourceOptions.from_options(self.given, streaming=True)
        self.limit = limit_of(options)
        self.planner = StreamPlanner(self.brokers, options, self.write_back)

    def begin(self) -> QueueOffsets:
        """Where a new query starts, be it in a batch without messages."""
        start = self.planner.initial()
        if start:
            return start
        end = self.planner.latest(start, self.limit)
        assert self.planner.plan(start, end) == []
        return end

    def latest(self, start: Mapping[QueueKey, int], limit: Limit | None = None) -> QueueOffsets:
        return self.planner.latest(QueueOffsets(start), self.limit if limit is None else limit)

    def reported(self) -> QueueOffsets:
        """The ends in what the query's progress shows."""
        report = self.planner.report()
        assert report is not None
        return QueueOffsets.from_json({name: report[name] for name in ("v", "o")})

    def plan(self, start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> list[OffsetRange]:
        return self.planner.plan(QueueOffsets(start), QueueOffsets(end))
