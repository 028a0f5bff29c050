"""The record codec against RocketMQ's bytes, and against each cut and each flipped bit of them."""

import struct
from typing import Any

import pytest

from skylarkmq.common.crc import body_crc
from skylarkmq.protocol import record
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.message import HostAddress
from skylarkmq.protocol.record import (
    RecordStatus,
    decode_message,
    decode_messages,
    encode_blank,
    encode_record,
    read_record,
    record_size,
)
from skylarkmq.protocol.tags_code import cached_tags_code
from tests.protocol.message_vectors import (
    FRAMES,
    IPV6_RECORD,
    PLAIN_RECORD,
    RECORDS,
    STORE,
    RecordFields,
    record_fields,
)

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def fields(**changes: Any) -> RecordFields:
    plain = record_fields(STORE["messages"][0])
    plain.update(changes)  # type: ignore[typeddict-item]
    return plain


@pytest.mark.parametrize("vector", RECORDS)
def test_the_bytes_are_rocketmqs(vector: dict[str, Any]) -> None:
    encoded = encode_record(**record_fields(vector))
    assert encoded.hex() == vector["recordHex"]
    assert len(encoded) == vector["size"]


@pytest.mark.parametrize("vector", RECORDS)
@pytest.mark.parametrize("front", [0, 1, 512, 777])
def test_a_record_is_read_wherever_it_stands(vector: dict[str, Any], front: int) -> None:
    expected = record_fields(vector)
    data = memoryview(b"\xee" * front + bytes.fromhex(vector["recordHex"]) + b"\xdd" * 40)
    view = read_record(data, front, physical_offset=vector["physicalOffset"])
    assert view.status is RecordStatus.MESSAGE
    assert view.why == ""
    assert view.size == vector["size"]
    assert view.queue_id == expected["queue_id"]
    assert view.queue_offset == expected["queue_offset"]
    assert view.physical_offset == expected["physical_offset"]
    assert view.sys_flag == expected["sys_flag"]
    assert view.born_timestamp == expected["born_timestamp"]
    assert view.store_timestamp == expected["store_timestamp"]
    assert view.prepared_transaction_offset == expected["prepared_transaction_offset"]
    assert view.topic == expected["topic"]
    assert view.properties == expected["properties"]
    assert view.body_size == len(expected["body"])
    body_end = view.body_position + view.body_size
    assert bytes(data[view.body_position : body_end]) == expected["body"]
    tags = dict(vector["properties"]).get("TAGS")
    assert view.tags == (None if tags is None else tags.encode())


@pytest.mark.parametrize("vector", STORE["messages"])
def test_a_view_holds_what_the_queue_unit_needs(vector: dict[str, Any]) -> None:
    view = read_record(bytes.fromhex(vector["recordHex"]), 0)
    code = cached_tags_code(view.tags) if view.tags else 0
    if vector["topic"] == SCHEDULE_TOPIC:
        code = vector["tagsCode"]
    unit = struct.pack(">qiq", view.physical_offset, view.size, code).hex()
    # A prepared message has no unit.
    assert vector["consumeQueueUnitHex"] in (unit, None)


@pytest.mark.parametrize("vector", RECORDS)
def test_a_record_is_decoded_to_a_message(vector: dict[str, Any]) -> None:
    expected = record_fields(vector)
    data = bytes.fromhex(vector["recordHex"])
    message = decode_message(memoryview(b"\x00" * 9 + data + b"\xff"), 9)
    assert message.topic == vector["topic"]
    assert message.queue_id == expected["queue_id"]
    assert message.flag == expected["flag"]
    assert message.queue_offset == expected["queue_offset"]
    assert message.physical_offset == expected["physical_offset"]
    assert message.sys_flag == expected["sys_flag"]
    assert message.born_timestamp == expected["born_timestamp"]
    assert message.born_host == tuple(vector["bornHost"])
    assert message.store_timestamp == expected["store_timestamp"]
    assert message.store_host == tuple(vector["storeHost"])
    assert message.reconsume_times == expected["reconsume_times"]
    assert message.prepared_transaction_offset == expected["prepared_transaction_offset"]
    assert message.body == expected["body"]
    assert type(message.body) is bytes
    assert message.properties == dict(vector["properties"])
    assert message.body_crc == vector["bodyCRC"] == body_crc(message.body)
    assert message.store_size == len(data)


@pytest.mark.parametrize("name", ["stored_record_ipv4", "stored_record_ipv6"])
def test_the_records_of_the_java_encoder(name: str) -> None:
    data = bytes.fromhex(FRAMES[name]["hex"])
    decoded = FRAMES[name]["decoded"]
    message = decode_message(data)
    assert message.topic == decoded["topic"]
    assert message.body.decode() == decoded["body_utf8"]
    assert message.properties == decoded["properties"]
    assert message.sys_flag == decoded["sysFlag"]
    assert message.body_crc == decoded["bodyCRC"]
    assert message.store_size == decoded["totalSize"] == len(data)
    assert str(message.born_host) == decoded["bornHost"]
    assert str(message.store_host) == decoded["storeHost"]
    assert message.offset_msg_id == decoded["offsetMsgId"]
    assert (
        encode_record(
            queue_id=message.queue_id,
            flag=message.flag,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host.pack(),
            store_timestamp=message.store_timestamp,
            store_host=message.store_host.pack(),
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            body=message.body,
            topic=message.topic.encode(),
            properties="\x02".join(f"{k}\x01{v}" for k, v in message.properties.items()).encode(),
        )
        == data
    )


