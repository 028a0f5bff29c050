"""Extensions of queues, which RocketMQ writes: what readers see of them, after any kind of stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.queue.consume_queue import UNIT
from skylarkmq.store.queue.extension import (
    ADDRESS_MAX,
    EXT_UNIT,
    LONG_MIN,
    is_address,
    with_tags_codes,
)
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.extensions import EXT_SIZE, extend

KILL = CrashState(Keep.KILL)
TAGS = ["a", "", "TagB", "x" * 30]


def _put(rig: StoreRig, count: int) -> None:
    """Store messages whose tags take turns."""
    for _ in range(count):
        offset = rig.store.max_offset("T", 0)
        tag = TAGS[offset % len(TAGS)]
        properties = encode_properties({"TAGS": tag}).encode() if tag else b""
        stored = rig.put("T", 0, b"body", properties=properties, tags_code=_code(offset))
        assert stored is not None
        rig.clock.advance(0.01)


def _extended(count: int, bitmap: bytes = b"", size: int = EXT_SIZE, **config: Any) -> StoreRig:
    """A store that has stopped, whose units have all extensions."""
    rig = StoreRig(**config).start()
    _put(rig, count)
    rig.stop()
    extend(rig.files, rig.files.root, size, bitmap)
    return rig


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


def _stored(rig: StoreRig) -> list[int]:
    """The tags codes as they lie in the file."""
    queue = rig.store.queues.open("T", 0)
    data = rig.files.read_all(queue.folder / f"{0:020d}")
    return [code for _, size, code in UNIT.iter_unpack(data) if size]


def _folder(rig: StoreRig) -> Path:
    return rig.store.paths.queue_ext_folder("T", 0)


def test_addresses_are_below_all_tags_codes_and_due_times() -> None:
    assert ADDRESS_MAX == -2147483649
    assert is_address(LONG_MIN) and is_address(ADDRESS_MAX)
    assert not any(map(is_address, (-(1 << 31), 0, (1 << 31) - 1, 1 << 41)))


def test_codes_are_put_back_with_few_reads() -> None:
    data = b"".join(EXT_UNIT.pack(20, n * 3, 0, 0) for n in range(50))
    units = [UNIT.pack(n, 10, n * 20 + LONG_MIN) for n in range(50)]
    units[7] = UNIT.pack(7, 10, 99)  # with its code
    reads: list[tuple[int, int]] = []

    def read(position: int, size: int) -> bytes:
        reads.append((position, size))
        return data[position : position + size]

    found = UNIT.iter_unpack(with_tags_codes(b"".join(units), read))
    assert [unit[2] for unit in found] == [99 if n == 7 else n * 3 for n in range(50)]
    assert len(reads) == 1


# A store


@pytest.mark.parametrize(("size", "bitmap"), [(EXT_SIZE, b""), (100, b"\x01\x02"), (1 << 20, b"")])
def test_readers_see_codes(size: int, bitmap: bytes) -> None:
    rig = _extended(12, bitmap, size)
    assert all(map(is_address, _stored(rig)))
    before = {path: data for path, data in rig.files.contents().items() if "_ext" in path}
    again = StoreRig(rig.files).start()
    _check(again, 12)
    _put(again, 5)
    _check(again, 17)
    again.stop()
    third = StoreRig(rig.files).start()
    _check(third, 17)
    assert list(map(is_address, _stored(third))) == [True] * 12 + [False] * 5
    assert {path: data for path, data in rig.files.contents().items() if "_ext" in path} == before


@pytest.mark.parametrize("seconds", [0, 2, 90])
def test_an_unclean_stop(seconds: int) -> None:
    rig = StoreRig(_extended(9).files).start()
    rig.clock.advance(seconds)
    rig.workers.run_all()
    _put(rig, 4)
    rng = Random(seconds)
    for state in rig.files.crash_states(rng, 12):
        after = StoreRig(rig.files.crash(state, rng)).start()
        count = after.store.max_offset("T", 0)
        _check(after, count)
        _put(after, 3)
        _check(after, count + 3)
        after.stop()
        _check(StoreRig(after.files).start(), count + 3)
    killed = StoreRig(rig.files.crash(KILL, rng)).start()
    _check(killed, 13)


def _remove(files: CrashDisk, path: Path) -> None:
    files.unlink(path)


def _zero(files: CrashDisk, path: Path) -> None:
    files.open(path).pwrite(bytes(EXT_SIZE), 0)


def _cut(files: CrashDisk, path: Path) -> None:
    files.open(path).truncate(10)


@pytest.mark.parametrize("harm", [_remove, _zero, _cut])
def test_units_whose_extension_has_lost_its_end_are_built_again(
    harm: Callable[[CrashDisk, Path], None],
) -> None:
    rig = _extended(12)
    harm(rig.files, _folder(rig) / rig.files.list(_folder(rig))[-1])
    again = StoreRig(rig.files).start()
    _check(again, 12)
    _put(again, 4)
    _check(again, 16)
    again.stop()
    assert not any(map(is_address, _stored(again)))


def test_a_unit_that_rotted_matches_every_filter() -> None:
    rig = StoreRig(_extended(12).files).start()
    rig.files.open(_folder(rig) / f"{0:020d}").pwrite(bytes(2), 20)
    result = rig.store.get_message("T", 0, 1, 32, matches=lambda code: False)
    assert result.count == 1, "the client compares the tags themselves"


@pytest.mark.parametrize(("least_pages", "synced"), [(1, True), (2, False)])
def test_queue_files_are_synced_from_so_many_pages_on(least_pages: int, synced: bool) -> None:
    rig = StoreRig(
        flush_consume_queue_least_pages=least_pages, mapped_file_size_consume_queue=20_000
    ).start()
    paths: list[Path] = []
    rig.files.before_step = lambda op, path: paths.append(path) if op == "datasync" else None
    _put(rig, 300)  # 6000 bytes of units
    for _ in range(3):
        rig.clock.advance(1)
        rig.workers.run_all()
    assert any("consumequeue" in str(path) for path in paths) == synced
