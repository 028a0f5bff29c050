"""Batches that a job's driver plans: the same again after a crash, and all of them once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.jobs.own_batches import Book, OwnBatches, between
from skylarkmq.spark.jobs.running import run_own_batches
from skylarkmq.spark.offsets import OffsetRange, QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.planning import StreamPlanner
from tests.spark.support.fake_brokers import FakeBrokers
from tests.spark.support.stream_place import A0, A1


class Killed(BaseException):
    """The job's process ends here."""


class Job:
    """A job that keeps what it has taken, by batch, and dies where it is told to."""

    def __init__(self, checkpoint: Path, **options: object) -> None:
        self.brokers = FakeBrokers([A0, A1])
        self.checkpoint = checkpoint
        given = {"nameServer": "n:1", "topic": "T", "startingOffsets": "earliest",
                 "offsetCacheMs": 0, **options}  # fmt: skip
        texts = {name: str(value) for name, value in given.items()}
        self.options = SourceOptions.from_options(texts, streaming=True)
        self.taken: dict[int, list[object]] = {}
        self.numbers: list[int] = []

    def batches(self) -> OwnBatches:
        planner = StreamPlanner(self.brokers, self.options)  # type: ignore[arg-type]
        return OwnBatches(planner, self.options, Book(f"file://{self.checkpoint}"), self.read)

    def read(self, ranges: list[OffsetRange]) -> list[object]:
        found: list[object] = []
        for each in ranges:
            found += self.brokers.read(each.start, each.end, each.key) or ["missing"]
        return found

    def take(self, messages: list[object], number: int) -> None:
        self.numbers.append(number)
        self.taken[number] = messages

    def run(self, take: Callable[[list[object], int], None] | None = None) -> list[int | None]:
        seen: list[int | None] = []
        clock = self.brokers.clock
        run_own_batches(self.batches(), take or self.take, None, seen.append, clock)
        return seen

    @property
    def messages(self) -> list[object]:
        return sorted((each for found in self.taken.values() for each in found), key=str)


def test_all_that_is_there_in_batches(tmp_path: Path) -> None:
    job = Job(tmp_path, maxOffsetsPerTrigger=4)
    job.brokers.send(A0, *range(9))
    assert job.run() == [5, 1, 0]
    assert (job.numbers, job.messages) == ([0, 1, 2], list(range(9)))
    job.brokers.send(A1, 9)
    job.run()
    assert (job.numbers, job.messages) == ([0, 1, 2, 3], list(range(10)))
    job.run()
    assert job.numbers == [0, 1, 2, 3], "a run without news takes nothing"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_that_a_crash_cut_short_comes_again_as_it_was(tmp_path: Path, when: str) -> None:
    job = Job(tmp_path)
    job.brokers.send(A0, *range(3))

    def die(messages: list[object], number: int) -> None:
        if when == "after":
            job.take(messages, number)
        raise Killed

    with pytest.raises(Killed):
        job.run(die)
    job.brokers.send(A0, 3, 4)
    job.run()
    assert job.taken == {0: [0, 1, 2], 1: [3, 4]}, "the second run adds nothing to the first batch"


def test_a_place_that_moves_is_written_down_before_the_first_batch(tmp_path: Path) -> None:
    job = Job(tmp_path, startingOffsets="latest")
    job.brokers.send(A0, *range(3))
    job.run()
    job.brokers.send(A0, 3)
    job.run()
    assert job.taken == {0: [3]}


def test_a_signal_ends_it_after_a_batch(tmp_path: Path) -> None:
    import os
    import signal

    job = Job(tmp_path, maxOffsetsPerTrigger=4)
    job.brokers.send(A0, *range(9))

    def take(messages: list[object], number: int) -> None:
        job.take(messages, number)
        os.kill(os.getpid(), signal.SIGINT)

    job.run(take)
    assert job.numbers == [0]
    job.run()
    assert job.messages == list(range(9))


def test_it_follows_at_a_pace(tmp_path: Path) -> None:
    job = Job(tmp_path)
    clock = job.brokers.clock
    began_s = clock.monotonic()

    def take(messages: list[object], number: int) -> None:
        job.take(messages, number)
        if number == 3:
            raise Killed
        job.brokers.send(A0, clock.monotonic() - began_s)

    job.brokers.send(A0, 0.0)
    with pytest.raises(Killed):
        run_own_batches(job.batches(), take, 10_000, None, clock)
    assert job.messages == [0.0, 0.0, 10.0, 20.0]


def test_a_book_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    book = Book(str(tmp_path))
    assert json.loads((tmp_path / "metadata").read_text())["id"]
    (tmp_path / "book").write_text('{"v":2}')
    with pytest.raises(JobError, match="newer release"):
        book.last()
    (tmp_path / "book").write_text("{")
    with pytest.raises(JobError, match="damaged"):
        book.last()


def test_the_options_of_a_batch_name_each_queue_once() -> None:
    ranges = [OffsetRange(*A0, 3, 5), OffsetRange(*A0, 5, 9), OffsetRange(*A1, 0, 1)]
    options = between(ranges)
    assert json.loads(options["assign"]) == {"T": {"a": [0, 1]}}
    given = SourceOptions.from_options({"nameServer": "n:1", **options}, streaming=False)
    assert dict(given.starting.by_queue) == QueueOffsets({A0: 3, A1: 0})
    assert dict(given.ending.by_queue) == QueueOffsets({A0: 9, A1: 1})
