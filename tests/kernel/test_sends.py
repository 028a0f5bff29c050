"""Plain sends: what the kernel stores and answers is what the Python roads do, to the byte."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.broker.base.stats import SIZE_BOUNDS, BrokerStats
from skylarkmq.broker.processor import send
from skylarkmq.broker.processor.send import SendProcessor
from skylarkmq.broker.processor.send_checks import SendChecks
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import (
    PREFIX_SIZE,
    FrameDecoder,
    RawFrame,
    SerializeType,
    encode_frame,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.store.deduplication import Deduplication
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.log.pwrite_writer import PwriteWriter
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.timer.rules import TimerRules
from tests.broker.group_rig import GroupRig
from tests.store.support import BORN, HOST
from tests.support.amounts import examples

pytestmark = pytest.mark.skipif(kernel.compiled is None, reason=kernel.why_pure)

CODECS = (SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK)
FILE_SIZE = 1 << 24
STORED_MS = 1_700_000_000_123
IPV6 = bytes(range(20))
TOPICS = ("T", "T-2", "7", "8", "Ordered", "%RETRY%g", "TBW102", "None")
PLAIN = {
    "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "UNIQ_KEY\x01A\x02WAIT\x01true\x02TAGS\x01t", "j": "0", "k": "false",
    "m": "false",
}  # fmt: skip
RIG = GroupRig(region_id='Région"', max_message_size=60_000).start()
for name in TOPICS[:5]:
    RIG.topics.table[name] = TopicConfig(
        topic_name=name, write_queue_nums=4, order=name == "Ordered"
    )

NAMES = st.sampled_from(
    ["WAIT", "TAGS", "UNIQ_KEY", "a", "", "DELAY", "CLUSTER", "TRAN_MSG", "TIMER_", "POP_CK"]
)
VALUES = st.sampled_from(
    [
        "true",
        "true",
        "TRUE",
        "false",
        "",
        "WAIT\x01true",
        "é€\U0001f600",
        "\0",
        "x" * 40,
        '"\\\b\f\n\r\t\x7f',
    ]
)
PAIRS = st.builds(lambda name, value: f"{name}\x01{value}", NAMES, VALUES)
PROPERTIES = st.builds(
    lambda pairs, end: "\x02".join(pairs) + end,
    st.lists(PAIRS | st.sampled_from(["WAIT", "a" * 32_740, ""]), max_size=4),
    st.sampled_from(["", "\x02"]),
)
NUMBERS = st.sampled_from(
    ["0", "7", "-1", "007", "+3", "", "1x", "2147483647", "2147483648", "1" * 19]
)
CHANGES: dict[str, st.SearchStrategy[str]] = {
    "a": st.sampled_from(["é", "x" * 300, 'q"\n']),
    "b": st.sampled_from([*TOPICS, "T" * 140, "é"]),
    "d": NUMBERS,
    "e": st.sampled_from(["0", "1", "3", "4", "03", "-1", "x"]),
    "f": NUMBERS | st.sampled_from(["1", "2", "4", "16", "48", "259"]),
    "g": NUMBERS,
    "h": NUMBERS,
    "i": PROPERTIES,
    "j": NUMBERS,
    "l": NUMBERS,
    "m": st.sampled_from(["true", "false", ""]),
    "n": st.just("broker-a"),
    "z": st.just("unknown"),
}
FIELDS = st.sampled_from(["i", "i", "i", "f", *CHANGES]).flatmap(
    lambda name: CHANGES[name].map(lambda value: {name: value})
)
# Values that are no strings, as the SDK writes some of them.
MIXED: dict[str, st.SearchStrategy[Any]] = {
    "b": st.sampled_from(["T", "T", b"T", b"\xff", 7, 8]),
    "e": st.sampled_from([0, 1, 3, 4, -1, True]),
    "f": st.sampled_from([0, 2, 16, 300, -5, 2**31]),
    "g": st.sampled_from([1_700_000_000_000, 0, 2**31, 2**62, 2**63, -1]),
    "h": st.sampled_from([0, 255, 65_536, 2**29]),
    "i": PROPERTIES.map(str.encode) | st.sampled_from([b"x" * 300, b"y" * 70_000]),
    "j": st.sampled_from([0, 3, "0"]),
    "k": st.booleans(),
    "m": st.sampled_from([False, False, True, 0, 1.5]),
}
BODIES = (
    st.sampled_from([b"", b"x" * 1000])
    | st.binary(max_size=20)
    | st.binary(min_size=376, max_size=392)
)
TROUBLES = ("absent", "code", "flag", "remark", "opaque", "body", "byte")


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """Frames of sends, most of them plain; some have one thing that is not."""
    trouble = draw(st.sampled_from([*TROUBLES, *[""] * len(TROUBLES) * 2]))
    fields = PLAIN | {"e": draw(st.sampled_from("0013"))} | draw(FIELDS)
    if trouble == "absent":
        del fields[draw(st.sampled_from(sorted(PLAIN)))]
    command = RemotingCommand(
        draw(st.sampled_from([320, 10])) if trouble == "code" else 310,
        opaque=-1 if trouble == "opaque" else draw(st.sampled_from([0, 1, 200, 70_000, 2**31 - 1])),
        flag=draw(st.sampled_from([1, 2])) if trouble == "flag" else 0,
        remark="hm" if trouble == "remark" else None,
        ext_fields=fields,
        body=b"y" * 4097 if trouble == "body" else draw(BODIES),
    )
    command.serialize_type = draw(st.sampled_from(CODECS))
    if command.serialize_type == SerializeType.MSGPACK and draw(st.booleans()):
        fields |= {name: draw(MIXED[name]) for name in MIXED if name in fields}
    frame = bytearray(encode_command(command))
    if trouble == "byte":
        header_size = int.from_bytes(frame[5:8])
        frame[draw(st.integers(8, 7 + header_size))] ^= draw(st.integers(1, 255))
    return bytes(frame)


class Queues:
    """The queues of a store."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, int], ConsumeQueue] = {}

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, made when it is new."""
        return self.made.setdefault((topic, queue_id), ConsumeQueue(topic, queue_id, Path()))


class Road:
    """A processor of sends with a batch that begins somewhere in the second log file."""

    def __init__(self, position: int, store_host: bytes = HOST) -> None:
        def no_next_file() -> Any:
            raise OSError("no room")

        self.batch = AppendBatch(
            FILE_SIZE, PwriteWriter(), no_next_file, lambda: None, lambda level, stored_ms: 0
        )
        file: Any = SimpleNamespace(start_offset=FILE_SIZE, wrote_position=position, size=FILE_SIZE)
        self.batch.begin(file, STORED_MS)
        self.stats = BrokerStats()
        self.queues = Queues()
        nothing: Any = None
        store: Any = SimpleNamespace(
            deduplication=Deduplication(nothing, nothing),
            commit_log=SimpleNamespace(batch=self.batch),
            delay_levels=DelayLevels(),
            timer_rules=TimerRules(RIG.config.store, lambda: 0),
            queues=self.queues,
            begin=lambda commit: self.batch,
            refusal=lambda: None,
            failure=None,
            is_busy=False,
            fail=lambda error: None,
        )
        groups: Any = None
        checks = SendChecks(RIG.config, RIG.topics, groups, random.Random(1))
        RIG.topics._listeners.clear()
        RIG.topics._deletion_listeners.clear()
        self.processor = SendProcessor(
            RIG.config, store, RIG.topics, checks, self.stats, store_host
        )
        self.processor._max_body_size = 4096
        self.refused: list[tuple[int, int, str | None]] = []

    def take(self, frames: list[RawFrame], host: bytes, *, full: bool = False) -> list[int]:
        """Hand frames in, and return the places of those that the slow path would get, or gets."""

        def reply(request: RemotingCommand, answer: RemotingCommand) -> None:
            self.refused.append((request.opaque, answer.code, answer.remark))

        peer: Any = SimpleNamespace(host_bytes=host, remote_address="192.0.2.7:40000", reply=reply)
        left: list[int] = []
        position = 0
        while position < len(frames):
            taken = self.processor.take(peer, frames, position)
            if not taken:
                left.append(position)
                if full:  # after the router, which counts
                    kind, header, body = frames[position]
                    self.stats.frames_in[kind].count += 1
                    self.stats.frames_in[kind].bytes += len(header) + len(body) + PREFIX_SIZE
                    self.processor.request(peer, decode_command(frames[position]))
            position += taken or 1
        return left

    def state(self) -> tuple[object, ...]:
        """What would be written, shown, answered and counted."""
        answers = self.processor._answers
        noted = [answers._waiting, answers._unwaited, answers._fresh]
        return (
            self.refused,
            {(queue.topic, queue.queue_id): run for queue, run in self.batch.units.runs.items()},
            (self.batch.units.entries, self.batch.units.count),
            b"".join(self.batch._parts),
            (self.batch._position, self.batch.size),
            {key: queue.next_offset for key, queue in self.queues.made.items()},
            [b"".join([sent[3] for sent in each]) for each in noted],
            [sum([sent[2] for sent in each]) for each in noted],
            {
                key: (each.count, each.bytes, each.sizes.counts, each.sizes.sum)
                for key, each in self.stats.topics_in.items()
            },
            {key: (each.count, each.bytes) for key, each in self.stats.frames_in.items()},
        )


def frames_of(pieces: list[bytes]) -> list[RawFrame]:
    """Cut a read into frames."""
    return FrameDecoder().feed(b"".join(pieces))


@examples(60, 1000)
@given(
    st.lists(sends(), min_size=1, max_size=6),
    st.sampled_from([BORN, BORN, BORN, IPV6]),
    st.sampled_from([HOST, HOST, HOST, IPV6]),
    st.sampled_from([0, 0, 0, FILE_SIZE - 900]),
)
def test_a_read_of_sends(
    pieces: list[bytes], host: bytes, store_host: bytes, position: int
) -> None:
    check_roads(pieces, host, store_host, position)


def check_roads(
    pieces: list[bytes], host: bytes = BORN, store_host: bytes = HOST, position: int = 0
) -> None:
    """Hand frames in on both roads, twice, after a plain send that opens a lane."""
    frames = frames_of([encode_plain(codec) for codec in CODECS] + pieces + pieces)
    with_kernel, in_python = Road(position, store_host), Road(position, store_host)
    left = with_kernel.take(frames, host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send, "kernel", None)
        expected = in_python.take(frames, host)
    assert left == expected
    assert with_kernel.state() == in_python.state()


def encode_plain(codec: SerializeType, body: bytes = b"body", **fields: Any) -> bytes:
    """The frame of a plain send."""
    command = RemotingCommand(310, opaque=5, ext_fields=PLAIN | fields, body=body)
    command.serialize_type = codec
    return encode_command(command)


TEXTS = (
    "XWAIT\x01true", "a\x01b\x02XWAIT\x01true\x02c\x01d", "WAIT\x01true\x02WAIT\x01true",
    "WAIT\x01true\x02a\x01WAIT\x01true", "WAIT\x01True", "WAIT\x01true\x02\x02", "WAIT\x01",
    "WAIT\x01trueish",
)  # fmt: skip
ODD = (
    (b'"opaque":5', b'"opaque":05'), (b'"opaque":5', b'"opaque":2147483648'),
    (b'"opaque":5', b'"opaque":99999999999999999999'), (b'"opaque":5', b'"opaque":-5'),
    (b'"opaque":5', b'"opaque":5,"opaque":6'), (b'"opaque":5', b'"opaque":null'),
    (b'"opaque":5', b'"opaque":"5"'), (b'"opaque":5', b'"opaque":5.0'), (b',"opaque":5', b""),
    (b'"e":"0"', b'"e":"1","e":"2"'), (b'"e":"0"', b'"e":1'), (b'"e":"0"', b'"e":null'),
    (b'"e":"0"', b'"e":"\\u0030"'), (b'"e":"0"', b'"e": "0"'), (b'"e"', b'"\\u0065"'),
    (b'"e":"0"', b'"e":"0","ab":"0"'), (b'"j":"0"', b'"j":null'), (b'"j":"0"', b'"j":""'),
    (b'"i":"', b'"i":"\\u0041\\u007F\\u005c'), (b'"i":"', b'"i":"\\u00e9'),
    (b'"i":"', b'"i":"\\ud800'),
    (b'"i":"', b'"i":"\\u00g1'), (b'"i":"', b'"i":"\\x'), (b'"i":"', b'"i":"\xff'),
    (b'"a":"pg"', b'"a":"\xc0\x80"'), (b'"language":"PYTHON"', b'"language":"\xff"'),
    (b'"language":"PYTHON"', b'"language":1'), (b'"language":"PYTHON"', b'"other":"x"'),
    (b'"code":310,', b'"code":310,"code":310,'), (b'"code":310,', b'"code":320,'),
    (b'"code":310,', b'"code":310,"remark":null,'), (b'"version":', b'"version":0'),
    (b'"}', b'"} '), (b'}', b'}}'),
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("codec", CODECS)
def test_properties_that_say_wait_in_odd_ways(text: str, codec: SerializeType) -> None:
    check_roads([encode_plain(codec, i=text)])


@pytest.mark.parametrize(("usual", "odd"), ODD)
def test_headers_in_odd_json(usual: bytes, odd: bytes) -> None:
    (plain,) = frames_of([encode_plain(SerializeType.JSON)])
    assert usual in plain.header
    for header in (plain.header.replace(usual, odd, 1), odd.join(plain.header.rsplit(usual, 1))):
        check_roads([encode_frame(SerializeType.JSON, header, plain.body)])


def test_numbers_that_lead_to_several_queues() -> None:
    """The SDK writes queue ids as numbers: a queue's is known after the next one was read."""
    places: list[tuple[Any, Any]] = [("T", 0), ("T", 3), ("T", 0), (7, 1), (8, 1), ("7", "1")]
    check_roads([encode_plain(SerializeType.MSGPACK, b=topic, e=place) for topic, place in places])


