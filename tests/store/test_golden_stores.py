"""Stores that RocketMQ's own store wrote are read, gone on with, and built again byte for byte.

tests/golden/stores/manifest.json says how they were made.
"""

from __future__ import annotations

import json
import shutil
import struct
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skylarkmq.store.queue.extension import with_tags_codes
from tests.support.archives import unpack
from tests.support.disk_store import DiskStore
from tests.support.store_samples import (
    DELAY_LEVEL,
    DELAY_MS,
    SCHEDULE_TOPIC,
    Fields,
    by_queue,
    is_queued,
    record_size,
    sample_commands,
)

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "stores"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text("utf-8"))
STORES: dict[str, dict[str, Any]] = MANIFEST["stores"]
SIZES: dict[str, int] = MANIFEST["sizes"]
LATER_MS = 4_000_000_000_000  # behind all that the golden stores hold
STAYING = ("commitlog", "consumequeue", "consumequeue_ext")
KILLED = [name for name, how in STORES.items() if how["end"].startswith("killed")]
WHOLE = [name for name, how in STORES.items() if how["begin"] == 0]


class Golden(NamedTuple):
    """A golden store, unpacked."""

    root: Path
    options: dict[str, Any]  # keys of RocketMQ's configuration, beside the sizes
    begin: int  # first offset of the log
    messages: list[Fields]
    queues: list[tuple[str, int, int, int]]
    keys: list[tuple[str, str, list[int]]]

    def open(self) -> DiskStore:
        return DiskStore(self.root, SIZES, LATER_MS)

    def files(self, folder: str) -> dict[str, bytes]:
        """The files below a folder by their path there."""
        top = self.root / folder
        paths = (path for path in top.rglob("*") if path.is_file())
        return {str(path.relative_to(top)): path.read_bytes() for path in paths}

    def queue_files(self) -> dict[str, bytes]:
        """Those of the queues, with tags codes in the place of addresses."""
        size = self.options.get("mappedFileSizeConsumeQueueExt", 1)
        extensions = self.files("consumequeue_ext")

        def read(queue: str, position: int, count: int) -> bytes:
            start = position - position % size
            found = extensions.get(f"{queue}/{start:020}", b"")
            return found[position - start : position - start + count]

        return {
            name: with_tags_codes(data, partial(read, name.rpartition("/")[0]))
            for name, data in self.files("consumequeue").items()
        }


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    unpack(FOLDER / STORES[request.param]["file"], tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    return Golden(
        tmp_path / "store",
        STORES[request.param]["options"],
        expected["begin"],
        expected["messages"],
        [tuple(queue) for queue in expected["queues"]],
        [tuple(key) for key in expected["keys"]],
    )


all_stores = pytest.mark.parametrize("golden", STORES, indirect=True)
whole_stores = pytest.mark.parametrize("golden", WHOLE, indirect=True)
killed_stores = pytest.mark.parametrize("golden", KILLED, indirect=True)


@all_stores
def test_every_message_is_read(golden: Golden) -> None:
    was_killed = (golden.root / "abort").exists()
    store = golden.open()
    report = store.start()
    assert report.clean is not was_killed
    assert report.end_offset == _end(golden.messages)
    assert store.read() == by_queue(golden.messages)
    for message in golden.messages:
        without_code = {name: value for name, value in message.items() if name != "tags_code"}
        assert store.look(message["physical_offset"]) == without_code
    store.stop()


@all_stores
def test_queue_offsets(golden: Golden) -> None:
    store = golden.open()
    store.start()
    face = store.store
    for topic, queue_id, begin, end in golden.queues:
        assert (face.min_offset(topic, queue_id), face.max_offset(topic, queue_id)) == (begin, end)
    store.stop()


@all_stores
def test_messages_are_found_by_key(golden: Golden) -> None:
    store = golden.open()
    store.start()
    assert golden.keys
    for topic, key, places in golden.keys:
        found = [place for place in store.query(topic, key) if place >= golden.begin]
        assert found == places, (topic, key)
    assert store.query("Keyed", "nobody's") == []
    store.stop()


@all_stores
def test_messages_are_found_by_time(golden: Golden) -> None:
    store = golden.open()
    store.start()
    for (topic, queue_id), messages in by_queue(golden.messages).items():
        times = {one["queue_offset"]: one["store_timestamp"] for one in messages}
        first, last = messages[0], messages[-1]
        for message in messages:
            at = message["store_timestamp"]
            found = store.store.offset_by_time(topic, queue_id, at)
            assert times[found] == at  # those of a batch have one time
        assert store.store.offset_by_time(topic, queue_id, 0) == first["queue_offset"]
        assert store.store.offset_by_time(topic, queue_id, LATER_MS) == last["queue_offset"]
    store.stop()


@all_stores
def test_a_store_goes_on(golden: Golden) -> None:
    """Behind the messages of RocketMQ, with their queue offsets; all are there after a restart."""
    store = golden.open()
    store.start()
    added = [one for command in sample_commands(10, 50) for one in store.run(command)]
    end, size = _end(golden.messages), SIZES["mappedFileSizeCommitLog"]
    assert added[0]["physical_offset"] in (end, end - end % size + size)  # it may have to roll
    ends = {(topic, queue_id): end for topic, queue_id, _, end in golden.queues}
    for queue, messages in by_queue(added).items():
        assert messages[0]["queue_offset"] == ends[queue]
    store.stop()
    again = golden.open()
    assert again.start().clean
    assert again.read() == by_queue([*golden.messages, *added])
    for message in added:
        for key in message["properties"].get("KEYS", "").split():
            if message["sys_flag"] & 0xC != 0xC:
                assert message["physical_offset"] in again.query(message["topic"], key)
    again.stop()


@whole_stores
def test_queues_are_built_again_byte_for_byte(golden: Golden) -> None:
    theirs, has_ext = golden.queue_files(), bool(golden.files("consumequeue_ext"))
    _lose_queues(golden)
    store = golden.open()
    report = store.start()
    assert report.rebuilt == sum(is_queued(message) for message in golden.messages)
    store.stop()
    assert golden.files("consumequeue") == theirs
    assert not golden.files("consumequeue_ext")
    assert has_ext is golden.options.get("enableConsumeQueueExt", False)


@pytest.mark.parametrize("golden", ["rebuilt"], indirect=True)
def test_queues_of_a_log_without_its_begin_are_built_again_byte_for_byte(golden: Golden) -> None:
    """Padding stands for what is not in the log. RocketMQ itself has built these queues from it."""
    theirs = golden.files("consumequeue")
    _lose_queues(golden)
    store = golden.open()
    store.start()
    parked = store.read()[SCHEDULE_TOPIC, DELAY_LEVEL - 1]
    store.stop()
    ours = golden.files("consumequeue")
    assert ours.keys() == theirs.keys()
    differing = {name for name, data in theirs.items() if ours[name] != data}
    # RocketMQ has lost the due times there.
    assert {name.split("/")[0] for name in differing} == {SCHEDULE_TOPIC}
    assert [one["tags_code"] - one["store_timestamp"] for one in parked] == [DELAY_MS] * len(parked)


@pytest.mark.parametrize("golden", [*WHOLE, "rebuilt"], indirect=True)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_the_index_is_built_again_byte_for_byte(golden: Golden, left: int) -> None:
    """As many of RocketMQ's files as are left stay; what is missing behind them is built again.

    Their names are the times at which they were made.
    """
    theirs = [data for _, data in sorted(golden.files("index").items())]
    for path in sorted((golden.root / "index").iterdir())[left:]:
        path.unlink()
    store = golden.open()
    store.start()
    store.stop()
    ours = [data for _, data in sorted(golden.files("index").items())]
    assert len(theirs) >= 2
    assert ours == theirs


@pytest.mark.parametrize("golden", ["clean"], indirect=True)
def test_an_index_file_was_begun_late(golden: Golden) -> None:
    """What makes that store worth having: its first item counts from the end of the file before."""
    item = 40 + 4 * SIZES["maxHashSlotNum"] + 20
    differences = [
        struct.unpack_from(">i", data, item + 12)[0]
        for _, data in sorted(golden.files("index").items())
    ]
    assert differences[0] == 0
    assert all(seconds > 0 for seconds in differences[1:])


@all_stores
def test_what_is_sound_stays_as_it_is(golden: Golden) -> None:
    """A start and a stop change no byte that RocketMQ wrote into log and queues.

    But for addresses of extensions: what is built again after a kill has its tags codes.
    """
    before = {folder: golden.files(folder) for folder in STAYING}
    units = golden.queue_files()
    store = golden.open()
    store.start()
    store.stop()
    for folder, files in {**before, "consumequeue": units}.items():
        after = golden.queue_files() if folder == "consumequeue" else golden.files(folder)
        for name, data in files.items():
            assert after.get(name, bytes(len(data))) == data, (folder, name)


@killed_stores
def test_a_torn_tail_is_cut_off(golden: Golden) -> None:
    """The last message misses its end, as after a crash of the machine."""
    end = _end(golden.messages)
    size = SIZES["mappedFileSizeCommitLog"]
    with (golden.root / "commitlog" / f"{end - end % size:020}").open("r+b") as file:
        file.seek(end % size - 5)
        file.write(bytes(5))
    kept = golden.messages[:-1]
    store = golden.open()
    report = store.start()
    assert (report.clean, report.end_offset) == (False, _end(kept))
    assert store.read() == by_queue(kept)
    for topic, key, places in golden.keys:
        assert store.query(topic, key) == [place for place in places if place < _end(kept)]
    store.stop()


@pytest.mark.parametrize("golden", ["pool-killed"], indirect=True)
def test_the_pool_left_bytes_behind_a_blank(golden: Golden) -> None:
    """What makes that store worth having: no reader may take these for records."""
    size = SIZES["mappedFileSizeCommitLog"]
    leftovers = 0
    for _, data in sorted(golden.files("commitlog").items()):
        position = 0
        while position < size and struct.unpack_from(">i", data, position)[0]:
            (length,) = struct.unpack_from(">i", data, position)
            if data[position + 4 : position + 8] == bytes.fromhex("cbd43194"):
                leftovers += any(data[position + 8 :])
            position += length
    assert leftovers


def _lose_queues(golden: Golden) -> None:
    """As if the disk had kept the log alone."""
    shutil.rmtree(golden.root / "consumequeue")
    shutil.rmtree(golden.root / "consumequeue_ext", ignore_errors=True)
    (golden.root / "checkpoint").unlink()
    (golden.root / "abort").touch()


def _end(messages: list[Fields]) -> int:
    return max(one["physical_offset"] + record_size(one) for one in messages)
