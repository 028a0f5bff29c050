"""Clients of the gRPC service without a transport: their calls, and their telemetry streams."""

from __future__ import annotations

import asyncio
from typing import Any

from skylarkmq.broker.grpc.calls import Call
from skylarkmq.broker.grpc.sessions import Sessions
from skylarkmq.broker.grpc.telemetry import SessionRpcs
from skylarkmq.broker.housekeeping import ClientHousekeepingService
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.v5 import schema_pb2
from tests.broker.group_rig import GroupRig
from tests.support.manual_clock import settle

GROUP, TOPIC = "g", "T"
BODY_MAX = 4 << 20
BROKER = "broker-a"


def a_call(client_id: str = "c@1", **changes: Any) -> Call:
    values: dict[str, Any] = {"language": "JAVA", "version": "5.0.8", "peer": "192.0.2.5:4711"}
    return Call(client_id, **{**values, **changes})


def resource(name: str) -> schema_pb2.Resource:
    return schema_pb2.Resource(name=name)


def publishing(*topics: str) -> schema_pb2.Settings:
    """The settings of a producer."""
    named = schema_pb2.Publishing(topics=[resource(topic) for topic in topics])
    return schema_pb2.Settings(client_type=schema_pb2.PRODUCER, publishing=named)


def subscription(
    *topics: str,
    group: str = GROUP,
    kind: schema_pb2.ClientType = schema_pb2.PUSH_CONSUMER,
    expression: str = "*",
) -> schema_pb2.Settings:
    """The settings of a consumer."""
    wanted = [
        schema_pb2.SubscriptionEntry(
            topic=resource(topic),
            expression=schema_pb2.FilterExpression(type=schema_pb2.TAG, expression=expression),
        )
        for topic in topics or (TOPIC,)
    ]
    named = schema_pb2.Subscription(group=resource(group), subscriptions=wanted)
    return schema_pb2.Settings(client_type=kind, subscription=named)


class Stream:
    """A telemetry stream as its handler sees it; the test is the client."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[schema_pb2.TelemetryCommand | None] = asyncio.Queue()
        self.room = asyncio.Event()
        self.room.set()
        self.sent: list[schema_pb2.TelemetryCommand] = []

    async def read(self) -> schema_pb2.TelemetryCommand | None:
        return await self._commands.get()

    async def write(self, command: schema_pb2.TelemetryCommand) -> None:
        await self.room.wait()
        self.sent.append(command)

    def says(self, **command: Any) -> None:
        """Have the client send a command."""
        self._commands.put_nowait(schema_pb2.TelemetryCommand(**command))

    def half_closes(self) -> None:
        self._commands.put_nowait(None)

    def took(self) -> list[schema_pb2.TelemetryCommand]:
        """What the client was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent


class SessionRig(GroupRig):
    """The handlers of clients' lives over real tables, on a manual clock."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.sessions = Sessions(
            self.consumers,
            self.producers,
            self.clock,
            self.clock,
            BODY_MAX,
            self.config.broker_name,
        )
        self.rpcs = SessionRpcs(self.sessions, self.groups, self.clock, self.clock, BODY_MAX)
        self.housekeeping = ClientHousekeepingService(
            self.clock, self.consumers, self.producers, self.locks
        )
        self.released: list[tuple[str, str]] = []
        self.sessions.release = lambda client_id, group: self.released.append((client_id, group))
        self.tasks: list[asyncio.Task[None]] = []

    def group(self, name: str = GROUP, **settings: Any) -> None:
        """Make a group, durable."""
        self.groups.update(SubscriptionGroupConfig(group_name=name, **settings))
        self.workers.run_all()

    async def open(
        self, settings: schema_pb2.Settings | None = None, call: Call | None = None
    ) -> Stream:
        """A client's stream, with its settings said and answered."""
        stream = Stream()
        task = asyncio.ensure_future(self.rpcs.telemetry(call or a_call(), stream))
        self.tasks.append(task)
        if settings is not None:
            stream.says(settings=settings)
        await settle(20)
        return stream

    async def beat(self, call: Call | None = None) -> int:
        """The code of a heartbeat's answer."""
        answer = await self.rpcs.heartbeat(call or a_call(), schema_pb2.HeartbeatRequest())
        return answer.status.code

    async def leave(self, call: Call | None = None) -> None:
        await self.rpcs.notify_client_termination(
            call or a_call(), schema_pb2.NotifyClientTerminationRequest()
        )