@pytest.mark.parametrize("codec", CODECS)
def test_plain_sends_are_packed(codec: SerializeType) -> None:
    """Against a kernel that is so careful that it packs nothing."""
    road = Road(0)
    texts = ["WAIT\x01true", "a\x01b\x02WAIT\x01true", "TAGS\x01\u20ac", "", "KEYS\x01a b\x02"]
    plain = [encode_plain(codec, i=text, e=str(place % 3)) for place, text in enumerate(texts * 40)]
    frames = frames_of(plain)
    peer: Any = SimpleNamespace(host_bytes=BORN)
    assert road.take(frames[:3], BORN) == [], "which makes the lanes"
    assert road.processor._pack([peer], frames, 0) == len(frames)
    assert road.processor._pack([peer], frames, len(frames) - 1) == 1


def test_checksums_of_bodies_of_all_sizes() -> None:
    data = random.Random(1).randbytes(2000)
    sizes = [*range(200), *range(380, 400), *range(1000, 1100), 2000]
    check_roads([encode_plain(SerializeType.JSON, body=data[size % 7 :][:size]) for size in sizes])


def test_records_of_all_sizes_are_counted() -> None:
    """At each bound of the histogram, and one byte above it."""
    road = Road(0)
    assert road.take(frames_of([encode_plain(SerializeType.JSON, body=b"")] * 2), BORN) == []
    least = road.batch.size // 2
    sizes = [least, *(bound + more for bound in SIZE_BOUNDS for more in (0, 1))]
    frames = frames_of(
        [encode_plain(SerializeType.JSON, body=bytes(size - least)) for size in sizes]
    )
    with_kernel, in_python = Road(0), Road(0)
    for each in (with_kernel, in_python):
        each.processor._max_body_size = max(sizes)
    assert with_kernel.take(frames, BORN) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send, "kernel", None)
        assert in_python.take(frames, BORN) == []
    assert with_kernel.state() == in_python.state()
    (counted,) = with_kernel.stats.topics_in.values()
    assert counted.sizes.counts == [2, 2, 2, 2, 2, 2, 1]
    assert counted.sizes.sum == sum(sizes)


