"""From a parked record to its copy: what is kept, and which records are refused."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.delay.delayed_message import ParkedReader, Place, copy_to, delivered
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.tags_code import tags_code
from tests.store.support import StoreRig, inner

TOPIC = "SCHEDULE_TOPIC_XXXX"
V4, V6 = HostAddress("192.0.2.7", 1).pack(), HostAddress("2001:db8::1", 2).pack()
TEXT = b"TAGS\x01a\x02REAL_TOPIC\x01T\x02REAL_QID\x017"


def record(**changes: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_id": 3, "flag": 5, "queue_offset": 9, "physical_offset": 1000, "sys_flag": 1,
        "born_timestamp": 11, "born_host": V4, "store_timestamp": 12, "store_host": V4,
        "reconsume_times": 2, "prepared_transaction_offset": 0, "body": b"body",
        "topic": TOPIC.encode(), "properties": TEXT, **changes,
    }  # fmt: skip
    return encode_record(**values)


def reader(topic: str = TOPIC, queue_id: int = 3) -> ParkedReader:
    return ParkedReader(StoreRig().store.commit_log, topic, queue_id)


@pytest.mark.parametrize(("born", "store", "bits"), [(V4, V4, 0), (V6, V4, 0x10), (V4, V6, 0x20)])
def test_the_copy_has_what_the_record_has(born: bytes, store: bytes, bits: int) -> None:
    data = record(born_host=born, store_host=store, sys_flag=1 | bits)
    parked = reader().parse(data, Place(1000, len(data), 9))
    copy = delivered(parked)
    assert (copy.topic, copy.queue_id, copy.body, copy.properties) == ("T", 7, b"body", TEXT)
    assert (copy.born_host, copy.store_host, copy.born_timestamp) == (born, store, 11)
    assert (copy.flag, copy.reconsume_times, copy.tags_code) == (5, 2, tags_code("a"))
    assert parked.store_timestamp == 12
    other = copy_to(parked, "U", 1, b"TAGS\x01b")
    assert (other.topic, other.queue_id, other.tags_code) == ("U", 1, tags_code("b"))
    assert delivered(parked, b"x\x01y").properties == b"x\x01y"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"physical_offset": 1001}, "damaged"),
        ({"queue_offset": 8}, "message 8 of queue 3"),
        ({"queue_id": 4}, "queue 4"),
        ({"topic": b"SCHEDULE_TOPIC_XXXY"}, "XXXY"),
        ({"properties": b"a\x01\x00"}, "damaged"),
    ],
)
def test_another_record_is_refused(changes: dict[str, Any], why: str) -> None:
    data = record(**changes)
    with pytest.raises(ValueError, match=why):
        reader().parse(data, Place(1000, len(data), 9))


def test_a_damaged_or_missing_record_is_refused() -> None:
    data = record()
    for position in (4, 95, len(data) - len(TEXT) - 1):
        broken = bytearray(data)
        broken[position] ^= 1
        with pytest.raises(ValueError):
            reader().parse(bytes(broken), Place(1000, len(data), 9))
    for size in range(0, len(data), 7):
        with pytest.raises(ValueError):
            reader().parse(data[:size], Place(1000, len(data), 9))
    with pytest.raises(ValueError, match="no sound record"):
        reader().parse(None, Place(1000, len(data), 9))


def test_records_are_read_from_the_log() -> None:
    rig = StoreRig().start()
    result = rig.put(TOPIC, 2, b"body", properties=TEXT)
    assert result is not None
    (unit,) = rig.store.queue_units(TOPIC, 2, 0, 1)
    place = Place(unit.commit_offset, unit.record_size, 0)
    parked = ParkedReader(rig.store.commit_log, TOPIC, 2)
    assert parked.read(place).body == inner(body=b"body").body
    with pytest.raises(ValueError, match="no sound record"):
        parked.read(place._replace(physical_offset=1 << 40))
    with pytest.raises(ValueError):
        parked.read(place._replace(physical_offset=place.physical_offset + 1))
