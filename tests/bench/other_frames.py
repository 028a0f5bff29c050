"""The same load in the protocols of other brokers: requests encoded ahead, and answers counted.

- NATS JetStream: a send is a PUB with a subject to acknowledge to, a pull a direct get of 32 by
  sequence. Redis streams: XADD, which keeps the last 100,000, and XRANGE COUNT 32. Neither knows a
  batch: it is as many sends in one write.
- Kafka: Produce version 3 with acks=all, of one record or of one batch of records; Fetch version 4
  of 32 batches of one record each.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crcmod.predefined import mkPredefinedCrcFun

from tests.bench.frames import PULL_COUNT, QUEUE_COUNT, Answers, Frames, Refusal, Ring, ring_of

if TYPE_CHECKING:
    from tests.bench.load import Job

FILL_COUNT = 10_000
"""What a fill stores; pulls read a part of it."""
REDIS_FIRST_ID = 100_000
REDIS_KEPT = 100_000  # messages of a stream: Redis has all that it keeps in memory
KAFKA_CLIENT = "bench"
crc32c: Callable[[bytes], int] = mkPredefinedCrcFun("crc-32c")


@dataclass
class Marks(Answers):
    """Answers of one connection, `count` marks each; a refusal has one of its own."""

    mark: bytes
    refusals: tuple[bytes, ...]
    count: int = 1
    seen: int = 0
    rest: bytes = b""

    def feed(self, data: bytes) -> int:
        for refusal in self.refusals:
            if (place := data.find(refusal)) >= 0:
                raise Refusal(repr(data[max(0, place - 100) : place + 100]))
        if self.rest:
            data = self.rest + data
        if len(self.mark) > 1:
            self.rest = data[1 - len(self.mark) :]
        answers, self.seen = divmod(self.seen + data.count(self.mark), self.count)
        return answers


@dataclass(frozen=True)
class Talk:
    """What is said and heard on the connections of a job, in turns where there are several."""

    rings: list[Ring]
    answers: Callable[[], Answers]
    openings: list[bytes] = field(default_factory=lambda: [b""])


def talk(job: Job) -> Talk:
    return {"nats": nats, "redis": redis, "kafka": kafka}[job.protocol](job)


# NATS


def nats(job: Job) -> Talk:
    """Each connection has a subject of its own for what it is answered."""
    inboxes = [f"_INBOX.{index:05d}" for index in range(job.connections)]
    rings = [nats_ring(job, inbox) for inbox in inboxes]
    mark, count = (b"204 EOB", 1) if job.kind == "pull" else (b'"seq":', job.batch)
    refusals = (b'"error"', b"-ERR", b"NATS/1.0 4", b"NATS/1.0 5")
    return Talk(rings, lambda: Marks(mark, refusals, count), [nats_opening(one) for one in inboxes])


def nats_ring(job: Job, inbox: str) -> Ring:
    if job.kind == "pull":
        wanted = [
            json.dumps({"seq": begin, "batch": PULL_COUNT}).encode()
            for begin in range(job.begin_offset, job.end_offset, PULL_COUNT)
        ]
        subject = f"$JS.API.DIRECT.GET.{job.topic}"
        return ring_of([nats_publish(subject, inbox, one) for one in wanted], PULL_COUNT)
    frame = nats_publish(job.topic, inbox, b"x" * job.body_size) * job.batch
    return ring_of([frame] * max(16, job.window), job.batch)


def nats_opening(inbox: str) -> bytes:
    options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "lang": "python"})
    return f"CONNECT {options}\r\nSUB {inbox} 1\r\n".encode()


def nats_publish(subject: str, reply: str, body: bytes) -> bytes:
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"


# Redis


def redis(job: Job) -> Talk:
    refusals = (b"-ERR", b"-OOM", b"-MISCONF", b"-LOADING", b"-WRONGTYPE")
    body = b"x" * job.body_size
    if job.kind == "pull":
        begins = range(job.begin_offset, job.end_offset, PULL_COUNT)
        frames = [
            resp("XRANGE", job.topic, f"1-{REDIS_FIRST_ID + begin}", "+", "COUNT", str(PULL_COUNT))
            for begin in begins
        ]
        # The array; and of each message: a pair, the id, and a pair of name and body.
        return Talk(
            [ring_of(frames, PULL_COUNT)], lambda: Marks(b"\n", refusals, 1 + 8 * PULL_COUNT)
        )
    if job.kind == "fill":  # by ids that are known, for the pulls
        ids = range(REDIS_FIRST_ID, REDIS_FIRST_ID + FILL_COUNT + job.window)
        frames = [resp("XADD", job.topic, f"1-{one}", "body", body) for one in ids]
    else:
        one = resp("XADD", job.topic, "MAXLEN", "~", str(REDIS_KEPT), "*", "body", body)
        frames = [one * job.batch] * max(16, job.window)
    return Talk([ring_of(frames, job.batch)], lambda: Marks(b"\n", refusals, 2 * job.batch))


def resp(*parts: str | bytes) -> bytes:
    """A command as an array of bulk strings."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    strings = (b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)
    return b"*%d\r\n" % len(encoded) + b"".join(strings)


