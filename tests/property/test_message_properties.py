"""Messages under random input: what is written is read, and nothing but the protocol's errors
comes out.

Hypothesis prints the failing example and how to reproduce it.
"""

import contextlib
import string

from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq.protocol.batch import BatchItem, encode_batch, split_batch
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE, validate_group, validate_topic
from skylarkmq.protocol.host_address import unpack_host
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.message_id import decode_offset_message_id, offset_message_id
from skylarkmq.protocol.properties import (
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
    tag_in,
    with_property,
    without_property,
)
from skylarkmq.protocol.record import (
    RecordStatus,
    decode_message,
    decode_messages,
    encode_blank,
    encode_record,
    read_record,
    record_size,
)
from skylarkmq.protocol.tags_code import index_key_hash, java_string_hash
from tests.protocol.message_vectors import RecordFields
from tests.support.amounts import examples

# The time of an example says nothing on a busy machine.
CALM = examples(40, 200)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Few letters and many separators, so that texts collide, repeat and break off.
TEXTS = st.text(alphabet="aTGSé\x01\x02", max_size=24)
PARTS = st.text(alphabet="abTAGS é订😀", min_size=1, max_size=12)
MAPS = st.dictionaries(PARTS, PARTS, max_size=6)
NAMES = st.sampled_from(["a", "T", "TAGS", "é", "G", "aa"])
TOPICS = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60
)
SAFE_TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0\x01\x02"),
    min_size=1,
    max_size=20,
)


@st.composite
def records(draw: st.DrawFn) -> RecordFields:
    """The arguments of `encode_record`."""
    sys_flag = draw(INT32)
    return RecordFields(
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp=draw(INT64),
        born_host=draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x10 else 8],
        store_timestamp=draw(INT64),
        store_host=draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x20 else 8],
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=draw(st.binary(max_size=1200)),
        topic=draw(TOPICS).encode()[:127].decode("utf-8", "ignore").encode(),
        properties=encode_properties(draw(MAPS)).encode(),
    )


@CALM
@given(MAPS)
def test_a_map_of_properties_survives_its_text(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text + "\x02") == properties
    for name, value in properties.items():
        assert find_property(text.encode(), name.encode() + b"\x01") == value.encode()


@CALM
@given(TEXTS, NAMES)
@example("TAGS\x01a\x02TAGS\x01", "TAGS")
@example("a\x01\x01", "a")
def test_searching_sees_what_reading_sees(text: str, name: str) -> None:
    found = find_property(text.encode(), name.encode() + b"\x01")
    assert (None if found is None else found.decode()) == decode_properties(text).get(name)


PIECES = st.sampled_from(["TAGS", "XTAGS", "\x01", "\x02", "a", "TAGS\x01b", "\x02TAGS\x01"])


@CALM
@given(st.lists(PIECES, max_size=12).map("".join))
@example("TAGS\x01a\x02TAGS\x01")
def test_the_tag_is_the_one_that_reading_sees(text: str) -> None:
    assert tag_in(text) == decode_properties(text).get("TAGS")


@CALM
@given(TEXTS, NAMES, st.sampled_from(["", "v", "vé"]))
def test_setting_and_taking_out_touch_one_name_alone(text: str, name: str, value: str) -> None:
    before = decode_properties(text)
    before.pop(name, None)
    without = without_property(text.encode(), name.encode())
    assert decode_properties(without.decode()) == before
    changed = with_property(text.encode(), name.encode(), value.encode())
    assert decode_properties(changed.decode()) == before | ({name: value} if value else {})


@CALM
@given(TEXTS, TEXTS)
def test_joined_texts_read_as_one_after_the_other(inner: str, batch_level: str) -> None:
    joined = join_properties(inner.encode(), batch_level.encode()).decode()
    assert decode_properties(joined) == decode_properties(inner) | decode_properties(batch_level)


