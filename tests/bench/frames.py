"""Requests encoded ahead of the run, so that the load costs the load process almost nothing, and
their answers, which are counted and not decoded.

A ring is many requests of one size laid end to end; the load writes slices of it. Each has its own
opaque, of one width, and comes round again long after its answer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.flags import PullSysFlag
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import sign_request

RING_COUNT = 2048  # above every window
FIRST_OPAQUE = 100_000
QUEUE_COUNT = 4
BORN_MS = 1_700_000_000_000
GROUP = "bench-group"
ACCESS_KEY, SECRET_KEY = "bench-account", "secret of the bench"
PULL_COUNT = 32
PULL_FROM = 1000  # four digits, so that all pulls have one size
PULL_UP_TO = 9000
LENGTHS = struct.Struct(">II")
JSON_OK = b'"code":0,'
BINARY_OK = b"\0\0"
KAFKA_OK = b"\0\0"


@dataclass(frozen=True)
class Ring:
    """`count` requests of `size` bytes each, one behind the other, twice over for any slice."""

    data: bytes
    size: int
    count: int
    messages: int  # in each request, or in its answer

    def slice(self, index: int, count: int) -> memoryview:
        """`count` requests from a place in the ring; at most one round of it."""
        start = (index % self.count) * self.size
        return memoryview(self.data)[start : start + count * self.size]


class Refusal(Exception):
    """An answer that is not a success; the text has its beginning."""


class Answers(Protocol):
    """Counts the answers of one connection."""

    def feed(self, data: bytes) -> int:
        """How many have come whole with this; raises Refusal."""
        ...


@dataclass
class Frames(Answers):
    """Answers with their length before them: RocketMQ's; or Kafka's, with their code at a place."""

    check: bool = True  # an echo has nothing to check
    code_at: int = 0
    rest: bytes = b""

    def feed(self, data: bytes) -> int:
        if self.rest:
            data = self.rest + data
        position, size, answers = 0, len(data), 0
        while size - position >= LENGTHS.size:
            length, marker = LENGTHS.unpack_from(data, position)
            if size - position < length + 4:
                break
            if self.check:
                if self.code_at:
                    ok, begin, limit = KAFKA_OK, position + self.code_at, len(KAFKA_OK)
                elif marker >> 24:
                    ok, begin, limit = BINARY_OK, position + LENGTHS.size, len(BINARY_OK)
                else:  # RocketMQ 4.9 answers in JSON, whatever it was asked in
                    ok, begin, limit = JSON_OK, position + LENGTHS.size, marker
                if data.find(ok, begin, begin + limit) < 0:
                    raise Refusal(repr(data[position : position + 200]))
            position += length + 4
            answers += 1
        self.rest = data[position:]
        return answers


def ring_of(frames: list[bytes], messages: int) -> Ring:
    size = len(frames[0])
    if any(len(frame) != size for frame in frames):
        raise ValueError("the requests of a ring have one size")
    return Ring(b"".join(frames) * 2, size, len(frames), messages)


def signed_ring(ring: Ring) -> Ring:
    """The same requests, signed as those of the account that the broker knows."""
    frames: list[bytes] = []
    for frame in FrameDecoder().feed(bytes(ring.slice(0, ring.count))):
        command = decode_command(frame)
        sign_request(command, ACCESS_KEY, SECRET_KEY.encode())
        frames.append(encode_command(command))
    return ring_of(frames, ring.messages)


def send_ring(topic: str, body_size: int, codec: SerializeType) -> Ring:
    """Single sends as the Java client writes them: code 310 with unique key and tag."""
    return ring_of([send_frame(topic, body_size, codec, index) for index in range(RING_COUNT)], 1)


def send_frame(topic: str, body_size: int, codec: SerializeType, index: int) -> bytes:
    properties = {"UNIQ_KEY": f"7F00000100002A139A55{index:012X}", "WAIT": "true", "TAGS": "bench"}
    header = send_header(topic, index % QUEUE_COUNT, encode_properties(properties), batch=False)
    return request(RequestCode.SEND_MESSAGE_V2, header, b"x" * body_size, codec, index)


def spread_ring(topic: str, body_size: int, codec: SerializeType, topics: int, queues: int) -> Ring:
    """Single sends over many topics `name-0000` and so on, or over many queues of one."""
    frames: list[bytes] = []
    for index in range(max(RING_COUNT, topics)):
        name = f"{topic}-{index % topics:05d}" if topics > 1 else topic
        number = index % queues
        pad = len(str(queues)) - len(str(number))  # so that all sends have one size
        properties = encode_properties({"a": str(index % 10), "b": "x", "TAGS": "bench"})
        header = send_header(name, number, properties, batch=False)
        body = b"x" * (body_size + pad)
        frames.append(request(RequestCode.SEND_MESSAGE_V2, header, body, codec, index))
    return ring_of(frames, 1)


def timer_ring(
    topic: str, body_size: int, codec: SerializeType, begin_ms: int, span_ms: int
) -> Ring:
    """Single sends that fall due within a span of time, spread over it."""
    frames: list[bytes] = []
    for index in range(RING_COUNT):
        due_ms = begin_ms + span_ms * index // RING_COUNT
        properties = encode_properties(
            {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{index:032X}"}
        )
        header = send_header(topic, index % QUEUE_COUNT, properties, batch=False)
        body = b"x" * body_size
        frames.append(request(RequestCode.SEND_MESSAGE_V2, header, body, codec, index))
    return ring_of(frames, 1)


def batch_ring(topic: str, body_size: int, codec: SerializeType, messages: int) -> Ring:
    """Sends of a batch each: code 320."""
    body = encode_batch(
        BatchItem(0, b"x" * body_size, f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01bench".encode())
        for number in range(messages)
    )
    frames = [
        request(
            RequestCode.SEND_BATCH_MESSAGE,
            send_header(topic, index % QUEUE_COUNT, "", batch=True),
            body,
            codec,
            index,
        )
        for index in range(RING_COUNT // 16)
    ]
    return ring_of(frames, messages)


def pull_ring(
    topic: str,
    codec: SerializeType,
    expression: str = "*",
    begin: int = PULL_FROM,
    end: int = PULL_UP_TO,
) -> Ring:
    """Pulls of 32 messages of one queue, each from its own offset; all have as many digits."""
    frames: list[bytes] = []
    for index, offset in enumerate(range(begin, end, PULL_COUNT)):
        header = PullMessageRequestHeader(
            consumer_group=GROUP,
            topic=topic,
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=PullSysFlag.FLAG_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=BORN_MS,
            expression_type="TAG",
        )
        frames.append(request(RequestCode.PULL_MESSAGE, encode_fields(header), b"", codec, index))
    return ring_of(frames, PULL_COUNT)


def fill_ring(topic: str, body_size: int, codec: SerializeType) -> Ring:
    """Single sends that all go into queue 0, for the pulls to read; one in ten has the tag t3."""
    frames = [
        request(
            RequestCode.SEND_MESSAGE_V2,
            send_header(topic, 0, f"TAGS\x01t{index % 10}", batch=False),
            b"x" * body_size,
            codec,
            index,
        )
        for index in range(RING_COUNT)
    ]
    return ring_of(frames, 1)


def send_header(topic: str, queue_id: int, properties: str, *, batch: bool) -> dict[str, str]:
    return encode_send_header_v2(
        SendMessageRequestHeader(
            producer_group="bench-producer",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=BORN_MS,
            flag=0,
            properties=properties,
            batch=batch,
        )
    )


def request(
    code: RequestCode, fields: dict[str, str], body: bytes, codec: SerializeType, index: int
) -> bytes:
    command = RemotingCommand.request(code, fields, body, opaque=FIRST_OPAQUE + index)
    command.serialize_type = codec
    return encode_command(command)
