"""The other ends: many idle connections, held pulls, groups, and a consumer that looks closely.

Reads one job as a JSON line from its input and writes one JSON line with what came of it. What a
job opened stays open until a job `close`.

    idle     connections that say nothing
    hold     pulls that wait, and wait again behind what they get
    groups   heartbeats of consumer groups
    topics   topics made on demand or by an administrator
    wake     how long a held pull takes to get the message that was just sent
    trips    round trips of the same size, against a server that gives back what it gets
    late     when the messages of a topic were stored, against when they were due
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.flags import PullSysFlag
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from tests.bench.frames import send_header

KEPT_DESCRIPTORS = 64
LIMIT_S = 30.0
WAVE = 500  # connections opened at a time
LOOKS = 400  # messages that `late` looks at in each queue
_HOLD = PullSysFlag.FLAG_SUBSCRIPTION | PullSysFlag.FLAG_SUSPEND


@dataclass(frozen=True)
class Work:
    """What to do."""

    kind: str
    port: int = 0
    count: int = 0
    topic: str = ""
    queues: int = 1
    expression: str = "*"
    expression_type: str = "TAG"


class Peer(asyncio.Protocol):
    """One connection; answers by opaque. A pull that was answered waits again."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.decoder = FrameDecoder()
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.held: dict[int, dict[str, str]] = {}  # opaque -> fields of a pull that is kept up
        self.opaque = 0
        self.got = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            command = decode_command(frame)
            if not command.is_response:
                continue
            future = self.waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
            fields = self.held.pop(command.opaque, None)
            if fields is not None:
                self.got += bool(command.body)
                offset = command.ext_fields.get("nextBeginOffset", fields["queueOffset"])
                self.hold({**fields, "queueOffset": offset})

    def write(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        assert self.transport is not None
        self.opaque += 1
        command = RemotingCommand.request(code, fields, body, opaque=self.opaque)
        self.transport.write(encode_command(command))
        return self.opaque

    def hold(self, fields: dict[str, str]) -> None:
        self.held[self.write(RequestCode.PULL_MESSAGE, fields)] = fields

    async def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.waiting[self.write(code, fields, body)] = future
        return await asyncio.wait_for(future, LIMIT_S)


def pull_fields(work: Work, queue_id: int, offset: int, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": work.topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(_HOLD),
        "commitOffset": "0",
        "suspendTimeoutMillis": "120000",
        "subscription": work.expression,
        "subVersion": "0",
        "expressionType": work.expression_type,
    }


class Crowd:
    """What is open."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def open(self, port: int, count: int) -> list[Peer]:
        opened: list[Peer] = []
        loop = asyncio.get_running_loop()
        while len(opened) < count:
            wave = min(WAVE, count - len(opened))
            pairs = await asyncio.gather(
                *(loop.create_connection(Peer, "127.0.0.1", port) for _ in range(wave))
            )
            opened += [peer for _, peer in pairs]
        self.peers += opened
        return opened

    async def close(self, work: Work) -> dict[str, float]:
        got = sum(peer.got for peer in self.peers)
        for peer in self.peers:
            if peer.transport is not None:
                peer.transport.abort()
        self.peers.clear()
        await asyncio.sleep(0.2)
        return {"answers": got}

    async def idle(self, work: Work) -> dict[str, float]:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        count = min(work.count, soft - KEPT_DESCRIPTORS)
        await self.open(work.port, count)
        return {"opened": count}

    async def hold(self, work: Work) -> dict[str, float]:
        """`count` consumers, each with a pull on every queue, at the queue's end."""
        peers = await self.open(work.port, work.count)
        ends = [await self.end(peers[0], work.topic, queue) for queue in range(work.queues)]
        for number, peer in enumerate(peers):
            for queue_id, end in enumerate(ends):
                peer.hold(pull_fields(work, queue_id, end, f"bench-group-{number}"))
        await self.end(peers[-1], work.topic, 0)
        return {"held": sum(len(peer.held) for peer in peers)}

    async def end(self, peer: Peer, topic: str, queue_id: int) -> int:
        fields = {"topic": topic, "queueId": str(queue_id)}
        answer = await peer.ask(RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.ext_fields["offset"])

    async def groups(self, work: Work) -> dict[str, float]:
        """One client in each of `count` groups, all of them subscribed to the topic."""
        peers = await self.open(work.port, work.count)

        async def beat(number: int, peer: Peer) -> None:
            subscription = {
                "topic": work.topic, "subString": "*", "subVersion": 1, "expressionType": "TAG",
                "codeSet": [], "tagsSet": [], "classFilterMode": False,
            }  # fmt: skip
            group = {
                "groupName": f"bench-group-{number}", "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False, "subscriptionDataSet": [subscription],
            }  # fmt: skip
            body = {"clientID": f"c{number}", "consumerDataSet": [group], "producerDataSet": []}
            answer = await peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
            if answer.code:
                raise RuntimeError(answer.remark)

        await asyncio.gather(*(beat(number, peer) for number, peer in enumerate(peers)))
        return {"groups": len(peers)}

    async def topics(self, work: Work) -> dict[str, float]:
        """Make `count` topics `name-00000` and so on; one of that very name when there is one."""
        (peer,) = await self.open(work.port, 1)
        names = [work.topic]
        if work.count > 1:
            names = [f"{work.topic}-{number:05d}" for number in range(work.count)]
        for start in range(0, len(names), WAVE):
            answers = await asyncio.gather(
                *(
                    peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, self.topic_fields(name, work))
                    for name in names[start : start + WAVE]
                )
            )
            if any(answer.code for answer in answers):
                raise RuntimeError(next(answer.remark or "" for answer in answers if answer.code))
        return {"topics": len(names)}

    @staticmethod
    def topic_fields(name: str, work: Work) -> dict[str, str]:
        return {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(work.queues),
            "writeQueueNums": str(work.queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip

    async def wake(self, work: Work) -> dict[str, float]:
        producer, consumer = await self.open(work.port, 2)
        offset = await self.end(producer, work.topic, 0)
        fields = send_header(work.topic, 0, "", batch=False)
        times: list[float] = []
        for _ in range(work.count):
            future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
            pull = pull_fields(work, 0, offset, "bench-group-0")
            consumer.waiting[consumer.write(RequestCode.PULL_MESSAGE, pull)] = future
            await self.end(consumer, work.topic, 0)  # answered behind the pull, which is held now
            started = time.perf_counter()
            producer.write(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 128)
            answer = await asyncio.wait_for(future, LIMIT_S)
            times.append(time.perf_counter() - started)
            offset = int(answer.ext_fields["nextBeginOffset"])
        return _percentiles(times)

    async def trips(self, work: Work) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        got = loop.create_future()
        size = len(
            encode_command(
                RemotingCommand.request(
                    RequestCode.SEND_MESSAGE_V2, send_header("t", 0, "", batch=False), b"x" * 128
                )
            )
        )

        class Trip(asyncio.Protocol):
            seen = 0

            def data_received(self, data: bytes) -> None:
                self.seen += len(data)
                if self.seen >= size and not got.done():
                    self.seen = 0
                    got.set_result(None)

        transport, _ = await loop.create_connection(Trip, "127.0.0.1", work.port)
        times: list[float] = []
        for _ in range(work.count):
            got = loop.create_future()
            started = time.perf_counter()
            transport.write(b"x" * size)
            await asyncio.wait_for(got, LIMIT_S)
            times.append(time.perf_counter() - started)
        transport.abort()
        return _percentiles(times)

    async def late(self, work: Work) -> dict[str, float]:
        """How long after its time a message was stored; of up to LOOKS in each queue."""
        (peer,) = await self.open(work.port, 1)
        late: list[float] = []
        total = 0
        for queue_id in range(work.queues):
            end = await self.end(peer, work.topic, queue_id)
            total += end
            for offset in range(0, end, max(1, end // LOOKS)):
                fields = {**pull_fields(work, queue_id, offset, "bench-look"), "maxMsgNums": "1"}
                answer = await peer.ask(RequestCode.PULL_MESSAGE, fields)
                for message in decode_messages(answer.body):
                    due_ms = int(message.properties["TIMER_DELIVER_MS"])
                    late.append((message.store_timestamp - due_ms) / 1000)
        return {"stored": total, "earliest": min(late, default=0.0), **_percentiles(late)}


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


async def serve() -> None:
    crowd = Crowd()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        work = Work(**json.loads(line))
        result = await getattr(crowd, work.kind)(work)
        print(json.dumps(result), flush=True)


def as_line(work: Work) -> str:
    """The job as the process reads it."""
    return json.dumps(asdict(work)) + "\n"


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve())


if __name__ == "__main__":
    main()
