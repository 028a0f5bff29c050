"""What a started client offers to its producers and consumers."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Protocol

from skylarkmq.client.api_consumer import ConsumerApi
from skylarkmq.client.config import ClientConfig
from skylarkmq.client.connection import Connection
from skylarkmq.client.hooks import ClientHook
from skylarkmq.client.nameserver import NameServers
from skylarkmq.client.pushes import PushRouter
from skylarkmq.client.remoting import Remoting
from skylarkmq.client.route import RouteTable
from skylarkmq.client.stream import Network
from skylarkmq.protocol.bodies.heartbeat import ConsumerData
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)


class Member(Protocol):
    """A consumer, as the client sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def consumer_data(self) -> ConsumerData:
        """Return its part of the heartbeat."""
        ...

    def wake(self) -> None:
        """The group's members or a route may have changed: rebalance soon."""
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
        self.pushes = PushRouter()
        self.pushes.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        self.remoting = Remoting(network, clock, random, config.codec, self.pushes.take)
        self.name_servers = NameServers(
            self.remoting, config.name_servers, config.request_timeout_s, random
        )
        self.routes = RouteTable(self.name_servers, config.mapped, clock, self._route_changed)
        self.consumer_api = ConsumerApi(self.remoting)

    def _members_changed(self, connection: Connection, push: RemotingCommand) -> None:
        member = self.members.get(push.ext_fields.get("consumerGroup", ""))
        if member is not None:
            member.wake()

    def _route_changed(self, topic: str) -> None:
        log.info("route of %s changed", topic)
        self.beat_wanted.set()  # there may be a broker that does not know this client yet
        for member in self.members.values():
            member.wake()
