"""Batches that a job's driver plans: all of them once, also after a crash."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.spark.jobs.own_batches import OwnBatches, between
from skylarkmq.spark.jobs.running import end_of, run_own_batches
from skylarkmq.spark.offsets import OffsetRange, QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.planning import StreamPlanner
from tests.spark.support.fake_brokers import FakeBrokers
from tests.spark.support.stream_place import A0, A1


class Killed(BaseException):
    """The job's process ends here."""


class Job:
    """A job that keeps what it has taken and where that ends, and dies where it is told to."""

    def __init__(self, **options: object) -> None:
        self.brokers = FakeBrokers([A0, A1])
        given = {"nameServer": "n:1", "topic": "T", "startingOffsets": "earliest",
                 "offsetCacheMs": 0, **options}  # fmt: skip
        self.options = {name: str(value) for name, value in given.items()}
        self.taken: list[list[object]] = []

    def batches(self) -> OwnBatches:
        source = SourceOptions.from_options(self.options, streaming=True)
        planner = StreamPlanner(self.brokers, source)  # type: ignore[arg-type]
        return OwnBatches(planner, source, self.read)

    def read(self, ranges: list[OffsetRange]) -> list[object]:
        found: list[object] = []
        for each in ranges:
            found += self.brokers.read(each.start, each.end, each.key) or ["missing"]
        return found

    def take(self, messages: list[object], end: QueueOffsets) -> None:
        self.taken.append(messages)
        self.options["startingOffsets"] = json.dumps(end.nested())

    def run(
        self, take: Callable[[list[object], QueueOffsets], None] | None = None
    ) -> list[int | None]:
        seen: list[int | None] = []
        clock = self.brokers.clock
        run_own_batches(self.batches(), take or self.take, None, seen.append, clock)
        return seen

    @property
    def messages(self) -> list[object]:
        return sorted((each for found in self.taken for each in found), key=str)


def test_all_that_is_there_in_batches() -> None:
    job = Job(maxOffsetsPerTrigger=4)
    job.brokers.send(A0, *range(9))
    assert job.run() == [5, 1, 0]
    assert (len(job.taken), job.messages) == (3, list(range(9)))
    job.brokers.send(A1, 9)
    job.run()
    assert (len(job.taken), job.messages) == (4, list(range(10)))
    job.run()
    assert len(job.taken) == 4, "a run without news takes nothing"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_goes_on_where_a_killed_one_had_come_to(when: str) -> None:
    job = Job()
    job.brokers.send(A0, *range(3))

    def die(messages: list[object], end: QueueOffsets) -> None:
        if when == "after":
            job.take(messages, end)
        raise Killed

    with pytest.raises(Killed):
        job.run(die)
    job.brokers.send(A0, 3, 4)
    job.run()
    assert job.messages == [0, 1, 2, 3, 4]


def test_a_signal_ends_it_after_a_batch() -> None:
    job = Job(maxOffsetsPerTrigger=4)
    job.brokers.send(A0, *range(9))

    def take(messages: list[object], end: QueueOffsets) -> None:
        job.take(messages, end)
        os.kill(os.getpid(), signal.SIGINT)

    job.run(take)
    assert len(job.taken) == 1
    job.run()
    assert job.messages == list(range(9))


def test_it_follows_at_a_pace() -> None:
    job = Job()
    clock = job.brokers.clock
    began_s = clock.monotonic()

    def take(messages: list[object], end: QueueOffsets) -> None:
        job.take(messages, end)
        if len(job.taken) == 4:
            raise Killed
        job.brokers.send(A0, clock.monotonic() - began_s)

    job.brokers.send(A0, 0.0)
    with pytest.raises(Killed):
        run_own_batches(job.batches(), take, 10_000, None, clock)
    assert job.messages == [0.0, 0.0, 10.0, 20.0]


def test_where_a_batch_ends_is_in_spark_s_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    text = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"v":1,"o":{"T":{"a":{"0":17}}}}'
    (tmp_path / "offsets/3").write_text(text)
    assert end_of(tmp_path, 3) == {A0: 17}


def test_the_options_of_a_batch_name_each_queue_once() -> None:
    ranges = [OffsetRange(*A0, 3, 5), OffsetRange(*A0, 5, 9), OffsetRange(*A1, 0, 1)]
    options = between(ranges)
    assert json.loads(options["assign"]) == {"T": {"a": [0, 1]}}
    given = SourceOptions.from_options({"nameServer": "n:1", **options}, streaming=False)
    assert dict(given.starting.by_queue) == QueueOffsets({A0: 3, A1: 0})
    assert dict(given.ending.by_queue) == QueueOffsets({A0: 9, A1: 1})
