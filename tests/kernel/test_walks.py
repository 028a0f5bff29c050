"""A run of records in the log is found alike on both roads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.tags_code import topic_prefix_code
from skylarkmq.store.log.log_walk import RUN_MAX, plain_records, sound_records
from skylarkmq.store.units import Units
from tests.store.support import BORN, HOST
from tests.support.amounts import examples

compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

START = 2**40
HOSTS = st.sampled_from([BORN, BORN, BORN, HOST, bytes(range(20))])


def in_python(*args: Any) -> Any:
    return kernel.twins["plain_records"](*args)


def record(number: int, position: int, born_host: bytes, body: bytes, **changes: Any) -> bytes:
    hosts = (len(born_host) == 20) << 4
    values: dict[str, Any] = {
        "queue_id": number,
        "flag": 0,
        "queue_offset": 2**33 + number,
        "physical_offset": START + position,
        "sys_flag": hosts,
        "born_timestamp": 1,
        "born_host": born_host,
        "store_timestamp": 2**41,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": body,
        "topic": b"TopicTest",
        "properties": b"",
        **changes,
    }
    return encode_record(**values)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Records that follow each other; often one byte of them is wrong."""
    data = bytearray()
    for number in range(draw(st.integers(0, 4))):
        data += record(
            number,
            len(data),
            draw(HOSTS),
            draw(st.binary(max_size=100)),
            topic=draw(st.sampled_from([b"", b"T", b"Topic\0", b"T" * 127])),
            properties=draw(st.sampled_from([b"", b"KEYS\x01k\x02", b"a\0b", b"p" * 300])),
        )
    if data and draw(st.booleans()):
        position = draw(st.integers(0, len(data) - 1))
        data[position] = draw(st.integers(0, 255))
    return bytes(data) + draw(st.binary(max_size=100))


@examples(100, 400)
@given(logs(), st.integers(0, 300), st.integers(0, 300), st.booleans())
def test_both_roads_find_the_same(data: bytes, front: int, back: int, check_crc: bool) -> None:
    for position, end in ((0, len(data)), (front, len(data)), (0, max(0, len(data) - back))):
        args = (data, position, end, START, check_crc)
        assert compiled.plain_records(*args) == in_python(*args)


def test_a_run_has_an_end_and_the_walk_goes_on() -> None:
    data = b""
    for number in range(2 * RUN_MAX + 3):
        host = bytes(range(20)) if number == RUN_MAX + 5 else BORN
        data += record(number, len(data), host, b"body")
    run = plain_records(data, 0, len(data), START, True)
    assert len(run) == RUN_MAX
    assert run == in_python(data, 0, len(data), START, True)
    walked = list(sound_records(data, 0, len(data), START))
    assert [each[2] for each in walked] == list(range(2 * RUN_MAX + 3))


def test_every_bit_is_looked_at_alike() -> None:
    data = record(1, 0, BORN, b"body", properties=b"KEYS\x01k\x02")
    for position in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[position] ^= 1 << bit
            args = (bytes(wrong), 0, len(wrong), START, True)
            assert compiled.plain_records(*args) == in_python(*args)


class Follower:
    """As much of a queue as the units of its records need."""

    def __init__(self, topic: bytes, next_offset: int, *, removed: bool = False) -> None:
        self.prefix_code = topic_prefix_code(topic.decode())
        self.next_offset = next_offset
        self.removed = removed


TAGS = (b"", b"TAGS\x01a\x02KEYS\x01k", b"TAGS\x01", b"a\x01b\x02TAGS\x01\xff\xc3\xa9", b"a\0b")


@st.composite
def followed(draw: st.DrawFn) -> tuple[bytes, dict[tuple[bytes, int], int]]:
    """Records of some queues, mostly in their order, and with what each queue goes on."""
    data, ends, begins = bytearray(), dict[tuple[bytes, int], int](), dict[tuple[bytes, int], int]()
    spread = draw(st.sampled_from([1, 3, 70]))
    for number in range(draw(st.sampled_from([0, 1, 5, 150]))):
        key = draw(st.sampled_from([b"T", b"TT"])), number % spread
        queue_offset = ends.setdefault(key, begins.setdefault(key, draw(st.integers(0, 2**40))))
        ends[key] += 1
        data += record(
            key[1],
            len(data),
            BORN,
            b"body",
            topic=key[0],
            queue_offset=queue_offset + (draw(st.integers(0, 200)) == 200),
            sys_flag=draw(st.sampled_from([0] * 50 + [4, 8, 12])),
            store_timestamp=draw(st.integers(-1, 2**62)),
            properties=draw(st.sampled_from(TAGS[:4] * 9 + TAGS)),
        )
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    for key in draw(st.lists(st.sampled_from(sorted(begins)), max_size=1)) if begins else ():
        del begins[key]
    return bytes(data) + draw(st.binary(max_size=100)), begins


@examples(15, 150)
@given(followed(), st.integers(0, 300))
def test_both_roads_make_the_same_units(
    log: tuple[bytes, dict[tuple[bytes, int], int]], back: int
) -> None:
    data, begins = log
    for position, end in ((0, len(data)), (0, max(0, len(data) - back)), (-1, 9), (back, 2**40)):
        both: list[Any] = []
        for function in (compiled.next_units, kernel.twins["next_units"]):
            queues: dict[tuple[bytes, int], Any] = {
                key: Follower(key[0], begin) for key, begin in begins.items()
            }
            names = {id(queue): key for key, queue in queues.items()}
            units = Units()
            stop, newest = function(data, position, end, START, queues, units)
            shown = {names[id(queue)]: run for queue, run in units.runs.items()}
            after = {key: queue.next_offset for key, queue in queues.items()}
            entries = units.entries, units.count, units.store_timestamp
            both.append((shown, entries, stop, newest, after))
        assert both[0] == both[1]


def test_a_queue_that_was_removed_gets_no_units() -> None:
    data = record(1, 0, BORN, b"body")
    for removed in (False, True):
        queues = {(b"TopicTest", 1): Follower(b"TopicTest", 2**33 + 1, removed=removed)}
        for function in (compiled.next_units, kernel.twins["next_units"]):
            queues[b"TopicTest", 1].next_offset = 2**33 + 1
            units = Units()
            stop, _ = function(data, 0, len(data), START, queues, units)
            assert (units.count, stop) == ((0, 0) if removed else (1, len(data)))
