"""Records as they are laid out and stored, against the bytes that RocketMQ 4.9.8 wrote."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.record import (
    RecordStatus,
    decode_message,
    decode_messages,
    read_record,
)
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.index.keys import ENTRY_SIZE
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.pwrite_writer import PwriteWriter
from skylarkmq.store.queue.consume_queue import UNIT, ConsumeQueue
from tests.protocol.message_vectors import RECORDS, STORE, record_fields
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk

NOW_MS = 1_700_000_000_000
HOST = HostAddress("127.0.0.1", 10911).pack()


class LogRig:
    """Log files of one size that a batch rolls through."""

    def __init__(self, file_size: int = 4096, free: int | None = None) -> None:
        self.disk = CrashDisk(free=free)
        self.folder = self.disk.root / "commitlog"
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.ahead: list[MappedFile] = []
        self.batch = AppendBatch(
            file_size, PwriteWriter(), self.make_file, self.join, DelayLevels().due_time
        )
        self.error: Exception | None = None

    def make_file(self) -> MappedFile:
        if self.error is not None:
            raise self.error
        start = (len(self.files) + len(self.ahead)) * self.file_size
        self.ahead.append(MappedFile.create(self.disk, self.folder, start, self.file_size))
        return self.ahead[-1]

    def join(self) -> None:
        self.files += self.ahead
        self.ahead.clear()

    def next_file(self) -> MappedFile:
        made = self.make_file()
        self.join()
        return made

    def begin(self, now_ms: int = NOW_MS) -> AppendBatch:
        self.batch.begin(self.files[-1] if self.files else None, now_ms)
        return self.batch

    def written(self, index: int) -> bytes:
        return bytes(self.files[index].view)


def queue(topic: str = "TopicTest", queue_id: int = 0, next_offset: int = 0) -> ConsumeQueue:
    made = ConsumeQueue(topic, queue_id, Path("/nowhere"))
    made.next_offset = next_offset
    return made


def add(batch: AppendBatch, where: ConsumeQueue, body: bytes = b"body", **more: Any) -> int:
    return batch.add(where, body, more.pop("properties", b""), NOW_MS, HOST, HOST, 0, **more)


def is_delayed(vector: dict[str, Any]) -> bool:
    return vector["topic"] == "SCHEDULE_TOPIC_XXXX"


def add_vector(batch: AppendBatch, where: ConsumeQueue, vector: dict[str, Any]) -> int:
    fields = record_fields(vector)
    level = int(dict(vector["properties"])["DELAY"]) if is_delayed(vector) else 0
    return batch.add(
        where,
        fields["body"],
        fields["properties"],
        fields["born_timestamp"],
        fields["born_host"],
        fields["store_host"],
        0 if level else vector["tagsCode"],
        fields["flag"],
        vector["sysFlag"],
        fields["reconsume_times"],
        fields["prepared_transaction_offset"],
        level,
    )


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector.get("what", vector["size"]))
def test_each_record_is_stored_as_rocketmq_stores_it(vector: dict[str, Any]) -> None:
    rig = LogRig(file_size=16_384)
    rig.next_file().wrote_position = vector["physicalOffset"]
    batch = rig.begin(vector["storeTimestamp"])
    target = queue(vector["topic"], vector["queueId"], vector["queueOffset"])
    assert add_vector(batch, target, vector) == vector["physicalOffset"]
    end = batch.write()
    assert rig.written(0)[vector["physicalOffset"] : end].hex() == vector["recordHex"]
    if vector.get("consumeQueueUnitHex", "") is None:
        assert not batch.units.runs, "for the key index alone"
    else:
        ((queue_offset, unit),) = batch.units.runs.values()
        _, _, tags_code = UNIT.unpack(unit)
        assert tags_code == vector["tagsCode"], "of the tag, or the due time"
        assert queue_offset == vector["queueOffset"]


def test_a_batch_is_stored_as_rocketmq_stores_it_with_one_write() -> None:
    stored = STORE["batch"]["stored"]
    rig = LogRig(file_size=16_384)
    rig.next_file().wrote_position = stored[0]["physicalOffset"]
    writes = rig.disk.calls["pwrite"]
    batch = rig.begin(stored[0]["storeTimestamp"])
    target = queue("TopicTest", stored[0]["queueId"])
    for vector in stored:
        add_vector(batch, target, vector)
    end = batch.write()
    assert rig.disk.calls["pwrite"] == writes + 1
    data = rig.written(0)[stored[0]["physicalOffset"] : end]
    assert data.hex() == "".join(vector["recordHex"] for vector in stored)
    assert (batch.units.count, batch.size) == (len(stored), len(data))


def test_a_whole_log_of_several_queues_and_its_units() -> None:
    """The hand-built messages follow each other from offset 0 in their queues."""
    rig = LogRig()
    queues: dict[tuple[str, int], ConsumeQueue] = {}
    units: list[str | None] = []
    for vector in STORE["messages"]:
        batch = rig.begin(vector["storeTimestamp"])
        key = vector["topic"], vector["queueId"]
        add_vector(batch, queues.setdefault(key, queue(*key)), vector)
        batch.write()
        queued = [unit.hex() for _, unit in batch.units.runs.values()]
        units.append(queued[0] if queued else None)
    data = b"".join(bytes.fromhex(vector["recordHex"]) for vector in STORE["messages"])
    assert rig.written(0)[: len(data)] == data
    assert not any(rig.written(0)[len(data) :])
    assert units == [vector["consumeQueueUnitHex"] for vector in STORE["messages"]]


def test_the_end_of_a_file_is_rocketmqs_blank_record() -> None:
    blank = STORE["blankRecord"]
    rig = LogRig(file_size=blank["commitLogFileSize"])
    target = queue()
    batch = rig.begin()
    add(batch, target, b"")
    overhead = batch.size
    batch.write()
    add(rig.begin(), target, bytes(blank["atOffset"] - 2 * overhead))
    rig.batch.write()
    assert rig.files[0].wrote_position == blank["atOffset"]
    assert add(rig.begin(), target) == blank["commitLogFileSize"], "the record is in the next file"
    rig.batch.write()
    assert rig.written(0)[blank["atOffset"] :].hex() == blank["hex"]
    assert rig.files[0].wrote_position == rig.files[0].size
    assert read_record(rig.files[1].view, 0).queue_offset == 2


def test_a_record_leaves_eight_bytes_for_the_mark() -> None:
    rig = LogRig()
    target = queue()
    batch = rig.begin()
    add(batch, target, b"")
    overhead = batch.size
    batch.write()
    fits = 4096 - overhead - 8 - overhead
    add(rig.begin(), target, bytes(fits))
    rig.batch.write()
    assert (len(rig.files), rig.files[0].wrote_position) == (1, 4088)
    other = LogRig()
    add(other.begin(), queue(), b"")
    other.batch.write()
    add(other.begin(), target, bytes(fits + 1))
    other.batch.write()
    assert len(other.files) == 2


def test_one_batch_over_three_files_takes_one_write_each() -> None:
    rig = LogRig()
    rig.next_file()
    target = queue()
    writes = rig.disk.calls["pwrite"]
    batch = rig.begin()
    places = [add(batch, target, bytes([number]) * 1500) for number in range(6)]
    assert len(rig.files) == 1, "what it rolled into is not the log's before the write"
    end = batch.write()
    assert rig.disk.calls["pwrite"] == writes + 3
    assert [place // 4096 for place in places] == [0, 0, 1, 1, 2, 2]
    assert [file.wrote_position for file in rig.files] == [4096, 4096, end - 2 * 4096]
    for number, place in enumerate(places):
        mapped = rig.files[place // 4096]
        record = read_record(mapped.view, place % 4096, physical_offset=place)
        assert (record.status, record.queue_offset) == (RecordStatus.MESSAGE, number)
        assert decode_message(mapped.view, place % 4096).body == bytes([number]) * 1500
    blank = read_record(rig.files[0].view, places[1] + (end - places[5]))
    assert blank.status is RecordStatus.BLANK


def test_reserve_keeps_a_batch_in_one_file() -> None:
    rig = LogRig()
    target = queue()
    add(rig.begin(), target, bytes(1500))
    rig.batch.write()
    batch = rig.begin()
    batch.reserve(3000)
    places = [add(batch, target, bytes(900)) for _ in range(3)]
    batch.write()
    assert places[0] == 4096
    assert places[-1] < 2 * 4096
    assert rig.files[0].wrote_position == 4096, "its rest is blank"


@pytest.mark.parametrize("error", [StoreFullError("full"), OSError(errno.EIO, "broken")])
def test_a_refused_file_takes_nothing_and_the_rest_is_stored(error: Exception) -> None:
    rig = LogRig()
    target = queue()
    rig.next_file()
    batch = rig.begin()
    add(batch, target, bytes(1500))
    add(batch, target, bytes(1500))
    rig.error = error
    with pytest.raises(type(error)):
        add(batch, target, bytes(1500))
    with pytest.raises(type(error)):
        batch.reserve(1500)
    assert (batch.units.count, target.next_offset) == (2, 2)
    small = add(batch, target, b"fits")
    end = batch.write()
    assert read_record(rig.files[0].view, small).queue_offset == 2
    assert rig.files[0].wrote_position == end
    assert not any(rig.written(0)[end:]), "no blank record without a file behind it"


def test_the_first_message_of_an_empty_log_makes_its_first_file() -> None:
    rig = LogRig()
    assert rig.begin().write() == 0, "nothing to write, nowhere to write it"
    assert add(rig.begin(), queue()) == 0
    assert rig.batch.write() == rig.files[0].wrote_position


@pytest.mark.parametrize(
    ("born", "store", "bits"),
    [
        ("10.0.0.1", "127.0.0.1", 0x00),
        ("2001:db8::9", "127.0.0.1", 0x10),
        ("10.0.0.1", "::1", 0x20),
        ("2001:db8::9", "::1", 0x30),
    ],
)
@pytest.mark.parametrize("claimed", [0, 0x30])
def test_the_hosts_decide_their_flag_bits_whatever_a_client_claims(
    born: str, store: str, bits: int, claimed: int
) -> None:
    rig = LogRig()
    hosts = HostAddress(born, 5000), HostAddress(store, 10911)
    batch = rig.begin()
    batch.add(queue(), b"v6", b"TAGS\x01A", NOW_MS, *(host.pack() for host in hosts), 65,
              sys_flag=claimed)  # fmt: skip
    add(batch, queue(), b"next")
    end = batch.write()
    message = decode_message(rig.files[0].view, 0)
    assert (message.born_host, message.store_host) == hosts
    assert (message.sys_flag, message.body, message.tags) == (bits, b"v6", "A")
    follows = decode_message(rig.files[0].view, message.store_size)
    assert (follows.body, message.store_size + follows.store_size) == (b"next", end)


@pytest.mark.parametrize(("kind", "in_queue"), [(0, True), (4, False), (8, True), (12, False)])
def test_prepared_and_rolled_back_messages_enter_no_queue(kind: int, in_queue: bool) -> None:
    rig = LogRig()
    target = queue()
    add(rig.begin(), target, sys_flag=kind, properties=b"KEYS\x01k")
    rig.batch.write()
    assert [first for first, _ in rig.batch.units.runs.values()] == [0] * in_queue
    entries = len(rig.batch.units.entries) // ENTRY_SIZE
    assert entries == (kind != 12), "prepared ones enter the key index"
    assert rig.batch.units.count == 1, "it is in the log all the same"


def test_a_reused_batch_forgets_the_one_before() -> None:
    rig = LogRig()
    target = queue()
    add(rig.begin(), target, b"one")
    first_end = rig.batch.write()
    units = rig.batch.units
    add(rig.begin(), target, b"two")
    rig.batch.write()
    assert rig.batch.units.count == 1
    assert UNIT.unpack(rig.batch.units.runs[target][1])[0] == first_end
    assert UNIT.unpack(units.runs[target][1])[0] == 0, "who parked it keeps it"


def test_a_write_that_is_taken_in_part_moves_nothing() -> None:
    rig = LogRig()
    rig.next_file()
    add(rig.begin(), queue())
    rig.disk.fail("pwrite", short=50)
    with pytest.raises(OSError, match="Input/output error"):
        rig.batch.write()
    assert rig.files[0].wrote_position == 0


def test_a_write_that_is_taken_in_two_parts_is_stored() -> None:
    rig = LogRig()
    rig.next_file()
    add(rig.begin(), queue(), b"body")
    rig.disk.fail("pwrite", short=50, times=0)
    end = rig.batch.write()
    assert rig.files[0].wrote_position == end
    assert decode_message(rig.files[0].view, 0).body == b"body"


def test_records_with_ipv6_hosts_survive_a_kill() -> None:
    host = HostAddress("2001:db8::1", 10911).pack()
    rig = StoreRig().start()
    for number in range(5):
        rig.put("T", 0, b"%d" % number, born_host=host, store_host=(HOST, host)[number % 2])
    again = StoreRig(rig.files.snapshot()).start()
    assert again.store.recovery is not None
    assert again.store.recovery.rebuilt == 5
    found = again.store.get_message("T", 0, 0, 32)
    messages = decode_messages(b"".join(found.views))
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert {message.born_host.ip for message in messages} == {"2001:db8::1"}
