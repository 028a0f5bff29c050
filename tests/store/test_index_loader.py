"""What a start believes of the key index after crashes, damage and other brokers; what it repairs.

Whatever was found, once the index has caught up every message is found by its keys, once, and each
file keeps RocketMQ's rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from tests.store.index_rig import ITEMS, SLOTS, IndexRig, properties
from tests.support.crash_states import CrashState, Keep
from tests.support.index_files import check

FULL = ITEMS - 1
KILL = CrashState(Keep.ALL, names=Keep.ALL)  # the process died, the machine did not
CLEAN, UNCLEAN = "clean", "unclean"


def filled(count: int = 2 * FULL + 4, *, end: str = CLEAN) -> IndexRig:
    """A store with so many keyed messages that was checkpointed, and then stopped or died.

    Returns:
        The next life on its disk, not started yet.
    """
    rig = IndexRig()
    rig.start()
    rig.send(count, keys="k")
    rig.checkpoint()
    if end == CLEAN:
        rig.stop()
    return next_life(rig)


def next_life(rig: IndexRig) -> IndexRig:
    return rig.again(rig.files.crash(KILL, Random(1)))


def settled(rig: IndexRig) -> None:
    """Everything is in the index again, and goes on being so."""
    rig.settle()
    assert rig.store.index.behind_bytes == 0
    rig.check_all_found(range(rig.number))
    for data in rig.index_files():
        check(data, SLOTS, ITEMS)
    rig.send(2, keys="k")
    rig.check_all_found(range(rig.number))


def index_path(rig: IndexRig, number: int) -> str:
    return sorted(rig.names())[number]


def overwrite(rig: IndexRig, number: int, position: int, data: bytes) -> None:
    path = rig.store.paths.index / index_path(rig, number)
    rig.files.open(path).pwrite(data, position)


def remove(rig: IndexRig, number: int) -> None:
    rig.files.unlink(rig.store.paths.index / index_path(rig, number))


def shorten(rig: IndexRig, number: int, size: int) -> None:
    rig.files.open(rig.store.paths.index / index_path(rig, number)).truncate(size)


def swap(rig: IndexRig, one: int, other: int) -> None:
    folder = rig.store.paths.index
    paths = folder / index_path(rig, one), folder / index_path(rig, other)
    contents = [rig.files.read_all(path) for path in paths]
    for path, data in zip(paths, contents[::-1], strict=True):
        rig.files.open(path).pwrite(data, 0)


DAMAGES: dict[str, Callable[[IndexRig], None]] = {
    "none": lambda rig: None,
    "first file missing": lambda rig: remove(rig, 0),
    "middle file missing": lambda rig: remove(rig, 2),
    "last file missing": lambda rig: remove(rig, -1),
    "all missing": lambda rig: [remove(rig, 0) for _ in rig.names()] and None,
    "first file cut": lambda rig: shorten(rig, 0, 50),
    "last file cut": lambda rig: shorten(rig, -1, 60),
    "empty file": lambda rig: shorten(rig, 1, 0),
    "header of zeros": lambda rig: overwrite(rig, 1, 0, bytes(40)),
    "count too large": lambda rig: overwrite(rig, -1, 36, struct.pack(">i", ITEMS + 5)),
    "count negative": lambda rig: overwrite(rig, -1, 36, struct.pack(">i", -4)),
    "count too small": lambda rig: overwrite(rig, -1, 36, struct.pack(">i", 2)),
    "items of zeros": lambda rig: overwrite(rig, 1, 40 + 4 * SLOTS, bytes(20 * ITEMS)),
    "end offset beyond the log": lambda rig: overwrite(rig, -1, 24, struct.pack(">q", 1 << 40)),
    "begin offset negative": lambda rig: overwrite(rig, 0, 16, struct.pack(">q", -5)),
    "two files changed places": lambda rig: swap(rig, 0, 2),
}


@pytest.mark.parametrize("end", [CLEAN, UNCLEAN])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_missing_files_are_built_again(damage: str, end: str) -> None:
    rig = filled(end=end)
    DAMAGES[damage](rig)
    rig.start()
    settled(rig)


def test_without_our_recovery_point_full_covered_files_stay_and_the_rest_is_built_again() -> None:
    rig = filled(end=UNCLEAN)
    names = rig.names()
    assert len(names) == 5
    rig.files.unlink(rig.store.paths.recovery_point)
    rig.start()
    kept = [name for name in rig.names() if name in names]
    assert kept == names[:4], "the current file may hold anything"
    settled(rig)


def test_with_a_recovery_point_little_is_read_again() -> None:
    first = IndexRig()
    first.start()
    first.send(2 * FULL + 2, keys="k")
    first.checkpoint()
    first.send(3, keys="k")
    rig = next_life(first)
    rig.start()
    assert rig.names()[:5] == first.names()[:5]
    rig.settle()
    assert rig.store.stats.index_records_read == 3
    settled(rig)


def test_an_index_of_another_log_is_built_again() -> None:
    rig, other = filled(), filled(7)
    folder = rig.store.paths.index
    for name in rig.names():
        rig.files.unlink(folder / name)
    for name, data in other.files.contents().items():
        if name.startswith("index/"):
            file = rig.files.open(folder / name[6:], create=True)
            file.truncate(len(data))
            file.pwrite(data[:8] + struct.pack(">q", 1_800_000_000_000) + data[16:], 0)
    rig.start()
    settled(rig)


def test_files_that_are_no_index_files_are_left_alone() -> None:
    rig = filled()
    stranger = rig.store.paths.index / "notes.txt"
    rig.files.open(stranger, create=True).truncate(5)
    rig.start()
    rig.settle()
    assert rig.files.exists(stranger)
    rig.files.unlink(stranger)
    settled(rig)


def test_what_a_java_broker_left_cleanly_is_gone_on_with() -> None:
    rig = filled()
    names = rig.names()
    rig.files.unlink(rig.store.paths.recovery_point)
    rig.start()
    rig.settle()
    assert rig.names() == names
    assert rig.store.stats.index_records_read == 1, "whether all of its keys are in"
    rig.check_files()
    settled(rig)


def test_a_file_that_ends_between_two_keys_of_a_message_is_gone_on_with() -> None:
    first = IndexRig()
    first.start()
    first.send(1, keys=" ".join(f"k{number}" for number in range(FULL - 2)))
    first.send(1, keys="a b c")
    first.stop()
    rig = next_life(first)
    last = rig.store.paths.index / rig.names()[-1]
    assert len(rig.names()) == 2
    rig.files.unlink(last)
    rig.start()
    rig.settle()
    rig.check_files()


def test_messages_without_keys_between_two_files_are_no_gap() -> None:
    rig = IndexRig()
    rig.start()
    rig.send(FULL)
    for _ in range(5):
        rig.put(properties=b"TAGS\x01a\x02")
    rig.send(3)
    rig.stop()
    names = rig.names()
    assert len(names) == 2
    again = next_life(rig)
    again.start()
    assert again.names() == names
    assert again.store.index.behind_bytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_any_crash_leaves_an_index_that_catches_up(seed: int) -> None:
    rng = Random(seed)
    rig = IndexRig(flush_disk_type="SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH")
    rig.start()
    for _ in range(4):
        rig.send(rng.randrange(1, 9), keys=rng.choice(("", "k", "a b")))
        if rng.random() < 0.5:
            rig.checkpoint()
        if rng.random() < 0.5:
            rig.put(properties=properties(f"U{rig.number}", "k"))
            rig.number += 1
    for state in rig.files.crash_states(rng, 10):
        after = rig.again(rig.files.crash(state, rng))
        after.start()
        after.number = len(after.records())
        after.settle()
        assert after.store.index.behind_bytes == 0, state
        after.check_all_found(range(after.number))
        second = rig.again(after.files.crash(state, rng))
        second.start()
        second.number = len(second.records())
        second.settle()
        second.check_all_found(range(second.number))
        second.stop()
        for data in second.index_files():
            check(data, SLOTS, ITEMS)


WIDE_SLOTS, WIDE_ITEMS = 2500, 1200  # of several pages each


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_a_files_pages_is_repaired(seed: int) -> None:
    shape = {"max_hash_slot_num": WIDE_SLOTS, "max_index_num": WIDE_ITEMS}
    rng = Random(seed)
    rig = IndexRig(**shape)
    rig.start()
    for _ in range(3):
        for _ in range(rng.randrange(100, 200)):
            rig.put(properties=properties(f"U{rig.number}", rng.choice(("", "k", "a b"))))
            rig.number += 1
        rig.settle()
        if rng.random() < 0.7:
            rig.checkpoint()
    if seed % 2:
        rig.clock.advance(1)
        rig.workers.flush.run_all()  # the whole log is on the disk, of the index what was synced
    for state in rig.files.crash_states(rng, 12):
        after = rig.again(rig.files.crash(state, rng), **shape)
        after.start()
        after.number = len(after.records())
        after.settle()
        after.check_all_found(range(after.number))
        for number in range(150):
            after.put(properties=properties(f"V{number}"))
        after.settle()
        for data in after.index_files():
            check(data, WIDE_SLOTS, WIDE_ITEMS)
