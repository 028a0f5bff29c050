"""The calls of a client's life: Telemetry, Heartbeat, NotifyClientTermination.

A telemetry stream brings settings, each of which is answered, and answers to what the broker asked
over it. It is over when the client sends no more, when its settings cannot be used, or when the
broker takes the client for gone. Other commands are passed over.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/client/ClientActivity.java
"""

from __future__ import annotations

import asyncio
import logging

from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.grpc.calls import OK, Call, RpcHandlers, RpcRefused, TelemetryStream, rpc
from skylarkmq.broker.grpc.peer import Outbox
from skylarkmq.broker.grpc.sessions import Sessions
from skylarkmq.broker.grpc.settings import ClientSettings, merged, read_settings
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

log = logging.getLogger(__name__)


class SessionRpcs(RpcHandlers):
    """Handles the calls of clients' lives. Loop thread."""

    def __init__(
        self,
        sessions: Sessions,
        groups: SubscriptionGroupManager,
        clock: Clock,
        peer_clock: Clock,
        body_max: int,
    ) -> None:
        """Make it.

        Args:
            body_max: bytes of a body that the broker takes.
        """
        self._sessions = sessions
        self._groups = groups
        self._clock = clock
        self._peer_clock = peer_clock
        self._body_max = body_max
        self._namespace_told = False

    @rpc("Telemetry", schema_pb2.TelemetryCommand, schema_pb2.TelemetryCommand)
    async def telemetry(self, call: Call, stream: TelemetryStream) -> None:
        """Serve a client's stream until it is over."""
        outbox = Outbox(self._peer_clock)
        writing = asyncio.ensure_future(outbox.write_to(stream))
        reading = asyncio.ensure_future(self._read(call, stream, outbox))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                outbox.close()
                await writing
            else:
                writing.result()
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            peer = self._sessions.find(call)
            if peer is not None:
                peer.detach(outbox)

    async def _read(self, call: Call, stream: TelemetryStream, outbox: Outbox) -> None:
        while (command := await stream.read()) is not None:
            if command.HasField("settings"):
                client_settings = self._settle(call, command.settings, outbox)
                self._answer(outbox, self._own_answer(command.settings, client_settings))
            else:
                self._take_answer(call, command)

    def _settle(self, call: Call, settings: schema_pb2.Settings, outbox: Outbox) -> ClientSettings:
        """Take in what a client says of itself, and tell it things over this stream."""
        if call.namespace and not self._namespace_told:
            self._namespace_told = True
            log.warning(
                "client %s at %s names the namespace %s: no namespace is looked at, so its topics "
                "and groups are those of all others who use their names; give them other names "
                "where they are to be apart",
                shown(call.client_id),
                call.peer,
                shown(call.namespace),
            )
        known = self._sessions.find(call)
        before = None if known is None else known.settings
        client_settings = read_settings(settings, self._clock.now_ms(), before)
        self._sessions.settle(call, client_settings).attach(outbox)
        return client_settings

    def _own_answer(
        self, settings: schema_pb2.Settings, client_settings: ClientSettings
    ) -> schema_pb2.Settings:
        """Return a client's settings with what this broker has to add."""
        group: SubscriptionGroupConfig | None = None
        if client_settings.group:
            group = self._groups.table.get(client_settings.group)
            group = group or SubscriptionGroupConfig(group_name=client_settings.group)
        return merged(settings, group, self._body_max)

    def _answer(self, outbox: Outbox, settings: schema_pb2.Settings) -> None:
        if not outbox.put(schema_pb2.TelemetryCommand(status=OK, settings=settings)):
            why = "the client does not read what it asks for"
            raise RpcRefused(Code.TOO_MANY_REQUESTS, why, ends_stream=True)

    def _take_answer(self, call: Call, command: schema_pb2.TelemetryCommand) -> None:
        """Take a client's answer to a question of this broker."""
        peer = self._sessions.find(call)
        if peer is not None:
            peer.take_answer(command)

    @rpc("Heartbeat", schema_pb2.HeartbeatRequest, schema_pb2.HeartbeatResponse)
    async def heartbeat(
        self, call: Call, request: schema_pb2.HeartbeatRequest
    ) -> schema_pb2.HeartbeatResponse:
        """Keep a client in its groups."""
        self._sessions.beat(call)
        return schema_pb2.HeartbeatResponse(status=OK)

    @rpc(
        "NotifyClientTermination",
        schema_pb2.NotifyClientTerminationRequest,
        schema_pb2.NotifyClientTerminationResponse,
    )
    async def notify_client_termination(
        self, call: Call, request: schema_pb2.NotifyClientTerminationRequest
    ) -> schema_pb2.NotifyClientTerminationResponse:
        """Take a client out of its groups. Unlike RocketMQ, an unknown one may leave, too."""
        self._sessions.leave(call)
        return schema_pb2.NotifyClientTerminationResponse(status=OK)