@CALM
@given(records(), st.integers(0, 600), st.binary(max_size=30))
def test_a_record_survives(fields: RecordFields, front: int, behind: bytes) -> None:
    data = encode_record(**fields)
    body, topic, properties = fields["body"], fields["topic"], fields["properties"]
    size = record_size(len(body), len(topic), len(properties), fields["sys_flag"])
    assert len(data) == size
    buffer = memoryview(b"\xaa" * front + data + behind)
    view = read_record(buffer, front)
    assert (view.status, view.size) == (RecordStatus.MESSAGE, len(data))
    assert bytes(buffer[view.body_position : view.body_position + view.body_size]) == body
    assert (view.topic, view.properties) == (topic, properties)
    message = decode_message(buffer, front)
    assert message.queue_id == view.queue_id == fields["queue_id"]
    assert message.queue_offset == view.queue_offset == fields["queue_offset"]
    assert message.physical_offset == view.physical_offset == fields["physical_offset"]
    assert message.sys_flag == view.sys_flag == fields["sys_flag"]
    assert message.store_timestamp == view.store_timestamp == fields["store_timestamp"]
    assert (message.flag, message.body) == (fields["flag"], body)
    assert message.reconsume_times == fields["reconsume_times"]
    assert message.prepared_transaction_offset == fields["prepared_transaction_offset"]
    assert message.born_host == unpack_host(fields["born_host"])
    assert message.store_host == unpack_host(fields["store_host"])
    assert message.topic.encode() == topic
    assert message.properties == decode_properties(properties.decode())


@CALM
@given(st.binary(max_size=700), st.integers(0, 700), st.booleans())
def test_random_bytes_are_no_message_and_no_trap(data: bytes, position: int, view: bool) -> None:
    buffer = memoryview(data) if view else data
    assert read_record(buffer, position).status is not RecordStatus.MESSAGE
    try:
        decode_messages(data)
    except RemoteProtocolError:
        pass
    else:
        assert data == b""


@CALM
@given(records(), st.data())
def test_damage_is_noticed_or_harmless(fields: RecordFields, data: st.DataObject) -> None:
    good = encode_record(**fields)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(good) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        damaged[start : start + len(piece)] = piece[: len(good) - start]
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    buffer = bytes(damaged)
    view = read_record(buffer, 0)
    assert view.size >= 0
    try:
        message = decode_message(buffer)
    except RemoteProtocolError:
        assert view.status is not RecordStatus.MESSAGE
    else:
        # Recovery takes zeros in properties that nothing follows for a write that broke off.
        torn = view.status is RecordStatus.TORN and b"\0" in view.topic + view.properties
        assert torn or view.status is RecordStatus.MESSAGE
        assert message.store_size == view.size <= len(buffer)
        assert message.body == buffer[view.body_position : view.body_position + view.body_size]


@CALM
@given(records(), st.integers(0, 2000), st.data())
def test_lost_sectors_are_torn_never_corrupt(
    fields: RecordFields, front: int, data: st.DataObject
) -> None:
    fields["body"] = bytes(byte or 1 for byte in fields["body"])
    record = encode_record(**fields)
    end = front + len(record)
    file = bytearray(b"\xaa" * front + record + bytes(-end % 512))
    first_whole = front + -front % 512
    lost = [
        sector
        for sector in range(first_whole, len(file), 512)
        if sector < end and data.draw(st.booleans())
    ]
    for sector in lost:
        file[sector : sector + 512] = bytes(512)
    view = read_record(bytes(file), front)
    if bytes(file[front:end]) == record:
        assert view.status is RecordStatus.MESSAGE
    elif any(file[front : front + 8]):
        # Without body, topic and properties a loss leaves zeros in numbers that nothing checks.
        empty = not (fields["body"] or fields["topic"] or fields["properties"])
        assert view.status is RecordStatus.TORN or (empty and view.status is RecordStatus.MESSAGE)
    else:
        assert view.status is RecordStatus.UNWRITTEN


@CALM
@given(st.integers(8, 1 << 20), st.binary(max_size=40))
def test_a_blank_is_read_whatever_follows(size: int, leftover: bytes) -> None:
    view = read_record(encode_blank(size) + leftover, 0)
    whole = 8 + len(leftover) >= size
    assert view.status is (RecordStatus.BLANK if whole else RecordStatus.TORN)
    assert view.size == size


ITEMS = st.builds(BatchItem, INT32, st.binary(max_size=40), st.binary(max_size=40))


