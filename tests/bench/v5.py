"""Measures the gRPC endpoint beside RocketMQ's own proxy of 5.3.3: one client on both, in turns.

    python -m tests.bench.v5 [--quick] [--rounds 5] [--seconds 2.0] [--only TEXT] [--clients 1000]
                             [--body 1024] [--heap 1g] [--store DIR] [--json FILE] [--handed-on]

The client is one process of grpcio without RocketMQ's libraries: its requests are made before, or
put together from an answer's receipt handles. RocketMQ's broker and proxy share one JVM, with G1
and the heap that is asked for; ours is one process of its own. Both have files of the default
sizes and flush asynchronously.

CPU time is that of the server's process, of all its threads, by /proc/PID/stat: its share for each
message sent, or received and acknowledged. Both work before the first round until their CPU time
has stopped to fall. A ratio is ours divided by theirs in the same round: below 1, ours takes less.
The median is shown with the lowest and highest.

With --handed-on it is an endpoint beside the broker to which it hands all calls on: the CPU time
of the first is what it costs to hand on, that of the second what clients cost that come directly.

Memory is that of the server with so many clients connected, each with a connection of its own, its
telemetry stream open and one receive waiting; before them, and what each client adds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import grpc.aio

from skylarkmq.protocol.v5 import schema_pb2 as pb
from tests.bench.peers import broker
from tests.bench.report import machine
from tests.interop.children import Children
from tests.interop.java import why_not
from tests.interop.v5.brokers import ApacheProxy, make_group, make_topic
from tests.support.ports import free_ports

SERVICE = "/apache.rocketmq.v2.MessagingService/"
OURS, THEIRS = "SkylarkMQ", "RocketMQ 5.3.3"
ENDPOINT, DIRECT = "an endpoint that hands on", "the broker itself"
TOPIC, GROUP, IDLE_TOPIC = "T_bench", "G_bench", "T_idle"
FLIGHTS = (1, 32)
BATCH = 32
WARM_S, WARM_RUNS, STILL_FALLING = 3.0, 20, 0.93
OPENING_AT_A_TIME = 20
STOCK_PER_S = 20_000
"""More messages than a server hands out in a second."""
KEYS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "waitTimeMillsInSendQueue": 10_000,
    "osPageCacheBusyTimeOutMills": 10_000,
}
OK, NO_MESSAGE = 20000, 40401
TICKS = os.sysconf("SC_CLK_TCK")
NO_LIMIT = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True)
class Row:
    """What is measured: `kind` "send" or "receive", so many calls in flight."""

    kind: str
    flight: int
    batch: int = 1

    @property
    def name(self) -> str:
        what = self.kind if self.kind == "send" else f"receive {self.batch} and acknowledge"
        return f"{what}, {self.flight} in flight"


ROWS = [Row("send", flight) for flight in FLIGHTS] + [
    Row("receive", flight, batch) for batch in (1, BATCH) for flight in FLIGHTS
]


@dataclass
class Contender:
    """A server under test."""

    name: str
    pid: int
    port: int
    rounds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, threads that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = [re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE) for name in ("Rss", "Pss")]
    resident, own = (int(one[1]) / 1024 for one in found if one)
    return resident, own


class Client:
    """One client of the protocol: a connection, its settings told, its calls as bytes."""

    def __init__(self, port: int, number: int, topic: str, group: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=NO_LIMIT)
        self.metadata = (
            ("x-mq-client-id", f"bench@1@{number}@{group}"),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", "bench"),
        )
        self._topic = pb.Resource(name=topic)
        self._group = pb.Resource(name=group)
        self._unary: dict[str, Any] = {}
        self._receive = self._channel.unary_stream(f"{SERVICE}ReceiveMessage")
        self._stream: Any = None
        self._queue = pb.MessageQueue()

    async def start(self) -> None:
        """Ask for the route, and tell the settings of a consumer."""
        request = pb.QueryRouteRequest(topic=self._topic)
        route = pb.QueryRouteResponse.FromString(await self.call("QueryRoute", request))
        assert route.status.code == OK, route.status
        self._queue = route.message_queues[0]
        settings = pb.Settings(
            client_type=pb.ClientType.SIMPLE_CONSUMER,
            subscription=pb.Subscription(
                group=self._group,
                subscriptions=[
                    pb.SubscriptionEntry(
                        topic=self._topic,
                        expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
                    )
                ],
            ),
        )
        settings.user_agent.language = pb.Language.JAVA
        settings.user_agent.version = "5.2.0"
        self._stream = self._channel.stream_stream(f"{SERVICE}Telemetry")(metadata=self.metadata)
        await self._stream.write(pb.TelemetryCommand(settings=settings).SerializeToString())
        answer = pb.TelemetryCommand.FromString(await self._stream.read())
        assert answer.status.code in (0, OK), answer
        await self.beat()

    async def beat(self) -> None:
        """Give a sign of life: the proxy forgets settings two minutes after the last one."""
        await self.call("Heartbeat", pb.HeartbeatRequest(group=self._group, client_type=3))

    async def call(self, name: str, request: Any) -> bytes:
        """A call with one answer; a message, or bytes that are one."""
        if name not in self._unary:
            self._unary[name] = self._channel.unary_unary(f"{SERVICE}{name}")
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer: bytes = await self._unary[name](data, metadata=self.metadata, timeout=60)
        return answer

    def send_request(self, body: bytes, number: int) -> bytes:
        """A message, encoded."""
        request = pb.SendMessageRequest()
        message = request.messages.add(topic=self._topic, body=body)
        system = message.system_properties
        system.message_id = f"01{number:032X}"
        system.tag = "A"
        system.keys.append(f"key-{number}")
        system.born_timestamp.GetCurrentTime()
        system.born_host = "bench"
        system.body_encoding = pb.Encoding.IDENTITY
        system.message_type = pb.MessageType.NORMAL
        return request.SerializeToString()

    def receive_request(self, batch: int, poll_s: int) -> bytes:
        """A receive that waits so long when there is nothing, encoded."""
        request = pb.ReceiveMessageRequest(
            group=self._group, message_queue=self._queue, batch_size=batch
        )
        request.message_queue.id = -1
        request.filter_expression.type = pb.FilterType.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = 600
        request.long_polling_timeout.seconds = poll_s
        return request.SerializeToString()

    async def receive(self, request: bytes, timeout_s: float) -> list[tuple[str, str]]:
        """Return message id and handle of what has come."""
        found: list[tuple[str, str]] = []
        async for data in self._receive(request, metadata=self.metadata, timeout=timeout_s):
            answer = pb.ReceiveMessageResponse.FromString(data)
            if answer.HasField("message"):
                system = answer.message.system_properties
                found.append((system.message_id, system.receipt_handle))
            elif answer.HasField("status"):
                assert answer.status.code in (OK, NO_MESSAGE), answer.status
        return found

    async def acknowledge(self, message_id: str, handle: str) -> None:
        request = pb.AckMessageRequest(group=self._group, topic=self._topic)
        request.entries.add(message_id=message_id, receipt_handle=handle)
        answer = pb.AckMessageResponse.FromString(await self.call("AckMessage", request))
        assert answer.status.code == OK, answer.status

    async def stop(self) -> None:
        await self._channel.close()


class Load:
    """The client's work on one server."""

    def __init__(self, server: Contender, body: bytes) -> None:
        self.server = server
        self._body = body
        self._number = 0
        self._stock = 0  # messages that nobody has received

    async def open(self) -> None:
        self._client = Client(self.server.port, 0, TOPIC, GROUP)
        await self._client.start()

    async def measure(self, row: Row, seconds: float) -> tuple[float, float]:
        """Return CPU seconds of the server for each message, and messages in a second."""
        await self._client.beat()
        step = await self._prepared(row, seconds)
        before, started = cpu_s(self.server.pid), time.perf_counter()
        end = started + seconds
        counts = await asyncio.gather(*(self._repeat(step, end) for _ in range(row.flight)))
        took_s = time.perf_counter() - started
        return (cpu_s(self.server.pid) - before) / max(1, sum(counts)), sum(counts) / took_s

    async def _prepared(self, row: Row, seconds: float) -> Callable[[], Awaitable[int]]:
        client = self._client
        if row.kind == "send":
            requests = [client.send_request(self._body, self._next()) for _ in range(200)]

            async def send() -> int:
                data = await client.call("SendMessage", requests[self._next() % len(requests)])
                answer = pb.SendMessageResponse.FromString(data)
                assert answer.status.code == OK, answer.status
                return 1

            self._stock = 0  # what is sent here is drained before anything is received
            return send
        await self._fill(int(STOCK_PER_S * seconds) - self._stock)
        request = client.receive_request(row.batch, 5)

        async def receive() -> int:
            found = await client.receive(request, 20)
            for one in found:
                await client.acknowledge(*one)
            self._stock -= len(found)
            if not found and self._stock <= 0:
                raise RuntimeError("nothing is left to receive: measure shorter")
            return len(found)

        return receive

    async def _fill(self, count: int) -> None:
        left = iter(range(count))

        async def some() -> None:
            for _ in left:
                request = self._client.send_request(self._body, self._next())
                await self._client.call("SendMessage", request)

        await asyncio.gather(*(some() for _ in range(32)))
        self._stock += max(0, count)

    def _next(self) -> int:
        self._number += 1
        return self._number

    @staticmethod
    async def _repeat(step: Callable[[], Awaitable[int]], end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            count += await step()
        return count

    async def drain(self) -> None:
        """Leave nothing for the next row."""
        request = self._client.receive_request(BATCH, 1)

        async def some() -> None:
            while found := await self._client.receive(request, 20):
                for one in found:
                    await self._client.acknowledge(*one)

        await asyncio.gather(*(some() for _ in range(8)))
        self._stock = 0

    async def close(self) -> None:
        await self._client.stop()


async def measure(contenders: list[Contender], options: argparse.Namespace) -> None:
    """Every row on every server in every round."""
    loads = [Load(one, os.urandom(options.body // 2).hex().encode()) for one in contenders]
    rows = [row for row in ROWS if options.only in row.name]
    for load in loads:
        await load.open()
    for row in rows:
        for load in loads:
            best, spent = float("inf"), 0.0
            for _ in range(0 if options.quick else WARM_RUNS):
                cost, _rate = await load.measure(row, options.seconds / 2)
                spent += options.seconds / 2
                if spent >= WARM_S and cost > best * STILL_FALLING:
                    break
                best = min(best, cost)
        for _ in range(options.rounds):
            for load in loads:
                cost, rate = await load.measure(row, options.seconds)
                load.server.rounds.setdefault(row.name, []).append(cost * 1e6)
                load.server.rates.setdefault(row.name, []).append(rate)
        for load in loads:
            await load.drain()
        print(text_of(row, contenders), flush=True)
    for load in loads:
        await load.close()


def text_of(row: Row, contenders: list[Contender]) -> str:
    ours, theirs = ([one.rounds[row.name] for one in contenders] + [[]])[:2]
    text = f"{row.name:40} " + "  ".join(
        f"{one.name} {median(one.rounds[row.name]):6.0f} us CPU, "
        f"{median(one.rates[row.name]):6.0f}/s;"
        for one in contenders
    )
    if theirs:
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        text += f"  ratio {median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return text


async def crowd(contenders: list[Contender], count: int) -> None:
    """Memory before and with so many clients, one server after the other."""
    for server in contenders:
        before = memory_mib(server.pid)
        clients = [Client(server.port, n + 1, IDLE_TOPIC, "G_idle") for n in range(count)]
        for begin in range(0, count, OPENING_AT_A_TIME):
            await asyncio.gather(
                *(one.start() for one in clients[begin : begin + OPENING_AT_A_TIME])
            )
        waiting = [
            asyncio.create_task(one.receive(one.receive_request(1, 20), 60)) for one in clients
        ]
        await asyncio.sleep(5)
        with_them = memory_mib(server.pid)
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in clients))
        each_kib = (with_them[1] - before[1]) * 1024 / count
        print(
            f"{server.name}: RSS {before[0]:.0f} MiB, PSS {before[1]:.0f} MiB; with {count} "
            f"clients RSS {with_them[0]:.0f}, PSS {with_them[1]:.0f}: {each_kib:.0f} KiB each",
            flush=True,
        )


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[Contender]:
    (port,) = free_ports()
    with broker(folder, "ASYNC_FLUSH", {**KEYS, "grpcListenPort": port}) as server:
        _furnish(server.port)
        yield Contender(OURS, server.pid, port)


@contextlib.contextmanager
def handed_on(folder: Path) -> Iterator[list[Contender]]:
    """A broker that has the topics, and before it the endpoint of one that has not."""
    ports = free_ports(1)
    keys = [{**KEYS, "grpcListenPort": port, "brokerName": f"b-{port}"} for port in ports]
    for name in ("direct", "endpoint"):
        (folder / name).mkdir()
    with broker(folder / "direct", "ASYNC_FLUSH", keys[0]) as direct:
        keys[1] |= {"namesrvAddr": direct.namesrv, "grpcProxyMode": "CLUSTER"}
        with broker(folder / "endpoint", "ASYNC_FLUSH", keys[1], command="broker") as endpoint:
            _furnish(direct.port)
            yield [
                Contender(ENDPOINT, endpoint.pid, ports[1]),
                Contender(DIRECT, direct.pid, ports[0]),
            ]


@contextlib.contextmanager
def theirs(folder: Path, heap: str) -> Iterator[Contender]:
    server = ApacheProxy(Children(folder), folder, **KEYS)
    server.proxy_jvm = ("-server", "-XX:+UseG1GC", f"-Xms{heap}", f"-Xmx{heap}")
    try:
        server.start()
        _furnish(server.port)
        yield Contender(THEIRS, server.pid, server.grpc_port)
    finally:
        server.end()


def _furnish(port: int) -> None:
    for topic in (TOPIC, IDLE_TOPIC):
        make_topic(port, topic, queues=8)
    for group in (GROUP, "G_idle"):
        make_group(port, group)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.v5",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row in a round")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--clients", type=int, default=1000, help="connected; 0: leave that out")
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--heap", default="1g", help="of RocketMQ's JVM")
    parser.add_argument("--alone", choices=["ours", "theirs"], help="without the other")
    parser.add_argument(
        "--handed-on", action="store_true", help="an endpoint that hands on, and none"
    )
    parser.add_argument("--store", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    if not options.handed_on and options.alone != "ours" and (why := why_not(ApacheProxy.project)):
        print(f"skipped: {why}")
        return
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="v5-", dir=parent)))
        contenders: list[Contender] = []
        if options.handed_on:
            contenders += stack.enter_context(handed_on(folder))
        for name in () if options.handed_on else ("ours", "theirs"):
            if options.alone in (None, name):
                (folder / name).mkdir()
                made = (
                    ours(folder / name) if name == "ours" else theirs(folder / name, options.heap)
                )
                contenders.append(stack.enter_context(made))
        asyncio.run(run(contenders, options))
    if options.json:
        rows = {one.name: {"cpu_us": one.rounds, "per_s": one.rates} for one in contenders}
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


async def run(contenders: list[Contender], options: argparse.Namespace) -> None:
    """First the rows: memory is that of servers that have worked."""
    await measure(contenders, options)
    if options.clients:
        await crowd(contenders, options.clients)


if __name__ == "__main__":
    main()
