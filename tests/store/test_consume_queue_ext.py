"""Extensions of queues: their bytes, what readers see of them, starts after any kind of stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.queue.consume_queue import (
    ADDRESS_MAX,
    END_ROOM,
    EXT_UNIT,
    EXT_UNIT_SIZE,
    LONG_MIN,
    OFFSET_MAX,
    UNIT,
    ConsumeQueueExt,
    is_address,
    with_tags_codes,
)
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

EXT_SIZE = 104  # five units and room for the mark
ON: dict[str, Any] = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": EXT_SIZE,
}
OFF: dict[str, Any] = {"mapped_file_size_consume_queue_ext": EXT_SIZE}
KILL = CrashState(Keep.KILL)
TAGS = ["a", "", "TagB", "x" * 30]


def _rig(files: CrashDisk | None = None, **config: Any) -> StoreRig:
    return StoreRig(files, **{**ON, **config}).start()


def _put(rig: StoreRig, count: int) -> None:
    """Store messages whose tags take turns."""
    for _ in range(count):
        offset = rig.store.max_offset("T", 0)
        tag = TAGS[offset % len(TAGS)]
        properties = encode_properties({"TAGS": tag}).encode() if tag else b""
        stored = rig.put("T", 0, b"body", properties=properties, tags_code=_code(offset))
        assert stored is not None
        rig.clock.advance(0.01)


def _code(offset: int) -> int:
    tag = TAGS[offset % len(TAGS)]
    return tags_code(tag) if tag else 0


def _check(rig: StoreRig, count: int) -> None:
    """Every message has its tag's code, also for a filter."""
    store = rig.store
    assert store.max_offset("T", 0) == count
    found = store.queue_units("T", 0, 0, count)
    while len(found) < count:
        found += store.queue_units("T", 0, len(found), count)
    assert [unit.tags_code for unit in found] == [_code(offset) for offset in range(count)]
    wanted = _code(2).__eq__
    result = store.get_message("T", 0, 0, 32, matches=wanted)
    assert result.count == min(32, len(range(2, min(count, 100), len(TAGS))))


def _stored(rig: StoreRig) -> list[tuple[int, int, int]]:
    """The units as they lie in the file."""
    queue = rig.store.queues.open("T", 0)
    data = rig.files.read_all(queue.folder / f"{0:020d}")
    return [unit for unit in UNIT.iter_unpack(data) if unit[1]]


def _extension(rig: StoreRig) -> bytes:
    folder = rig.store.paths.queue_ext_folder("T", 0)
    return b"".join(rig.files.read_all(folder / name) for name in rig.files.list(folder))


# Bytes


def test_a_unit_is_rocketmqs() -> None:
    ext = ConsumeQueueExt(Path("/nowhere"), 1000)
    assert ext.append(0x0102030405, 0x0A0B0C0D) == LONG_MIN
    assert ext.tail.hex() == "0014" + "0000000102030405" + "000000000a0b0c0d" + "0000"
    assert ext.append(-1, 1) == LONG_MIN + EXT_UNIT_SIZE


def test_addresses_are_below_all_tags_codes_and_due_times() -> None:
    assert ADDRESS_MAX == -2147483649
    assert is_address(LONG_MIN) and is_address(ADDRESS_MAX)
    assert not any(map(is_address, (-(1 << 31), 0, (1 << 31) - 1, 1 << 41)))


def test_no_unit_spans_two_files_and_room_for_the_mark_stays() -> None:
    ext = ConsumeQueueExt(Path("/nowhere"), EXT_SIZE)
    places = [ext.append(n, n) - LONG_MIN for n in range(7)]
    assert places == [0, 20, 40, 60, 80, 104, 124]
    assert bytes(ext.tail[100:104]) == b"\xff\xff\0\0"
    tight = ConsumeQueueExt(Path("/nowhere"), EXT_SIZE - 1)
    assert [tight.append(n, n) - LONG_MIN for n in range(5)] == [0, 20, 40, 60, 103]
    assert bytes(tight.tail[80:103]) == b"\xff\xff" + bytes(21)


