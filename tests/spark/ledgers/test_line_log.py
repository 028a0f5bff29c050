"""A log of lines in a file and in S3: what was added is there, by one writer at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Self

import pytest

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.ledgers import line_log as line_log_module
from skylarkmq.spark.ledgers.hold import Hold, HoldLostError, InUseError
from skylarkmq.spark.ledgers.line_log import ObjectLineLog, line_log
from skylarkmq.spark.ledgers.objects import ChangedError, objects_at
from skylarkmq.spark.storage import Location
from tests.spark.support.blocking_clock import TestClock


def test_lines_come_back_in_their_order(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log_module, "PART_BYTES", 150)
    expected: list[bytes] = []
    assert line_log(place, "work").read() == []
    for run in range(4):
        with line_log(place, "work") as log:
            for number in range(5):
                lines = [f"{run} {number} {each}".encode() for each in range(3)]
                log.append(lines)
                expected += lines
                assert log.read() == expected
    assert line_log(place, "work").read() == expected
    if place.path is None:
        assert len(objects_at(place).names()) > 3


def test_a_cut_line_goes_and_the_next_one_follows(tmp_path: Path) -> None:
    path = tmp_path / "l"
    place = Location.parse(str(path))
    for size in range(5):
        path.write_bytes(b"first\n" + b"other"[:size])
        assert line_log(place, "work").read() == [b"first"]
        with line_log(place, "work") as log:
            log.append([b"second"])
        assert path.read_bytes() == b"first\nsecond\n"


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path / "l"))
    with line_log(place, "work") as log:
        log.append([b"x"])
        with pytest.raises(InUseError, match="another run is at work with"):
            line_log(place, "work").__enter__()
        assert line_log(place, "work").read() == [b"x"]
    with line_log(place, "work"):
        pass


def test_of_two_that_start_at_once_one_writes(place: Location) -> None:
    start, end = Barrier(2), Barrier(2)

    def run(number: int) -> int:
        log = line_log(place, "work", TestClock())
        if isinstance(log, ObjectLineLog):
            log._hold = _NoHold(place, "work")  # neither sees the other's mark
        start.wait()
        try:
            with log:
                log.append([str(number).encode()])
                end.wait()
                return number
        except (InUseError, ChangedError):
            end.wait()
            return 0

    with ThreadPoolExecutor(2) as pool:
        winners = [number for number in pool.map(run, (1, 2)) if number]
    lines = line_log(place, "work").read()
    # With a store the first line of one may stand before the other opens; it adds no second one.
    assert len(winners) == 1 or place.path is None
    assert sorted(lines) == [str(number).encode() for number in sorted(winners)]


class _NoHold(Hold):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def check(self) -> None:
        return


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_a_run_that_was_taken_for_dead_adds_nothing(
    s3_place: Location, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(line_log_module, "PART_BYTES", part_bytes)
    monkeypatch.setattr(Hold, "_keep", lambda self: None)  # as if its process stood still
    first = line_log(s3_place, "first", TestClock()).__enter__()
    first.append([b"first"])
    with line_log(s3_place, "second", TestClock()) as second:
        with pytest.raises(ChangedError):
            first.append([b"late"])
        with pytest.raises(RocketMQError):
            first.append([b"later"])
        second.append([b"second"])
    first.__exit__()
    assert line_log(s3_place, "third").read() == [b"first", b"second"]


def test_a_run_that_cannot_renew_its_mark_adds_nothing(s3_place: Location) -> None:
    clock = TestClock()
    with line_log(s3_place, "work", clock) as log:
        assert isinstance(log, ObjectLineLog)
        clock.advance(100)
        with pytest.raises(HoldLostError):
            log.append([b"x"])
    assert log.read() == []


def test_lines_are_on_the_disk_when_they_count_as_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "l", list[bytes]()
    with line_log(Location.parse(str(path)), "work") as log:
        monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(path.read_bytes()))
        log.append([b"first", b"second"])
        log.append([b"third"])
        monkeypatch.undo()
    assert synced == [b"first\nsecond\n", b"first\nsecond\nthird\n"]