def test_the_pulled_frame_ends_in_a_record() -> None:
    frame = bytes.fromhex(FRAMES["pull_response_rocketmq"]["hex"])
    header_size = int.from_bytes(frame[5:8], "big")
    (message,) = decode_messages(frame[8 + header_size :])
    assert message.topic == "TopicTest"


@pytest.mark.parametrize("data", [PLAIN_RECORD, IPV6_RECORD])
def test_a_cut_record_is_torn_at_every_byte(data: bytes) -> None:
    for size in range(len(data)):
        cut = data[:size]
        view = read_record(cut, 0)
        expected = RecordStatus.TORN if any(cut) else RecordStatus.UNWRITTEN
        assert view.status is expected, size
        assert read_record(data, 0, limit=size) == view
        with pytest.raises(RemoteProtocolError):
            decode_message(cut)


@pytest.mark.parametrize("data", [PLAIN_RECORD, IPV6_RECORD])
def test_no_flipped_bit_escapes_where_something_watches(data: bytes) -> None:
    offset = struct.unpack_from(">q", data, record.PHYSICAL_OFFSET_POSITION)[0]
    layout = record.FIXED_IPV4 if data is PLAIN_RECORD else record.FIXED_IPV6
    body_size = struct.unpack_from(">i", data, layout.size - 4)[0]
    topic_position = layout.size + body_size
    properties_position = topic_position + 1 + data[topic_position]
    watched = [
        *range(12),
        *range(record.PHYSICAL_OFFSET_POSITION, record.SYS_FLAG_POSITION),
        *range(layout.size - 4, topic_position + 1),
        properties_position,
        properties_position + 1,
    ]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            view = read_record(bytes(flipped), 0, physical_offset=offset)
            if position in watched:
                assert view.status is not RecordStatus.MESSAGE, (position, bit)
                assert view.why
            hosts_bits = position == record.SYS_FLAG_POSITION + 3 and bit in (4, 5)
            if not hosts_bits and position not in watched:
                assert view.status is RecordStatus.MESSAGE, (position, bit)
                assert view.size == len(data)
            try:
                decode_message(bytes(flipped))
            except RemoteProtocolError as error:
                assert error.response_code == 1


@pytest.mark.parametrize("magic", [0, 0xDAA320A6, 0xDAA320A8, 0xCBD43194, 0xAABBCCDD])
def test_another_magic_is_no_message(magic: int) -> None:
    data = bytearray(PLAIN_RECORD)
    struct.pack_into(">I", data, record.MAGIC_POSITION, magic)
    with pytest.raises(RemoteProtocolError, match=f"its magic is {magic:#010x}"):
        decode_message(bytes(data))


def test_a_wrong_checksum_can_be_passed_over() -> None:
    flipped = bytearray(PLAIN_RECORD)
    flipped[record.FIXED_IPV4_SIZE] ^= 1
    view = read_record(flipped, 0)  # type: ignore[arg-type]
    assert (view.status, view.size) == (RecordStatus.CORRUPT, len(PLAIN_RECORD))
    assert "checksum" in view.why
    assert view.topic == b"TopicTest"
    assert read_record(bytes(flipped), 0, check_crc=False).status is RecordStatus.MESSAGE
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode_message(bytes(flipped))
    assert decode_message(bytes(flipped), check_crc=False).body[1:] == b"ello SkylarkMQ 0"


def test_a_record_that_lies_elsewhere_is_refused() -> None:
    view = read_record(PLAIN_RECORD, 0, physical_offset=1024)
    assert (view.status, view.size) == (RecordStatus.CORRUPT, len(PLAIN_RECORD))
    assert view.physical_offset == 0
    assert "1024" in view.why
    assert read_record(PLAIN_RECORD, 0, physical_offset=0).status is RecordStatus.MESSAGE


def test_records_back_to_back() -> None:
    data = PLAIN_RECORD + IPV6_RECORD + PLAIN_RECORD
    assert [message.store_size for message in decode_messages(data)] == [204, 149, 204]
    assert decode_messages(b"") == []
    for cut in (1, 203, 205, 352, len(data) - 1):
        with pytest.raises(RemoteProtocolError):
            decode_messages(data[:cut])
    with pytest.raises(RemoteProtocolError, match="byte 204"):
        decode_messages(PLAIN_RECORD + b"\x00")


def test_positions_before_the_buffer_are_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(PLAIN_RECORD, -len(PLAIN_RECORD))


