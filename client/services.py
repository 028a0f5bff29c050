"""What a started client offers to its producers and consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Literal, Protocol

from skylarkmq.client.config import ClientConfig
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.observe.hooks import ClientHook, each
from skylarkmq.client.producer.reply_table import ReplyTable
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.api_consumer import ConsumerApi
from skylarkmq.client.wire.connection import CODEC_FIELD, CODEC_OFFER, Connection, Peer, peer_of
from skylarkmq.client.wire.nameserver import NameServers
from skylarkmq.client.wire.pushes import Answer, CheckRouter, PushRouter
from skylarkmq.client.wire.remoting import Remoting
from skylarkmq.client.wire.route import RouteTable
from skylarkmq.client.wire.stream import Network
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumerData, HeartbeatData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)

MEMBER_CODES: Final = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""What brokers ask one member of a group for."""


class Member(Protocol):
    """A consumer, as the client sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def consumer_data(self) -> ConsumerData | None:
        """Return its part of the heartbeat; None when it is no member of its group."""
        ...

    def pushed(self, push: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Answer what a broker asks this member for: 220, 221, 307, 309."""
        ...

    def wake(self) -> None:
        """The group's members or a route may have changed: rebalance soon."""
        ...

    def refused(self, error: RocketMQError) -> None:
        """A broker refuses this client for good: who waits for messages should hear of it."""
        ...

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages it holds of each topic, and their bytes. Any thread."""
        ...


class Services:
    """The parts that all producers and consumers of one client share. Loop thread."""

    def __init__(self, config: ClientConfig, network: Network, clock: Clock, random: Random):
        self.config = config
        self.clock = clock
        self.random = random
        self.members: dict[str, Member] = {}
        """Consumers by group."""
        self.beat_wanted = asyncio.Event()
        self.hooks: list[ClientHook] = []
        self.reconnect_listeners: set[Callable[[str], None]] = set()
        """Told the address when a connection that was lost stands again."""
        self.pushes = PushRouter()
        self.pushes.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        for code in MEMBER_CODES:
            self.pushes.on(code, self._to_member)
        self.check_listeners = CheckRouter()
        self.pushes.on(RequestCode.CHECK_TRANSACTION_STATE, self.check_listeners.take)
        self.namespace = Namespace(config.namespace)
        """Wraps names of topics and groups on their way in, and unwraps them on their way out."""
        self.client_id = ""
        self.replies = ReplyTable(clock, self.namespace.unwrap)
        self.pushes.on(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.replies.take)
        self.remoting = Remoting(
            network,
            clock,
            random,
            config.codec,
            self.pushes.take,
            signer=None if config.credentials is None else Signer(config.credentials),
            name_servers=config.name_servers,
            on_reconnect=self._reconnected,
        )
        self.name_servers = NameServers(
            self.remoting, config.name_servers, config.request_timeout_s, random, clock
        )
        self.routes = RouteTable(self.name_servers, config.mapped, clock, self._route_changed)
        self.consumer_api = ConsumerApi(self.remoting)

    def known_peer(self, address: str) -> Peer | None:
        """Return what is known of the broker that is connected there; no I/O."""
        connection = self.remoting.ready(address)
        return None if connection is None else connection.peer

    async def peer(self, address: str) -> Peer:
        """Return what the broker at `address` is, asking it by an empty heartbeat if need be.

        Raises:
            RocketMQError: no connection, or no answer.
        """
        connection = await self.remoting.connection(address)
        if connection.peer is None:
            body = encode_body(HeartbeatData(client_id=self.client_id))
            offer = {CODEC_FIELD: CODEC_OFFER}
            question = RemotingCommand.request(RequestCode.HEART_BEAT, offer, body)
            timeout_s = self.config.request_timeout_s
            answer = await connection.call(question, timeout_s, SerializeType.JSON)
            connection.peer = connection.peer or peer_of(answer)
        return connection.peer

    async def broker_version(self, address: str) -> int:
        """Return the release ordinal that the broker at `address` claims, see `MQVersion`.

        Raises:
            RocketMQError: no connection, or no answer.
        """
        return (await self.peer(address)).version

    def _reconnected(self, address: str) -> None:
        # A broker knows a client by its connection: the new one is nobody before a heartbeat.
        self.beat_wanted.set()
        for listener in list(self.reconnect_listeners):
            listener(address)
        if self.hooks:
            kind: Literal["broker", "namesrv"] = (
                "namesrv" if address in self.config.name_servers else "broker"
            )
            each(self.hooks, lambda hook: hook.reconnected(kind))

    def _members_changed(self, connection: Connection, push: RemotingCommand) -> None:
        member = self.members.get(push.ext_fields.get("consumerGroup", ""))
        if member is not None:
            member.wake()

    def _to_member(
        self, connection: Connection, push: RemotingCommand
    ) -> Answer | Awaitable[Answer]:
        group = push.ext_fields.get("consumerGroup") or push.ext_fields.get("group", "")
        member = self.members.get(group)
        if member is not None:
            return member.pushed(push)
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return push.reply(ResponseCode.SYSTEM_ERROR, remark)

    def _route_changed(self, topic: str) -> None:
        log.info("route of %s changed", topic)
        self.beat_wanted.set()  # there may be a broker that does not know this client yet
        for member in self.members.values():
            member.wake()