async def test_a_topic_that_changes_is_looked_at_again() -> None:
    road = Road(0)
    frames = frames_of([encode_plain(SerializeType.JSON, b="T-2", e="3")] * 2)
    assert road.take(frames, BORN) == []
    RIG.topics.update(TopicConfig(topic_name="T-2", write_queue_nums=2))
    assert road.take(frames, BORN) == [0, 1]
    RIG.topics.update(TopicConfig(topic_name="T-2", write_queue_nums=4))
    assert road.take(frames, BORN) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("flags", [{}, {"flag": 7, "sys_flag": 256}])
def test_what_the_sdk_sends_is_plain(codec: SerializeType, flags: dict[str, int]) -> None:
    sent: list[bytes] = []

    def submit(opaque: int, head: bytes, body: bytes, waiter: object) -> None:
        sent.append(head + body)

    def start(command: RemotingCommand, waiter: object) -> int:
        command.serialize_type = codec
        sent.append(encode_command(command))
        return 5

    connection: Any = SimpleNamespace(
        by_start=False, serialize_type=codec, take_opaque=lambda: 5, submit=submit, start=start
    )
    waiter: Any = None
    template = SendTemplate("pg", MessageQueue("T", "broker-a", 0), 4)
    request = SendRequest("T", b"body", "KEYS\x01\u20ac", "A", 1_700_000_000_000, **flags)
    for _ in range(2):
        template.start(connection, request, waiter)
    road = Road(0)
    frames = frames_of(sent)
    assert road.take(frames, BORN) == []
    peer: Any = SimpleNamespace(host_bytes=BORN)
    assert road.processor._pack([peer], frames, 0) == 2


