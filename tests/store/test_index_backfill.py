"""Reading the log again for the index: slices, ends, damage."""

from __future__ import annotations

import pytest

from skylarkmq.store.index import builder as index_backfill
from skylarkmq.store.index.builder import LogSlice, read_slice
from skylarkmq.store.index.keys import ENTRY
from skylarkmq.store.log.mapped_file import MappedFile
from tests.store.index_rig import IndexRig, properties
from tests.store.support import LOG_SIZE
from tests.support.index_files import key_hash


def filled(count: int = 10, body: bytes = b"b") -> tuple[IndexRig, MappedFile, list[int]]:
    """A log of keyed messages, its first file, and where each record starts, then the end."""
    rig = IndexRig()
    rig.start()
    for number in range(count):
        rig.put(body=body, properties=properties(f"U{number}"))
    mapped = rig.store.commit_log.mapped_files.find(0)
    assert mapped is not None
    starts = [record.physical_offset for record in rig.records()]
    return rig, mapped, [*starts, rig.store.writer.published_offset]


def read(
    mapped: MappedFile, offset: int, end_offset: int
) -> tuple[list[tuple[int, int, int]], list[LogSlice]]:
    """All slices up to the end."""
    entries: list[tuple[int, int, int]] = []
    slices: list[LogSlice] = []
    while offset < end_offset:
        found = read_slice(mapped, offset, end_offset)
        assert found.next_offset > offset
        entries += ENTRY.iter_unpack(found.entries)
        slices.append(found)
        offset = found.next_offset
    return entries, slices


def hashes(*numbers: int) -> list[int]:
    return [key_hash(f"T#U{number}") for number in numbers]


def test_every_record_from_any_place_up_to_the_end() -> None:
    _, mapped, starts = filled()
    entries, slices = read(mapped, 0, starts[-1])
    assert [entry[0] for entry in entries] == hashes(*range(10))
    assert [entry[1] for entry in entries] == starts[:-1]
    assert sum(found.record_count for found in slices) == 10
    entries, _ = read(mapped, starts[4], starts[7])
    assert [entry[0] for entry in entries] == hashes(4, 5, 6)


@pytest.mark.parametrize("size", [50, 91, 130, 300])
def test_slices_that_cut_records_find_them_all(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_backfill, "SLICE_SIZE", size)
    _, mapped, starts = filled()
    entries, slices = read(mapped, 0, starts[-1])
    assert [entry[0] for entry in entries] == hashes(*range(10))
    assert sum(found.passed_over for found in slices) == 0
    assert len(slices) > 3


def test_a_slice_has_so_many_records_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_backfill, "SLICE_RECORDS", 3)
    _, mapped, starts = filled()
    _, slices = read(mapped, 0, starts[-1])
    assert [found.record_count for found in slices] == [3, 3, 3, 1]


def test_a_blank_leads_to_the_next_file() -> None:
    rig, mapped, _ = filled(9, b"x" * 20_000)
    entries, slices = read(mapped, 0, LOG_SIZE)
    assert slices[-1].next_offset == LOG_SIZE
    following = rig.store.commit_log.mapped_files.find(LOG_SIZE)
    assert following is not None
    more, _ = read(following, LOG_SIZE, rig.store.writer.published_offset)
    assert [entry[0] for entry in entries + more] == hashes(*range(9))


@pytest.mark.parametrize("place", [0, 4, 20, 60])
def test_damage_is_passed_over_to_the_next_sound_record(place: int) -> None:
    _, mapped, starts = filled()
    mapped.file.pwrite(b"\xff" * 12, starts[3] + place)
    entries, slices = read(mapped, 0, starts[-1])
    found = [entry[0] for entry in entries]
    assert [each for each in found if each != hashes(3)[0]] == hashes(0, 1, 2, *range(4, 10))
    if place in (0, 4, 20):
        assert sum(each.passed_over for each in slices) == starts[4] - starts[3]


def test_zeros_to_the_end_are_damage_too() -> None:
    _, mapped, starts = filled()
    mapped.file.pwrite(bytes(starts[-1] - starts[6]), starts[6])
    entries, slices = read(mapped, 0, starts[-1])
    assert [entry[0] for entry in entries] == hashes(*range(6))
    assert slices[-1].next_offset == starts[-1]
    assert sum(each.passed_over for each in slices) == starts[-1] - starts[6]
