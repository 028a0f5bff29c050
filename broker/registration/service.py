"""Tells all name servers about this broker and its topics, and says good-bye at the stop.

To every name server separately and at once: all topics at the start and every
`registerNameServerPeriod` (10 to 60 s); the topics that changed as soon as they do. With
`forceRegister=false` the periodic one first asks whether the name server has another version.
Nothing here keeps the broker waiting.

Name servers answer with the topics that are consumed in order: they are marked as such here, as
`updateOrderConf` of RocketMQ's tools wants it. A mark goes once every name server has answered and
none of them names the topic.

A slave registers with its own id, and name servers answer where its master is; while none of them
knows, it asks every 3 s. The topics that it names count for nobody; its own come from its master,
and no name server changes them.

Where another broker is in this one's place is told in the log, once a minute, and by `why_unknown`.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (registerBrokerAll,
registerIncrementBrokerData), broker/.../out/BrokerOuterAPI.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.access.outgoing import outgoing_client
from skylarkmq.broker.config.settings import parse_namesrv_addresses
from skylarkmq.broker.metrics.runtime_info import GRPC_ADDRESS, GRPC_ENDPOINT, GrpcPlaces
from skylarkmq.broker.namesrv.built_in import BuiltInNamesrv
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.broker.registration.links import BuiltInLink, NamesrvLink, granted
from skylarkmq.broker.registration.registration import RegisteredRole, Registration
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.bodies.route import KVTable, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.headers.route import RegisterBrokerResponseHeader
from skylarkmq.remoting.errors import RocketMQError
from skylarkmq.remoting.waiting import wait_event

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 3.0


class RegistrationService:
    """Keeps this broker registered everywhere. Loop thread."""

    def __init__(
        self,
        registration: Registration,
        topics: TopicConfigManager,
        clock: Clock,
        namesrv: BuiltInNamesrv | None = None,
        tls: OutgoingTls | None = None,
        access: AccessFiles | None = None,
        master: MasterAddress | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            namesrv: the name server in this process.
            tls: for the connections to name servers; None: plain text.
            access: has the account of an admin, which signs what goes to name servers elsewhere.
            master: told where a slave's master is; None for a broker that does not ask.
        """
        config = registration.config
        self._clock = clock
        self._asking: TimerHandle | None = None  # while no name server knows the master
        self._master = master
        self._registration = registration
        self._topics = topics
        self._remoting = outgoing_client(clock, tls, access, self._lost)
        self._links = [
            NamesrvLink(name_server, self._remoting, registration, clock, self._answered)
            for name_server in parse_namesrv_addresses(config.namesrv_addr)
        ]
        self._built_in: BuiltInLink | None = None
        self._all: list[BuiltInLink | NamesrvLink] = [*self._links]
        if namesrv is not None:
            self._built_in = BuiltInLink(namesrv, registration, clock, self._answered)
            self._all.insert(0, self._built_in)
        self._timer = IntervalTimer(clock, registration.period_s, self._period_ended)
        self._tls = tls
        self._is_running = False
        self._known = asyncio.Event()
        topics.add_change_listener(self._topic_changed)
        topics.add_deletion_listener(self._topic_deleted)
        topics.add_reset_listener(self.register_again)

    async def start(self) -> None:
        """Register with the built-in name server now and with the others soon."""
        self._is_running = True
        for link in self._all:
            link.start()
        self._timer.start()
        if self._tls is not None:
            self._tls.contexts.start()

    async def stop(self) -> None:
        """Unregister everywhere; a silent name server is not waited for long."""
        self._is_running = False
        self._timer.stop()
        if self._asking is not None:
            self._asking.cancel()
        if self._tls is not None:
            self._tls.contexts.stop()
        await asyncio.gather(*(link.stop() for link in self._all))
        await self._remoting.stop()

    def set_role(self, role: RegisteredRole | None) -> None:
        """Register as another one from now on, everywhere; None: say good-bye.

        The built-in name server is told when this returns, the others soon.
        """
        if role == self._registration.role:
            return
        self._registration.role = role
        if role is None:
            self._known.clear()
        if self._is_running:
            for link in self._all:
                link.role_changed()

    @property
    def name_servers(self) -> dict[str, bool]:
        """Return whether each name server elsewhere has taken the last registration."""
        return {link.address: link.is_registered for link in self._links}

    @property
    def why_unknown(self) -> str:
        """Why clients cannot find this broker; empty when a name server knows it.

        Also when they find another one in its place.
        """
        if self._registration.role is None:
            return "it neither leads nor follows yet, so that it is registered nowhere"
        conflict = next((link.conflict for link in self._all if link.conflict), "")
        if conflict:
            return conflict
        if not self._all or any(link.is_registered for link in self._all):
            return ""
        return "no name server has taken the registration yet"

    @property
    def is_master(self) -> bool:
        """Whether clients send here."""
        role = self._registration.role
        return role is not None and role.broker_id == MASTER_ID

    def withhold(self, permissions: Mapping[str, int]) -> None:
        """Register these topics with no more than these permissions, all others with their own.

        The built-in name server is told when this returns, the others soon.
        """
        self._registration.withheld = dict(permissions)
        self._topics.tell_again()

    async def grpc_places(self, address: str) -> GrpcPlaces | None:
        """Return where another broker is found by gRPC; None: it has no endpoint.

        Raises:
            RocketMQError: it does not answer.
            WireError: it answers nonsense, or refuses to, as one that is busy: it may have one.
        """
        asked = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        timeout_s = self._registration.config.register_broker_timeout_mills / 1000
        answer = granted(await self._remoting.call(address, asked, timeout_s))
        table = decode_body(KVTable, answer.body).table
        endpoint = table.get(GRPC_ENDPOINT)
        return None if endpoint is None else GrpcPlaces(endpoint, table.get(GRPC_ADDRESS, endpoint))

    def not_told(self) -> list[str]:
        """Return the name servers that can be reached, and have not taken all topics yet."""
        return [link.address for link in self._links if link.is_behind]

    async def routes(self, topic: str) -> list[TopicRouteData | None]:
        """Return what each name server that answers tells clients of a topic; None: nothing."""
        asked = (link.route(topic) for link in self._links or self._all)
        answers: list[TopicRouteData | None] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if answer is None or isinstance(answer, TopicRouteData):
                answers.append(answer)
            elif not isinstance(answer, RocketMQError | WireError):
                raise answer
        return answers

    async def known(self, limit_s: float) -> None:
        """Wait until clients can find this broker, at most `limit_s`."""
        if self.why_unknown:
            await wait_event(self._clock, self._known, limit_s)

    def _period_ended(self) -> None:
        if self._registration.role is not None:
            self._register_all(look=True)

    def _register_all(self, *, look: bool = False) -> None:
        for link in self._all:
            link.register_all(look=look)

    def _lost(self, address: str) -> None:
        """A connection has ended: the name server has forgotten us, or was started again."""
        for link in self._links:
            if link.address == address and self._is_running:
                link.register_all()  # without a role it is gone there, which is well

    def _answered(self, answer: RegisterBrokerResponseHeader) -> None:
        """Take what a name server says about this broker's master and topics."""
        if self._registration.role is None:
            return  # it was given up while the answer was on its way
        self._known.set()
        if self.is_master:
            self._mark_ordered()
        elif self._master is not None:
            self._master.told(answer)
            if self._master.address is None and self._asking is None:
                when_s = self._clock.monotonic() + ASK_AGAIN_S
                self._asking = self._clock.call_at(when_s, self._ask_again)

    def _ask_again(self) -> None:
        """Register again: the master may have started after this slave."""
        self._asking = None
        if self._master is not None and self._master.address is None:
            self._register_all()

    def _mark_ordered(self) -> None:
        named = [link.order_topics for link in self._all if link.order_topics is not None]
        if not self._is_running or not named:
            return
        ordered = frozenset[str]().union(*named)
        all_heard = all(link.has_answered for link in self._all)
        for topic in list(self._topics.table.values()):
            order = topic.topic_name in ordered or (topic.order and not all_heard)
            if order != topic.order:
                log.info("topic %s: order=%s, as name servers say", topic.topic_name, order)
                self._topics.update(msgspec.structs.replace(topic, order=order))

    def _topic_changed(self, topic: TopicConfig) -> None:
        if self._leads():
            for link in self._all:
                link.register_topic(topic.topic_name)

    def _topic_deleted(self, topic: str) -> None:
        # Name servers elsewhere forget a topic only by 216, which tools send them.
        if self._leads() and self._built_in is not None:
            self._built_in.forget_topic(topic)

    def register_again(self) -> None:
        """Register all topics soon, for a name server that may have lost its tables."""
        if self._is_running:
            self._register_all()

    def _leads(self) -> bool:
        """Return whether the topics here are what name servers are to know."""
        return self._is_running and self.is_master