# Batches

ITEM_PROPERTIES = st.one_of(
    PROPERTIES.map(str.encode).filter(lambda text: len(text) < 32_768),
    st.binary(max_size=20),
    st.just(b"p\x01" + b"v" * 32_740),
)
ITEMS = st.builds(
    BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), ITEM_PROPERTIES
)
PLAIN_ITEMS = st.builds(
    BatchItem,
    st.just(7),
    st.binary(max_size=40),
    st.sampled_from([b"", b"UNIQ_KEY\x01A\x02TAGS\x01t", b"KEYS\x01a b\x02", b"TIMER\x01t"]),
)


@st.composite
def batch_bodies(draw: st.DrawFn) -> bytes:
    """Bodies of batch sends, some of them cut, or with a byte that is wrong."""
    items = st.lists(PLAIN_ITEMS, min_size=1, max_size=9) | st.lists(ITEMS, max_size=4)
    body = bytearray(encode_batch(draw(items)))
    if body and draw(st.integers(0, 5)) == 0:
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
    if body and draw(st.integers(0, 9)) == 0:
        del body[draw(st.integers(0, len(body) - 1)) :]
    return bytes(body)


BATCH_LEVELS = (
    "", "WAIT\x01true", "a\x01b\x02WAIT\x01true\x02", "WAIT\x01TRUE", "WAIT\x01false", "a\x01b\x02",
    "WAIT\x01true\x02WAIT\x01true", "DELAY\x011", "CLUSTER\x01x\x02a\x01b", "TRAN_MSG\x01true",
    "TIMER_DELAY_MS\x011", "\0", "POP_CK\x011", "a" * 3000, "TAGS\x01shared", "\u20ac\x01\u20ac",
)  # fmt: skip


