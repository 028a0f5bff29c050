"""Two lineages tell where two logs part, and the file of terms survives any crash."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.replication.failover.terms import (
    ROWS_MAX,
    CommonPoint,
    Lineage,
    LineageError,
    TermsFile,
    TermStart,
    common_point,
    last_term,
    lineage_of,
)
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import Kind, encode_sidecar
from tests.support.crash_disk import CrashDisk

Log = list[int]  # the term of each byte


def rows(*pairs: tuple[int, int]) -> Lineage:
    return lineage_of(pairs)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "point"),
    [
        # The follower is behind, in the same term.
        (rows((1, 0)), 70, rows((1, 0)), 90, (1, 70)),
        # It has a tail of the old term that the new master has not.
        (rows((1, 0)), 90, rows((1, 0), (2, 60)), 80, (1, 60)),
        # Both had a term of their own after the common one (KIP-279).
        (rows((1, 0), (2, 50)), 90, rows((1, 0), (3, 70)), 95, (1, 50)),
        (rows((1, 0), (3, 70)), 95, rows((1, 0), (2, 50)), 90, (1, 50)),
        # A term without a record.
        (rows((1, 0), (2, 60)), 60, rows((1, 0), (3, 60)), 80, (1, 60)),
        (rows(), 40, rows((1, 0)), 90, None),
        (rows((2, 0)), 40, rows((1, 0)), 90, None),
    ],
)
def test_where_two_logs_part(
    ours: Lineage, our_end: int, theirs: Lineage, their_end: int, point: tuple[int, int] | None
) -> None:
    assert common_point(ours, our_end, theirs, their_end) == point


def lineage_by_bytes(log: Log) -> Lineage:
    changes = [place for place, (left, right) in enumerate(pairwise([0, *log])) if left != right]
    return lineage_of((log[place], place) for place in changes)


@given(st.randoms(use_true_random=False))
def test_the_common_point_is_where_the_bytes_part(rng: Random) -> None:
    """Logs as masters make them: each term begins on the log of some replica, others are cut."""
    logs: list[Log] = [[], [], []]
    for term in range(1, 8):
        master, *others = rng.sample(logs, 3)
        master += [term] * rng.randint(1, 3)
        for follower in others[: rng.randint(0, 2)]:
            ours, theirs = lineage_by_bytes(follower), lineage_by_bytes(master)
            found = common_point(ours, len(follower), theirs, len(master))
            same = _same(follower, master)
            assert found == (CommonPoint(follower[same - 1], same) if same else None)
            follower[same:] = master[same : rng.randint(same, len(master))]


def _same(left: Log, right: Log) -> int:
    for place, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return place
    return min(len(left), len(right))


def test_a_term_that_starts_at_two_places_is_of_two_clusters() -> None:
    with pytest.raises(LineageError, match="two clusters"):
        common_point(rows((1, 0), (2, 50)), 60, rows((1, 0), (2, 55)), 60)


@pytest.mark.parametrize(
    "pairs",
    [[(1, 10), (1, 20)], [(2, 10), (1, 20)], [(1, 10), (2, 5)], [(0, 0)], [(1, -1)], [(1, 2, 3)]],
)
def test_nonsense_is_no_lineage(pairs: list[tuple[int, ...]]) -> None:
    with pytest.raises(LineageError):
        lineage_of(pairs)


def loaded(disk: CrashDisk, log_end: int = 1000) -> TermsFile:
    file = TermsFile(disk, disk.root / "skylarkmq" / "terms")
    file.load(log_end)
    return file


def test_rows_come_back() -> None:
    disk = CrashDisk()
    file = loaded(disk)
    assert file.rows == () and last_term(file.rows) == 0
    for row in rows((1, 0), (4, 900)):
        file.append(row)
        file.append(row)  # a second time: nothing is written
    assert loaded(disk).rows == file.rows == rows((1, 0), (4, 900))
    assert last_term(file.rows) == 4


def test_a_row_that_cannot_follow_is_refused_and_nothing_is_written() -> None:
    disk = CrashDisk()
    file = loaded(disk)
    file.append(TermStart(4, 900))
    with pytest.raises(LineageError, match="cannot follow"):
        file.append(TermStart(3, 900))
    assert loaded(disk).rows == rows((4, 900))


def test_the_oldest_rows_fall_off() -> None:
    file = loaded(CrashDisk())
    file.keep(lineage_of((term, term) for term in range(1, ROWS_MAX + 1)))
    file.append(TermStart(ROWS_MAX + 1, 9999))
    assert len(file.rows) == ROWS_MAX
    assert file.rows[0].term == 2


def test_rows_behind_the_end_of_the_log_go_at_the_next_start() -> None:
    disk = CrashDisk()
    for row in rows((1, 0), (4, 900), (5, 1200)):
        loaded(disk, 2000).append(row)
    assert loaded(disk, 900).rows == rows((1, 0), (4, 900))
    assert loaded(disk, 2000).rows == rows((1, 0), (4, 900)), "the cut was not written"


@pytest.mark.parametrize("seed", range(20))
def test_any_crash_leaves_the_rows_of_before_or_after(seed: int) -> None:
    """What `append` returned from is there; what it was in is there or not, and never in part."""
    rng, disk = Random(seed), CrashDisk()
    file = loaded(disk)
    for row in rows((1, 0), (4, 900)):
        file.append(row)
    points: list[CrashDisk] = []
    disk.before_step = lambda op, path: points.append(disk.snapshot())
    file.append(TermStart(5, 1200))
    points.append(disk.snapshot())
    before, after = rows((1, 0), (4, 900)), rows((1, 0), (4, 900), (5, 1200))
    for number, point in enumerate(points, 1):
        allowed = {after} if number == len(points) else {before, after}
        for state in point.crash_states(rng, 6):
            assert loaded(point.crash(state, rng), 5000).rows in allowed


@pytest.mark.parametrize("op", ["open", "pwrite", "sync_folder"])
def test_a_refused_write_is_made_up_for_by_the_next_one(op: str) -> None:
    """Also where the rows to be kept are those in memory, for the disk may have others."""
    disk = CrashDisk()
    file = loaded(disk)
    file.append(TermStart(1, 0))
    disk.fail(op, error=errno.ENOSPC, path="" if op == "sync_folder" else "terms")
    with pytest.raises(OSError, match="No space"):
        file.append(TermStart(4, 900))
    assert file.is_behind and file.rows == rows((1, 0))
    file.append(TermStart(1, 0))
    assert not file.is_behind
    assert loaded(disk).rows == rows((1, 0))


def test_a_full_disk_does_not_hold_up_a_start() -> None:
    disk = CrashDisk()
    for row in rows((1, 0), (4, 900), (5, 1200)):
        loaded(disk, 2000).append(row)
    disk.fail("pwrite", error=errno.ENOSPC)
    file = loaded(disk, 1000)
    assert file.is_behind and file.rows == rows((1, 0), (4, 900))
    file.keep(file.rows)
    assert loaded(disk, 2000).rows == rows((1, 0), (4, 900)), "else the row speaks of what is new"
    disk.fail("pwrite", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        loaded(disk, 500)


@pytest.mark.parametrize("content", [{}, {"rows": 5}, {"rows": [[2, 0], [1, 0]]}, {"rows": ["ab"]}])
def test_a_file_that_no_broker_wrote_is_refused(content: dict[str, object]) -> None:
    disk = CrashDisk()
    path = disk.root / "terms"
    disk.replace(path, encode_sidecar(Kind.TERMS, content), backup=False)
    with pytest.raises(CorruptFileError):
        TermsFile(disk, path).load(1000)


def test_each_damaged_byte_is_found() -> None:
    disk = CrashDisk()
    path = disk.root / "terms"
    file = TermsFile(disk, path)
    file.append(TermStart(1, 0))
    sound = disk.read_all(path)
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 0x10
        disk.replace(path, bytes(damaged), backup=False)
        with pytest.raises(CorruptFileError):
            TermsFile(disk, Path(path)).load(1000)
