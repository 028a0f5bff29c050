"""What a pipelined send costs the sender: the SDK beside two raw senders on the same broker.

    python -m tests.bench.client_send [--count 6000] [--size 1024] [--loop uvloop]

`pump` writes pre-encoded frames and counts answers: the floor of the sockets. `raw` makes each
frame from a template with its own opaque, keeps a future for it and resolves it from the answer's
decoded header: the least that a client which knows its messages' fate can do. `sdk` makes a
`Message`, sends it with `send_nowait`, 1,000 in flight. `blocking` does so from a thread with the
blocking facade, whose loop is asyncio's, in rounds of a fourth of the messages. Prints CPU time of
this process a message and the ratio to `raw`, both medians over many short rounds in which the
senders take turns, so that what else the machine does meets all of them; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from skylarkmq.client import Client, Message, Producer, TooManyInFlight
from skylarkmq.client import sync as blocking
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.frame import FrameDecoder
from tests.bench import peers

TOPIC = "client-send"
WINDOW = 1000
ROUNDS = 25
TARGET = 2.0
PREFIX = struct.Struct(">II")
HEADER = (
    b'{"code":310,"extFields":{"a":"g","b":"client-send","c":"TBW102","d":"4","e":"0","f":"0",'
    b'"g":"%d","h":"0","i":"TAGS\\u0001A\\u0002UNIQ_KEY\\u0001%s","j":"0","k":"false",'
    b'"m":"false"},"flag":0,"language":"PYTHON","opaque":%d,"version":409}'
)


class Answer(msgspec.Struct):
    """What a raw sender reads."""

    opaque: int
    code: int


decode_answer = msgspec.json.Decoder(Answer).decode


class Sender(asyncio.Protocol):
    """Keeps WINDOW messages in flight until `count` are answered."""

    def __init__(self, count: int, body: bytes, done: asyncio.Future[None]) -> None:
        self.left = count
        self.in_flight = 0
        self.body = body
        self.done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport
        self.fill()

    def fill(self) -> None:
        count = min(WINDOW - self.in_flight, self.left)
        self.left -= count
        self.in_flight += count
        if count:
            self.transport.write(self.frames(count))

    def data_received(self, data: bytes) -> None:
        self.in_flight -= self.answered(data)
        if not self.left and not self.in_flight:
            self.done.set_result(None)
        else:
            self.fill()

    def frames(self, count: int) -> bytes:
        raise NotImplementedError

    def answered(self, data: bytes) -> int:
        raise NotImplementedError


class Pump(Sender):
    """Pre-encoded frames, answers counted by their lengths."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.rest = b""
        header = HEADER % (1, b"0" * 32, 1)
        size = len(header)
        self.frame = PREFIX.pack(4 + size + len(self.body), size) + header + self.body
        super().connection_made(transport)

    def frames(self, count: int) -> bytes:
        return self.frame * count

    def answered(self, data: bytes) -> int:
        data = self.rest + data
        count = position = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4])
            if end > len(data):
                break
            position, count = end, count + 1
        self.rest = data[position:]
        return count


class Raw(Sender):
    """A frame, an opaque and a future for each message."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.loop = asyncio.get_running_loop()
        self.decoder = FrameDecoder()
        self.opaque = 0
        self.pending: dict[int, asyncio.Future[Answer]] = {}
        super().connection_made(transport)

    def frames(self, count: int) -> bytes:
        out: list[bytes] = []
        for _ in range(count):
            self.opaque += 1
            self.pending[self.opaque] = self.loop.create_future()
            header = HEADER % (time.time_ns() // 1_000_000, b"%032X" % self.opaque, self.opaque)
            size = len(header)
            out += (PREFIX.pack(4 + size + len(self.body), size), header, self.body)
        return b"".join(out)

    def answered(self, data: bytes) -> int:
        frames = self.decoder.feed(data)
        for frame in frames:
            answer = decode_answer(frame.header)
            self.pending.pop(answer.opaque).set_result(answer)
        return len(frames)


async def cost_of(work: Callable[[], Awaitable[None]], count: int) -> float:
    """CPU microseconds of this process a message."""
    started = time.process_time()
    await work()
    return (time.process_time() - started) / count * 1e6


async def measure(namesrv: str, count: int, size: int) -> dict[str, list[float]]:
    """Microseconds of CPU a message by sender, one figure a round."""
    body = b"x" * size
    costs: dict[str, list[float]] = {}
    async with Client(namesrv) as client, Producer(client=client, max_in_flight=WINDOW) as producer:
        await producer.send(Message(TOPIC, body, tags="A"))
        route = services_of(client).routes.known(TOPIC)
        assert route is not None
        host, _, port = next(iter(route.brokers.values()))[0].rpartition(":")

        async def raw(kind: type[Sender]) -> None:
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            transport, _ = await loop.create_connection(
                lambda: kind(count, body, done), host, int(port)
            )
            await done
            transport.close()

        async def sdk() -> None:
            for _ in range(count):
                message = Message(TOPIC, body, tags="A")
                try:
                    producer.send_nowait(message)
                except TooManyInFlight:
                    await producer.room()
                    producer.send_nowait(message)
            await producer.flush()

        def from_thread() -> None:
            for _ in range(count // 4):
                message = Message(TOPIC, body, tags="A")
                try:
                    facade.send_nowait(message)
                except TooManyInFlight:
                    facade.room()
                    facade.send_nowait(message)
            facade.flush()

        facade = blocking.Producer(namesrv_addr=namesrv, max_in_flight=WINDOW)
        await asyncio.to_thread(facade.start)
        await asyncio.to_thread(from_thread)
        await sdk()
        for _ in range(ROUNDS):
            for name, work, work_count in (
                ("pump", lambda: raw(Pump), count),
                ("raw", lambda: raw(Raw), count),
                ("sdk", sdk, count),
                ("blocking", lambda: asyncio.to_thread(from_thread), count // 4),
            ):
                costs.setdefault(name, []).append(await cost_of(work, work_count))
        await asyncio.to_thread(facade.stop)
        assert producer.stats.failed_count == 0
    return costs


Measure = Callable[[str, int, int], Coroutine[Any, Any, dict[str, list[float]]]]


def compare(measure: Measure, about: str, count: int, floor: str, aims: dict[str, float]) -> None:
    """Read the command line, measure beside a broker, and print each way's ratio to `floor`."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--count", type=int, default=count, help="messages a round")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    options = parser.parse_args()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else asyncio.new_event_loop
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        started = peers.broker(root, "ASYNC_FLUSH")
        with started as server, asyncio.Runner(loop_factory=factory) as runner:
            costs = runner.run(measure(server.namesrv, options.count, options.size))
    for name, values in costs.items():
        ratio = statistics.median(a / b for a, b in zip(values, costs[floor], strict=True))
        aim = f", target <= {aims[name]:g}" if name in aims else ""
        cost = statistics.median(values)
        shown = f"{cost:6.2f} us CPU a message of {options.size} B"
        print(f"{name:8} {shown}, {ratio:.2f} of {floor}{aim}")


if __name__ == "__main__":
    compare(measure, __doc__, 6_000, "raw", {"sdk": TARGET})