@st.composite
def batch_sends(draw: st.DrawFn) -> bytes:
    """Frames of batch sends, most of them plain, and of sends between them."""
    codec = draw(st.sampled_from(CODECS))
    fields: dict[str, Any] = PLAIN | {"e": draw(st.sampled_from("013")), "i": "", "m": "true"}
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return encode_plain(codec, e=fields["e"])
    if kind < 4:
        fields["i"] = draw(st.sampled_from(BATCH_LEVELS))
    elif kind < 6:
        name = draw(st.sampled_from("defghjlm"))
        fields[name] = draw(CHANGES[name])
    elif kind == 6 and codec == SerializeType.MSGPACK:
        fields |= {"e": draw(st.integers(0, 3)), "m": True, "g": 1_700_000_000_000}
    code = 310 if draw(st.integers(0, 9)) == 0 else 320
    command = RemotingCommand(code, opaque=9, ext_fields=fields, body=draw(batch_bodies()))
    command.flag = 2 if draw(st.integers(0, 9)) == 0 else 0
    command.serialize_type = codec
    return encode_command(command)


@examples(60, 1000)
@given(
    st.lists(batch_sends(), min_size=1, max_size=5),
    st.sampled_from([BORN, BORN, BORN, IPV6]),
    st.sampled_from([0, 0, 0, FILE_SIZE - 900]),
    st.sampled_from([1 << 22, 1 << 22, 2000]),
)
def test_batches_and_sends_between_them(
    pieces: list[bytes], host: bytes, position: int, size_max: int
) -> None:
    check_batches(pieces, host, position, size_max)


