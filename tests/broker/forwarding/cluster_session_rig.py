"""An endpoint that stands for several brokers, without a transport: each is handlers over tables.

`Brokers` takes the place of the connections to the other ones: what is written to a stream there is
what the other's handler reads, and back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from skylarkmq.broker.forwarding.cluster_sessions import Cluster, ClusterSessionRpcs
from skylarkmq.broker.forwarding.forwarder import Forwarder
from skylarkmq.broker.forwarding.upstream import UpstreamError
from skylarkmq.broker.grpc.calls import Call, Rpc, failure, rpc_table
from skylarkmq.broker.grpc.endpoint import call_of
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.broker.grpc.sessions import Sessions
from skylarkmq.protocol.bodies.route import QueueData
from skylarkmq.protocol.http2.grpc import GrpcStatus, Metadata
from skylarkmq.protocol.v5 import schema_pb2
from tests.broker.grpc.session_rig import BODY_MAX, SessionRig, a_call

OWN_ADDRESS = "own:8081"


def from_client(client_id: str = "c@1", **changes: Any) -> Call:
    """A call with the metadata that a client sends."""
    return a_call(client_id, metadata={"x-mq-client-id": client_id}, **changes)


def at(name: str, address: str = "") -> OtherBroker:
    """A broker; its endpoint has its name, unless another replica leads."""
    queues = QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2)
    return OtherBroker(queues, "clients:1", address or name)


class Line:
    """One stream to another broker: both of its ends.

    Attributes:
        way: cleared: what the broker says waits.
    """

    def __init__(self) -> None:
        self.way = asyncio.Event()
        self.way.set()
        self.there: asyncio.Queue[schema_pb2.TelemetryCommand | None] = asyncio.Queue()
        self.back: asyncio.Queue[bytes | UpstreamError | None] = asyncio.Queue()

    # As its own handler sees it

    async def read(self) -> schema_pb2.TelemetryCommand | None:
        return await self.there.get()

    async def write(self, command: schema_pb2.TelemetryCommand) -> None:
        await self.way.wait()
        self.back.put_nowait(command.SerializeToString())


class Near:
    """The other end."""

    def __init__(self, line: Line, brokers: Brokers) -> None:
        self._line = line
        self._brokers = brokers

    async def write(self, data: bytes) -> None:
        await self._brokers.room.wait()
        self._line.there.put_nowait(schema_pb2.TelemetryCommand.FromString(data))

    def end(self) -> None:
        self._line.there.put_nowait(None)

    async def read(self) -> bytes | None:
        data = await self._line.back.get()
        if isinstance(data, UpstreamError):
            raise data
        return data


class Brokers:
    """Other brokers by the addresses of their endpoints.

    Attributes:
        down: addresses where nobody answers.
        silent: addresses where calls are not answered.
        lines: open streams by address.
        opened: how many streams were opened, by address.
        called: name and address of each call that was made.
        on_call: told of each attempt.
        room: cleared: nothing can be written.
    """

    def __init__(self) -> None:
        self.rigs: dict[str, SessionRig] = {}
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.lines: dict[str, list[Line]] = {}
        self.opened: Counter[str] = Counter()
        self.called: list[tuple[str, str]] = []
        self.on_call: Callable[[], None] = lambda: None
        self.room = asyncio.Event()
        self.room.set()

    def _rpc(self, address: str, path: str, metadata: Mapping[str, str]) -> tuple[Rpc, Call]:
        self.on_call()
        if address in self.down:
            raise UpstreamError(GrpcStatus.UNAVAILABLE, "nobody listens", reached=False)
        rpc = rpc_table([self.rigs[address].rpcs])[path.rpartition("/")[2]]
        fields = [(name.encode(), value.encode()) for name, value in metadata.items()]
        call = call_of(Metadata(fields), metadata["x-skylarkmq-client"], None)
        return rpc, call

    async def unary(
        self,
        address: str,
        path: str,
        metadata: Mapping[str, str],
        request: bytes,
        timeout_s: float | None,
    ) -> bytes:
        rpc, call = self._rpc(address, path, metadata)
        self.called.append((rpc.name, address))
        if address in self.silent:
            await asyncio.Event().wait()
        try:
            answer = await rpc.handler(call, rpc.request.FromString(request))
        except Exception as error:
            answer = rpc.answer(failure(error, rpc.name, call))
        return answer.SerializeToString()

    @asynccontextmanager
    async def stream(
        self, address: str, path: str, metadata: Mapping[str, str], timeout_s: float | None = None
    ) -> AsyncGenerator[Near]:
        rpc, call = self._rpc(address, path, metadata)
        line = Line()
        self.opened[address] += 1
        lines = self.lines.setdefault(address, [])
        lines.append(line)
        task = asyncio.ensure_future(self._serve(address, rpc, call, line))
        try:
            yield Near(line, self)
        finally:
            lines.remove(line)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _serve(self, address: str, rpc: Rpc, call: Call, line: Line) -> None:
        if address in self.silent:
            await asyncio.Event().wait()
        await rpc.handler(call, line)
        line.back.put_nowait(None)

    def cut(self, address: str) -> None:
        """Break the streams to a broker."""
        for line in self.lines.get(address, []):
            line.back.put_nowait(UpstreamError(GrpcStatus.UNAVAILABLE, "cut", reached=True))


class FakeOtherBrokers:
    """Where topics are, as the test says.

    Attributes:
        way: cleared: who asks for what is not known waits.
    """

    def __init__(self) -> None:
        self.places: dict[str, list[OtherBroker]] = {}
        self.way = asyncio.Event()
        self.way.set()
        self.is_known = True

    def known(self, topic: str) -> list[OtherBroker] | None:
        return self.places.get(topic, []) if self.is_known else None

    async def of(self, topic: str) -> list[OtherBroker]:
        await self.way.wait()
        return self.places.get(topic, [])


class ClusterRig(SessionRig):
    """This endpoint's handlers, and those of other brokers."""

    def __init__(self, *others: str, **config: Any) -> None:
        super().__init__(**config)
        self.leads = True
        self.others = Brokers()
        self.other_brokers = FakeOtherBrokers()
        for name in others:
            self.others.rigs[name] = rig = SessionRig(broker_name=name)
            rig.start()
        other_brokers: Any = self.other_brokers
        self.forwarder = Forwarder(self.others, self.clock, OWN_ADDRESS)
        cluster = Cluster(
            self.config.broker_name,
            self.topics,
            lambda: self.leads,
            other_brokers,
            self.forwarder,
            self.clock,
        )
        self.sessions: Sessions
        self.rpcs = ClusterSessionRpcs(self.sessions, self.groups, self.clock, cluster, BODY_MAX)

    def __getitem__(self, name: str) -> SessionRig:
        return self.others.rigs[name]