def test_the_blank_record() -> None:
    blank = STORE["blankRecord"]
    data = bytes.fromhex(blank["hex"])
    assert data == encode_blank(blank["totalSize"]).ljust(blank["totalSize"], b"\x00")
    file = memoryview(bytes(blank["atOffset"]) + data)
    view = read_record(file, blank["atOffset"], physical_offset=blank["atOffset"])
    assert (view.status, view.size) == (RecordStatus.BLANK, blank["totalSize"])
    assert len(file) == blank["commitLogFileSize"]


@pytest.mark.parametrize("leftover", [b"", b"\x00" * 50, b"\xab" * 200])
def test_bytes_after_a_blank_mean_nothing(leftover: bytes) -> None:
    size = 8 + len(leftover)
    view = read_record(encode_blank(size) + leftover, 0)
    assert (view.status, view.size) == (RecordStatus.BLANK, size)


def test_blanks_have_room_for_themselves() -> None:
    with pytest.raises(LocalProtocolError):
        encode_blank(7)


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b"t" * 128},
        {"properties": b"p" * 32768},
        {"born_host": bytes(20)},
        {"store_host": bytes(20)},
        {"sys_flag": 0x10},
        {"sys_flag": 0x20},
        {"born_host": bytes(7)},
        {"queue_id": 1 << 31},
        {"queue_offset": 1 << 63},
        {"flag": -(1 << 31) - 1},
    ],
)
def test_what_fits_into_no_record_is_a_local_error(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(**fields(**changes))


@pytest.mark.parametrize(
    ("topic", "properties"), [(b"t" * 127, b"p" * 32767), (b"", b""), (b"t", b"")]
)
def test_the_limits_of_the_lengths_are_legal(topic: bytes, properties: bytes) -> None:
    data = encode_record(**fields(topic=topic, properties=properties, body=b""))
    view = read_record(data, 0)
    assert view.status is RecordStatus.MESSAGE
    assert (view.topic, view.properties, view.body_size) == (topic, properties, 0)
    assert len(data) == record_size(0, len(topic), len(properties), 0) == view.size


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_each_mixture_of_hosts(sys_flag: int) -> None:
    born = HostAddress("2001:db8::7", 1) if sys_flag & 0x10 else HostAddress("10.0.0.7", 1)
    stored = HostAddress("2001:db8::8", 65535) if sys_flag & 0x20 else HostAddress("10.0.0.8", 2)
    data = encode_record(
        **fields(sys_flag=sys_flag, born_host=born.pack(), store_host=stored.pack())
    )
    message = decode_message(data)
    assert (message.born_host, message.store_host) == (born, stored)
    view = read_record(data, 0)
    plain = fields()
    assert (view.store_timestamp, view.body_size) == (plain["store_timestamp"], len(plain["body"]))
    assert view.size == record_size(len(plain["body"]), 9, len(plain["properties"]), sys_flag)


def test_the_appenders_own_packing_makes_the_same_bytes() -> None:
    plain = fields()
    parts = (
        record.FIXED_IPV4.pack(
            len(PLAIN_RECORD),
            record.MESSAGE_MAGIC,
            body_crc(plain["body"]),
            plain["queue_id"],
            plain["flag"],
            plain["queue_offset"],
            plain["physical_offset"],
            plain["sys_flag"],
            plain["born_timestamp"],
            plain["born_host"],
            plain["store_timestamp"],
            plain["store_host"],
            plain["reconsume_times"],
            plain["prepared_transaction_offset"],
            len(plain["body"]),
        ),
        plain["body"],
        bytes([len(plain["topic"])]) + plain["topic"],
        record.PROPERTIES_SIZE.pack(len(plain["properties"])),
        plain["properties"],
    )
    assert b"".join(parts) == PLAIN_RECORD


def test_positions_follow_from_the_layout() -> None:
    data = encode_record(
        **fields(queue_offset=1, physical_offset=2, sys_flag=0, born_timestamp=3, store_timestamp=4)
    )
    for position, value in (
        (record.QUEUE_OFFSET_POSITION, 1),
        (record.PHYSICAL_OFFSET_POSITION, 2),
        (record.BORN_TIMESTAMP_POSITION, 3),
        (record.STORE_TIMESTAMP_POSITION_IPV4, 4),
    ):
        assert struct.unpack_from(">q", data, position) == (value,)
    born = HostAddress("::1", 9).pack()
    ipv6 = encode_record(**fields(sys_flag=0x10, born_host=born, store_timestamp=4))
    assert struct.unpack_from(">q", ipv6, record.STORE_TIMESTAMP_POSITION_IPV6) == (4,)


def test_text_that_is_no_utf8_is_replaced_as_in_java() -> None:
    data = encode_record(**fields(topic=b"T\xff", properties=b"TAGS\x01\xff"))
    message = decode_message(data)
    assert (message.topic, message.tags) == ("T�", "�")
    assert read_record(data, 0).tags == b"\xff"