def check_batches(
    pieces: list[bytes], host: bytes = BORN, position: int = 0, size_max: int = 1 << 22
) -> list[int]:
    """Hand frames in on both roads, twice; return what the kernel left to the slow path."""
    frames = frames_of([encode_plain(CODECS[0], e=str(e)) for e in (0, 1, 3)] + pieces + pieces)
    with_kernel, in_python = Road(position), Road(position)
    for road in (with_kernel, in_python):
        road.processor._max_body_size = RIG.config.store.max_message_size
        road.processor._maker.batch_size_max = size_max
    left = with_kernel.take(frames, host, full=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send, "kernel", None)
        in_python.take(frames, host, full=True)
    assert with_kernel.state() == in_python.state()
    return left


def encode_batch_send(codec: SerializeType, items: list[BatchItem], **fields: Any) -> bytes:
    """The frame of a batch send."""
    all_fields = PLAIN | {"i": "", "m": "true"} | fields
    command = RemotingCommand(320, opaque=5, ext_fields=all_fields, body=encode_batch(items))
    command.serialize_type = codec
    return encode_command(command)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 7, 8, 64, 2000])  # ids of 32, 230, 263, 2111, 65999 bytes
def test_plain_batches_are_packed(codec: SerializeType, count: int) -> None:
    """Against a kernel that is so careful that it packs nothing."""
    items = [BatchItem(7, b"body"[: count % 5], b"UNIQ_KEY\x01A\x02TAGS\x01t")] * min(count, 64)
    items += [BatchItem(0, b"", b"")] * (count - len(items))
    pieces = [encode_batch_send(codec, items, i=text) for text in ("", "WAIT\x01true")]
    left = check_batches([*pieces, encode_plain(codec)])
    assert left == [], "the plain sends before them made the lanes"


@pytest.mark.parametrize(
    "text", ["DELAY\x011", "TIMER_DELAY_MS\x011", "TRAN_MSG\x01true", "POP_CK\x011"]
)
@pytest.mark.parametrize("place", ["{}", "a\x01b\x02{}", "{}\x02a\x01b", "T\x01D\x02P\x01T\x02{}"])
def test_what_a_message_of_a_batch_asks_for_is_looked_at_in_python(text: str, place: str) -> None:
    item = BatchItem(0, b"x", place.format(text).encode())
    plain, asks = [
        encode_batch_send(CODECS[0], [BatchItem(7, b"y", b"a\x01b"), each])
        for each in (BatchItem(7, b"y", place.format("a\x01DELAY").encode()), item)
    ]
    assert check_batches([plain, asks]) == [4, 6], "of each pair the second, both times"


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_makes_a_lane(codec: SerializeType) -> None:
    road = Road(0)
    frames = frames_of([encode_batch_send(codec, [BatchItem(0, b"body", b"")])] * 3)
    assert road.take(frames, BORN, full=True) == [0]