# Kafka


def kafka(job: Job) -> Talk:
    size = len(job.topic)
    batch = kafka_batch([b"x" * job.body_size] * job.batch)
    if job.kind == "pull":
        begins = range(job.begin_offset, job.end_offset, PULL_COUNT)
        frames = [kafka_fetch(job.topic, begin, PULL_COUNT * len(batch)) for begin in begins]
        return Talk([ring_of(frames, PULL_COUNT)], lambda: Frames(code_at=26 + size))
    queues = 1 if job.kind == "fill" else QUEUE_COUNT
    count = max(16, job.window)
    frames = [kafka_produce(job.topic, index % queues, batch, index) for index in range(count)]
    return Talk([ring_of(frames, job.batch)], lambda: Frames(code_at=22 + size))


def kafka_request(key: int, version: int, number: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", key, version, number) + kafka_text(KAFKA_CLIENT)
    return struct.pack(">i", len(header) + len(body)) + header + body


def kafka_text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def kafka_metadata(topic: str) -> bytes:
    """Asks for a topic, and so creates it."""
    return kafka_request(3, 4, 0, struct.pack(">i", 1) + kafka_text(topic) + b"\1")


def kafka_produce(topic: str, partition: int, batch: bytes, number: int) -> bytes:
    acks_of_all, limit_ms = -1, 30_000
    body = struct.pack(">hhii", -1, acks_of_all, limit_ms, 1) + kafka_text(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return kafka_request(0, 3, number, body)


def kafka_fetch(topic: str, offset: int, size: int) -> bytes:
    """As many bytes as 32 batches have; waits for none."""
    body = struct.pack(">iiiibi", -1, 0, 1, size, 0, 1) + kafka_text(topic)
    return kafka_request(1, 4, offset, body + struct.pack(">iiqi", 1, 0, offset, size))


def kafka_batch(bodies: list[bytes]) -> bytes:
    """A record batch of format 2, uncompressed, of now: old ones would be deleted."""
    now_ms, count = int(time.time() * 1000), len(bodies)
    records = b"".join(kafka_record(index, body) for index, body in enumerate(bodies))
    head = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    checked = head + records
    begin = struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked))
    return begin + checked


def kafka_record(index: int, body: bytes) -> bytes:
    """Attributes, time and offset beside the batch's, no key, the body, no headers."""
    record = b"\0\0" + zigzag(index) + zigzag(-1) + zigzag(len(body)) + body + b"\0"
    return zigzag(len(record)) + record


def zigzag(number: int) -> bytes:
    """A signed number in groups of seven bits, the lowest first."""
    left = (number << 1) ^ (number >> 31)
    groups = bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    groups.append(left)
    return bytes(groups)
