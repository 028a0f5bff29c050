"""Reads by properties: from memory and from the disk, with bitmaps, damage and limits."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import decode_message, record_properties
from skylarkmq.store.read import filtering
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.results import GetMessageResult, GetMessageStatus
from tests.store.support import StoreRig

MEMORY = 100_000  # bytes; with the ratio of 40 %, 40,000 of the log count as in memory


def color_is(color: bytes, **more: Any) -> RecordFilter:
    """A filter of one property."""
    return RecordFilter(lambda data: find_property(data, b"color\x01") == color, **more)


RED = color_is(b"red")


def _rig(**config: Any) -> StoreRig:
    return StoreRig(**config).start()


def _put(rig: StoreRig, *colors: str, body: bytes = b"body") -> None:
    for color in colors:
        rig.put("T", 0, body, properties=b"a\x011\x02color\x01" + color.encode())


def _offsets(result: GetMessageResult) -> list[int]:
    found: list[int] = []
    for view in result.views:
        position = 0
        while position < len(view):
            message = decode_message(view, position)
            found.append(message.queue_offset)
            position += message.store_size
    return found


def _cold(rig: StoreRig, offset: int, by: RecordFilter, count: int = 32) -> GetMessageResult:
    answers: list[GetMessageResult] = []

    def done(result: GetMessageResult | None, error: BaseException | None) -> None:
        assert result is not None, error
        answers.append(result)

    rig.store.get_message_cold("T", 0, offset, count, None, by, done)
    rig.workers.run_all()
    return answers[0]


def _make_all_cold(rig: StoreRig) -> None:
    rig.store._reader._memory_span = 0


def _both(rig: StoreRig, offset: int, by: RecordFilter, count: int = 32) -> GetMessageResult:
    """The answer from memory, which is also the one from the disk."""
    warm = rig.store.get_message("T", 0, offset, count, None, by)
    cold = _cold(rig, offset, by, count)
    assert (warm.status, warm.next_begin_offset) == (cold.status, cold.next_begin_offset)
    assert (warm.count, warm.size) == (cold.count, cold.size)
    assert _offsets(warm) == _offsets(cold)
    return warm


def test_only_wanted_records_come_in_order() -> None:
    rig = _rig()
    _put(rig, *["red", "blue", "red", "red", "blue"] * 4)
    result = _both(rig, 1, RED)
    assert _offsets(result) == [2, 3, 5, 7, 8, 10, 12, 13, 15, 17, 18]
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.FOUND, 20)
    assert rig.store.stats.filter_examined == 2 * 19
    assert rig.store.stats.filter_matched == 2 * 11


def test_nothing_wanted_moves_the_reader_on() -> None:
    rig = _rig()
    _put(rig, *["blue"] * 30)
    result = _both(rig, 3, RED)
    assert (result.status, result.count) == (GetMessageStatus.NO_MATCHED_MESSAGE, 0)
    assert result.next_begin_offset == 30


def test_the_readers_count_holds_for_what_it_gets() -> None:
    rig = _rig()
    _put(rig, *["blue", "red"] * 10)
    warm = rig.store.get_message("T", 0, 0, 3, None, RED)
    cold = _cold(rig, 0, RED, 3)
    for result in (warm, cold):
        assert _offsets(result) == [1, 3, 5]
        # The next one is wanted, or was not looked at: nothing wanted is passed over.
        assert 6 <= result.next_begin_offset <= 7


def test_caps_of_the_disk_hold_for_what_is_read_from_it() -> None:
    rig = _rig()
    _put(rig, *["blue", "red"] * 30)
    _make_all_cold(rig)
    result = _cold(rig, 0, RED)
    assert _offsets(result) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert _offsets(_cold(rig, result.next_begin_offset, RED))[0] == 17


def test_one_record_comes_whatever_its_size() -> None:
    rig = _rig(max_transfer_bytes_on_message_in_disk=10, max_transfer_bytes_on_message_in_memory=10)
    _put(rig, "blue", "red", "red")
    assert _offsets(_both(rig, 0, RED)) == [1]
    _make_all_cold(rig)
    assert _offsets(_cold(rig, 0, RED)) == [1]


def test_one_read_spends_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "WORK_MAX", 100)
    rig = _rig()
    _put(rig, *["blue"] * 25, "red")
    dear = color_is(b"red", cost=10)
    offset, reads = 0, 0
    while (result := _both(rig, offset, dear)).status is GetMessageStatus.NO_MATCHED_MESSAGE:
        assert offset < result.next_begin_offset <= offset + 11
        offset, reads = result.next_begin_offset, reads + 1
    assert _offsets(result) == [25] and reads == 2


def test_a_cost_beyond_the_bound_still_moves_on() -> None:
    rig = _rig()
    _put(rig, "blue", "red")
    dear = color_is(b"red", cost=filtering.WORK_MAX * 2)
    assert _both(rig, 0, dear).next_begin_offset == 1
    assert _offsets(_both(rig, 1, dear)) == [1]


def test_long_properties_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "WORK_MAX", 100)
    rig = _rig()
    for _ in range(20):
        rig.put("T", 0, b"b", properties=b"long\x01" + b"x" * 20_000)
    assert _both(rig, 0, RED).next_begin_offset == 6  # 20 each
    assert rig.store.stats.filter_examined == 2 * 6


def test_reads_from_the_disk_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "COLD_BYTES_MAX", 5000)
    monkeypatch.setattr(filtering, "COLD_RUN_MAX", 2500)
    rig = _rig()
    _put(rig, *["blue"] * 20, body=b"x" * 900)
    assert _cold(rig, 0, RED).next_begin_offset == 6
    assert _cold(rig, 18, RED).next_begin_offset == 20


@pytest.mark.parametrize("cold", [False, True])
def test_a_damaged_record_is_passed_over_and_reported(cold: bool) -> None:
    rig = _rig()
    _put(rig, "red", "red", "red")
    rig.stop()
    again = StoreRig(rig.files).start()
    (unit,) = again.store.queue_units("T", 0, 1, 1)
    again.store.commit_log.mapped_files.mapped[0].file.pwrite(b"!", unit.commit_offset + 89)
    result = _cold(again, 0, RED) if cold else again.store.get_message("T", 0, 0, 32, None, RED)
    assert _offsets(result) == [0, 2]
    assert again.store.stats.corrupt_records == 1


# The layout


@pytest.mark.parametrize("hosts", [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_properties_are_found_behind_any_hosts(hosts: tuple[int, int]) -> None:
    rig = _rig()
    born, store = (b"\1" * (size - 4) + (99).to_bytes(4, "big") for size in hosts)
    rig.put("T", 0, b"b" * 300, properties=b"k\x01v", born_host=born, store_host=store)
    unit = rig.store.queue_units("T", 0, 0, 1)[0]
    data = bytes(rig.store.get_message("T", 0, 0, 1).views[0])
    assert record_properties(data, 0, unit.record_size) == b"k\x01v"
    for size in range(unit.record_size):
        assert record_properties(data, 0, size) is None, "cut short"
        assert record_properties(data[:size], 0, unit.record_size) is None


def test_any_bytes_give_properties_or_none() -> None:
    rig = _rig()
    _put(rig, "red")
    data = bytearray(rig.store.get_message("T", 0, 0, 1).views[0])
    for position in range(len(data)):
        for value in (0, 0x7F, 0x80, 0xFF):
            changed = data[:]
            changed[position] = value
            record_properties(bytes(changed), 0, len(data))