@CALM
@given(st.lists(ITEMS, min_size=1, max_size=8))
def test_a_batch_survives(items: list[BatchItem]) -> None:
    assert split_batch(encode_batch(items)) == items


@CALM
@given(st.lists(ITEMS, min_size=1, max_size=4), st.data())
def test_a_damaged_batch_is_refused_or_adds_up(items: list[BatchItem], data: st.DataObject) -> None:
    damaged = bytearray(encode_batch(items))
    start = data.draw(st.integers(0, len(damaged)))
    piece = data.draw(st.binary(max_size=6))
    damaged[start : start + data.draw(st.integers(0, 6))] = piece
    try:
        split = split_batch(bytes(damaged))
    except RemoteProtocolError:
        return
    assert len(encode_batch(split)) == len(damaged)


@CALM
@given(st.binary(max_size=200))
def test_random_bytes_are_no_batch(data: bytes) -> None:
    try:
        items = split_batch(data)
    except RemoteProtocolError:
        return
    assert len(encode_batch(items)) == len(data)


@CALM
@given(st.text(max_size=600), st.text(max_size=40))
def test_javas_hash_by_its_definition(text: str, key: str) -> None:
    code = 0
    units = (text + "#" + key).encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    assert java_string_hash(text + "#" + key) == signed
    assert index_key_hash(text, key) == (0 if signed == -(1 << 31) else abs(signed))


@CALM
@given(st.sampled_from([4, 16]), st.binary(min_size=16, max_size=16), st.integers(0, 65535), INT64)
def test_offset_ids_both_ways(size: int, ip: bytes, port: int, offset: int) -> None:
    offset = abs(offset) & ((1 << 63) - 1)
    host = ip[:size] + port.to_bytes(4, "big")
    text = offset_message_id(host, offset)
    assert len(text) == (32 if size == 4 else 56)
    assert decode_offset_message_id(text) == (unpack_host(host), offset)


@CALM
@given(st.one_of(st.text(max_size=60), st.text(alphabet="0123456789abcdefABCDEFg, _", max_size=60)))
def test_a_random_text_is_an_offset_id_or_refused(text: str) -> None:
    try:
        host, offset = decode_offset_message_id(text)
    except RemoteProtocolError:
        return
    packed = bytes.fromhex(text)[:-8]
    assert host == unpack_host(packed)
    assert offset_message_id(packed, offset) == text.upper()


LEGAL = frozenset(string.ascii_letters + string.digits + "%|-_")


@CALM
@given(st.one_of(st.text(max_size=140), st.text(alphabet="".join(sorted(LEGAL)), max_size=140)))
@example("a\n")
@example("\u0661")
def test_a_name_is_legal_by_its_characters_and_length(name: str) -> None:
    legal = bool(name) and set(name) <= LEGAL
    assert (validate_topic(name) is None) == (legal and len(name) <= MAX_TOPIC_SIZE)
    assert (validate_group(name) is None) == (legal and len(name) <= 120)


@CALM
@given(st.binary(max_size=300), st.sampled_from([0x1, 0x101, 0x201, 0x301, 0x401]))
def test_random_bytes_do_not_open(data: bytes, sys_flag: int) -> None:
    for body in (data, b"\x04\x22\x4d\x18" + data, b"\x28\xb5\x2f\xfd" + data, b"\x78\x9c" + data):
        with contextlib.suppress(RemoteProtocolError):
            assert len(decompress(body, sys_flag, 4096)) <= 4096


@CALM
@given(
    st.binary(max_size=50),
    st.none() | SAFE_TEXT,
    st.dictionaries(SAFE_TEXT.map("x{}".format), SAFE_TEXT, max_size=4),
    st.integers(0, 18),
    INT32,
)
def test_a_message_reaches_the_batchs_other_end(
    body: bytes, tags: str | None, properties: dict[str, str], delay_level: int, flag: int
) -> None:
    message = Message(
        "T", body, tags=tags, properties=properties, delay_level=delay_level, flag=flag
    )
    (item,) = split_batch(encode_batch([message]))
    assert (item.flag, item.body) == (flag, body)
    assert decode_properties(item.properties.decode()) == message.to_properties()