def test_the_plain_code_is_stored_when_no_address_can_be_had() -> None:
    assert ConsumeQueueExt(Path("/nowhere"), EXT_UNIT_SIZE + END_ROOM - 1).append(7, 1) == 7
    ext = ConsumeQueueExt(Path("/nowhere"), 1 << 20)
    ext.reset(OFFSET_MAX - EXT_UNIT_SIZE + 1)
    assert ext.append(7, 1) == 7
    ext.reset(OFFSET_MAX // (1 << 20) * (1 << 20))
    assert is_address(ext.append(7, 1))


def test_codes_are_put_back_with_few_reads() -> None:
    ext = ConsumeQueueExt(Path("/nowhere"), 1 << 20)
    units = [UNIT.pack(n, 10, ext.append(n * 3, 0)) for n in range(50)]
    units[7] = UNIT.pack(7, 10, 99)  # with its code
    reads: list[tuple[int, int]] = []

    def read(position: int, size: int) -> bytes:
        reads.append((position, size))
        return bytes(ext.tail[position : position + size])

    found = UNIT.iter_unpack(with_tags_codes(b"".join(units), read))
    assert [unit[2] for unit in found] == [99 if n == 7 else n * 3 for n in range(50)]
    assert len(reads) == 1


# A store


def test_files_hold_addresses_and_readers_see_codes() -> None:
    rig = _rig()
    _put(rig, 12)
    _check(rig, 12)  # from memory
    rig.stop()
    assert [unit[2] - LONG_MIN for unit in _stored(rig)[:7]] == [0, 20, 40, 60, 80, 104, 124]
    data = _extension(rig)
    assert len(data) == 3 * EXT_SIZE
    for offset, (_, _, address) in enumerate(_stored(rig)):
        size, code, timestamp, bitmap = EXT_UNIT.unpack_from(data, address - LONG_MIN)
        assert (size, code, bitmap) == (EXT_UNIT_SIZE, _code(offset), 0) and timestamp > 0
    again = _rig(rig.files)
    _check(again, 12)  # from the files
    _put(again, 5)
    _check(again, 17)


def test_the_key_may_change_from_run_to_run() -> None:
    rig = _rig(enable_consume_queue_ext=False)
    _put(rig, 4)
    rig.stop()
    rig = _rig(rig.files)
    _put(rig, 4)
    rig.stop()
    rig = _rig(rig.files, enable_consume_queue_ext=False)
    _put(rig, 4)
    _check(rig, 12)
    rig.stop()
    assert [is_address(unit[2]) for unit in _stored(rig)] == [False] * 4 + [True] * 4 + [False] * 4
    rig = _rig(rig.files)
    _put(rig, 1)
    _check(rig, 13)
    rig.stop()
    places = [unit[2] - LONG_MIN for unit in _stored(rig) if is_address(unit[2])]
    assert places == [0, 20, 40, 60, 80]


@pytest.mark.parametrize("seconds", [0, 2, 90])
def test_an_unclean_stop(seconds: int) -> None:
    rig = _rig()
    _put(rig, 9)
    rig.clock.advance(seconds)
    rig.workers.run_all()
    _put(rig, 4)
    rng = Random(seconds)
    for state in rig.files.crash_states(rng, 12):
        after = _rig(rig.files.crash(state, rng))
        count = after.store.max_offset("T", 0)
        _check(after, count)
        _put(after, 3)
        _check(after, count + 3)
        after.stop()
        _check(_rig(after.files), count + 3)
    killed = _rig(rig.files.crash(KILL, rng))
    _check(killed, 13)


def _remove(files: CrashDisk, path: Path) -> None:
    files.unlink(path)


def _zero(files: CrashDisk, path: Path) -> None:
    files.open(path).pwrite(bytes(EXT_SIZE), 0)


@pytest.mark.parametrize("harm", [_remove, _zero])
def test_a_lost_end_is_built_again_from_the_log(harm: Callable[[CrashDisk, Path], None]) -> None:
    rig = _rig()
    _put(rig, 12)
    rig.stop()
    folder = rig.store.paths.queue_ext_folder("T", 0)
    harm(rig.files, folder / rig.files.list(folder)[-1])
    again = _rig(rig.files)
    _check(again, 12)
    _put(again, 4)
    _check(again, 16)


def test_a_unit_that_rotted_matches_every_filter() -> None:
    rig = _rig()
    _put(rig, 12)
    rig.stop()
    again = _rig(rig.files)
    folder = rig.store.paths.queue_ext_folder("T", 0)
    rig.files.open(folder / f"{0:020d}").pwrite(bytes(2), 20)
    result = again.store.get_message("T", 0, 1, 32, matches=lambda code: False)
    assert result.count == 1, "the client compares the tags themselves"


def test_other_sizes_are_refused() -> None:
    rig = _rig()
    _put(rig, 12)
    rig.stop()
    with pytest.raises(StoreProfileError, match="mappedFileSizeConsumeQueueExt"):
        _rig(rig.files, mapped_file_size_consume_queue_ext=EXT_SIZE * 2)


def test_a_full_disk_refuses_and_goes_on() -> None:
    rig = _rig()
    _put(rig, 2)
    rig.files.fail("allocate", path="consumequeue_ext", error=28, times=2)
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert rig.store.refusal() is not None
    for _ in range(3):
        rig.clock.advance(1.1)
        rig.workers.run_all()
    assert rig.store.refusal() is None
    _put(rig, 10)
    _check(rig, 12)
    _check(_rig(rig.files.crash(KILL, Random(1))), 12)


def test_units_that_nothing_points_to_are_cut_off() -> None:
    rig = _rig()
    _put(rig, 3)
    rig.stop()
    folder = rig.store.paths.queue_ext_folder("T", 0)
    orphan = EXT_UNIT.pack(EXT_UNIT_SIZE, 9, 9, 0)
    rig.files.open(folder / f"{0:020d}").pwrite(orphan, 3 * EXT_UNIT_SIZE)
    again = _rig(rig.files)
    ext = again.store.queues.open("T", 0).ext
    assert ext is not None and ext.end_offset == 3 * EXT_UNIT_SIZE
    assert _extension(again) == _extension(rig)[: 3 * EXT_UNIT_SIZE].ljust(EXT_SIZE, b"\0")


def test_extensions_are_synced_before_the_checkpoint_says_so() -> None:
    rig = _rig(flush_consume_queue_thorough_interval=10_000)
    _put(rig, 3)
    steps: list[str] = []

    def note(op: str, path: Path) -> None:
        if op == "datasync":
            steps.append(path.relative_to(rig.files.root).parts[0])

    rig.files.before_step = note
    for _ in range(11):
        rig.clock.advance(1)
        rig.workers.run_all()
    assert steps.index("consumequeue_ext") < steps.index("checkpoint")


@pytest.mark.parametrize(("least_pages", "synced"), [(1, True), (2, False)])
def test_queue_files_are_synced_from_so_many_pages_on(least_pages: int, synced: bool) -> None:
    rig = _rig(
        enable_consume_queue_ext=False,
        flush_consume_queue_least_pages=least_pages,
        mapped_file_size_consume_queue=20_000,
    )
    paths: list[Path] = []
    rig.files.before_step = lambda op, path: paths.append(path) if op == "datasync" else None
    _put(rig, 300)  # 6000 bytes of units
    for _ in range(3):
        rig.clock.advance(1)
        rig.workers.run_all()
    assert any("consumequeue" in str(path) for path in paths) == synced
