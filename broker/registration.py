"""Tells name servers about this broker and its topics, and says good-bye at the stop.

To every name server separately and at once: all topics at the start and every
`registerNameServerPeriod` (10 to 60 s); the topics that changed as soon as they do. What changes
while a registration is under way goes with the next one. With `forceRegister=false` the periodic
one first asks whether the name server has another version. A name server that cannot be reached is
tried again after a second, then after twice as long each time, up to the period; one whose
connection ends is tried at once, so a name server that was started again knows its brokers soon.
Unlike RocketMQ, which waits for the next period.

Name servers answer with the topics that are consumed in order: they are marked as such here, as
`updateOrderConf` of RocketMQ's tools wants it. A mark goes once every name server has answered and
none of them names the topic.

A slave registers with its own id, and name servers answer where its master is; while none of them
knows, it asks every 3 s. The topics that it names count for nobody; its own come from its master,
and no name server changes them.

The built-in name server is told by a call in this process, before the change that caused it is
answered, so the next route question finds it. Nothing here keeps the broker waiting, and a name
server that cannot be reached costs one log line a minute.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (registerBrokerAll,
registerIncrementBrokerData), broker/.../out/BrokerOuterAPI.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.config.settings import READ_WRITE, BrokerConfig, parse_namesrv_addresses
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG
from skylarkmq.broker.net.outgoing import outgoing_client
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.crc import body_crc
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.bodies.route import (
    KVTable,
    RegisterBrokerBody,
    encode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, WireError, shown
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.route import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.errors import RocketMQError
from skylarkmq.remoting.waiting import backoff_s, wait_event, within

log = logging.getLogger(__name__)

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
UNREGISTER_TIMEOUT_S: Final = 2.0
LOG_INTERVAL_S: Final = 60.0
RETRY_FIRST_S: Final = 1.0
ASK_AGAIN_S: Final = 3.0
# A registration up to its topics, as `encode_body` writes it.
_HEAD: Final = b'{"filterServerList":[],"topicConfigSerializeWrapper":'


class Registration:
    """What this broker says of itself. Loop thread."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        address: str,
        ha_port: int | None = None,
    ) -> None:
        """Make it.

        Args:
            ha_port: where slaves connect; None: nobody listens for them, but the header of 103 has
                no way to say so, and gets the port of the configuration.
        """
        host, _, port = address.rpartition(":")
        self.config = config
        self.address = address
        ha_port = config.ha_port(int(port)) if ha_port is None else ha_port
        self._ha_server_address = f"{config.broker_ip2 or host}:{ha_port}"
        period_ms = min(max(config.register_name_server_period, PERIOD_MS_MIN), PERIOD_MS_MAX)
        self.period_s = period_ms / 1000
        self._topics = topics

    def body(self, names: set[str] | None = None) -> RegisterBrokerBody:
        """Return all topics, or those of `names` that are there."""
        table = self._topics.table
        if names is not None:
            table = {name: table[name] for name in names if name in table}
        if self.config.broker_permission != READ_WRITE:
            table = {name: self._restricted(topic) for name, topic in table.items()}
        wrapper = TopicConfigSerializeWrapper(
            data_version=self._topics.data_version, topic_config_table=table
        )
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)

    def header(self, *, compressed: bool = False, crc: int = 0) -> RegisterBrokerRequestHeader:
        """Return the header of a registration."""
        return RegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            ha_server_addr=self._ha_server_address,
            broker_id=self.config.broker_id,
            compressed=compressed,
            body_crc32=crc,
        )

    def command(self, names: set[str] | None = None) -> RemotingCommand:
        """Return a registration of all topics, or of those of `names`.

        Raises:
            LocalProtocolError: a text that UTF-8 cannot carry.
        """
        compressed = self.config.compressed_register
        content = self.body(names)
        body = encode_compressed_registration(content) if compressed else encode_body(content)
        header = self.header(compressed=compressed, crc=body_crc(body))
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, encode_fields(header), body)

    async def full_command(self) -> RemotingCommand:
        """Return a registration of all topics, whose text is not made anew while none changes.

        Raises:
            LocalProtocolError: a text that UTF-8 cannot carry.
        """
        if self.config.compressed_register or self.config.broker_permission != READ_WRITE:
            return self.command()
        body = _HEAD + await self._topics.body.encoded() + b"}"
        fields = encode_fields(self.header(crc=body_crc(body)))
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body)

    def query(self) -> RemotingCommand:
        """Return the question whether the name server has another version of the topics."""
        header = QueryDataVersionRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=self.config.broker_id,
        )
        body = encode_body(self._topics.data_version)
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, encode_fields(header), body)

    def good_bye(self) -> RemotingCommand:
        """Return the end of the registration."""
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=self.config.broker_id,
        )
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, encode_fields(header))

    def _restricted(self, topic: TopicConfig) -> TopicConfig:
        return msgspec.structs.replace(topic, perm=self.config.broker_permission)


class NamesrvLink:
    """Keeps this broker registered with one name server outside. Loop thread.

    Attributes:
        has_answered: a registration was taken at some time.
        order_topics: the topics that it named as consumed in order; None: it keeps no such table.
    """

    def __init__(
        self,
        address: str,
        remoting: RemotingClient,
        registration: Registration,
        clock: Clock,
        on_answer: Callable[[RegisterBrokerResponseHeader], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            on_answer: called after each registration of all topics that was taken.
        """
        self.address = address
        self.has_answered = False
        self.order_topics: frozenset[str] | None = None
        self._on_answer = on_answer
        self._remoting = remoting
        self._registration = registration
        self._clock = clock
        self._timeout_s = registration.config.register_broker_timeout_mills / 1000
        self._all_wanted = True
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_registered = False
        self._may_be_known = False  # a registration was sent, whatever became of it
        self._silent_until_s = 0.0  # no log line about a failure before this time
        self._failure_count = 0  # in a row
        self._retry: TimerHandle | None = None

    def start(self) -> None:
        """Register now, and whenever something wants it."""
        self._wake.set()
        self._task = asyncio.ensure_future(self._run())

    def register_all(self) -> None:
        """Have all topics registered soon."""
        self._all_wanted = True
        self._wake.set()

    def register_topic(self, topic: str) -> None:
        """Have one topic registered soon."""
        self._changed.add(topic)
        self._wake.set()

    async def stop(self) -> None:
        """Say good-bye when the name server may know us."""
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._may_be_known:
            good_bye = self._registration.good_bye()
            try:
                await within(self._clock, UNREGISTER_TIMEOUT_S, self._call(good_bye))
            except (RocketMQError, TimeoutError) as error:
                log.warning("name server %s: no good-bye: %s", self.address, error)

    async def _run(self) -> None:
        while True:  # until `stop` cancels the task
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._register()
            except (RocketMQError, WireError) as error:
                self._failed(error)
            except Exception:
                log.exception("registration with %s failed; going on", self.address)
                self.is_registered = False
            if not self.is_registered:
                self._try_again_later()

    async def _register(self) -> None:
        # Where the connection has ended we may be forgotten; and a name server that meets us by a
        # part takes no further topics from a whole of the same version.
        is_known = self.is_registered and self._remoting.ready(self.address) is not None
        registration, is_full = self._registration, self._all_wanted or not is_known
        names, self._changed, self._all_wanted = self._changed, set(), False
        config = registration.config
        may_ask = not config.force_register and not config.store.is_slave  # it wants the answer
        if is_full and may_ask and await self._is_current():
            self.is_registered = self._may_be_known = True
            self._failure_count = 0
            return
        command = await registration.full_command() if is_full else registration.command(names)
        self._may_be_known = True
        answer = await self._call(command)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(answer.code, shown(answer.remark or ""))
        if not self.is_registered:
            log.info("registered with name server %s", self.address)
        self.is_registered = self.has_answered = True
        self._silent_until_s = 0.0
        self._failure_count = 0
        if is_full:  # tools mark a topic first, and tell name servers after that
            self.order_topics = _order_topics(answer, self.address)
            self._on_answer(decode_fields(RegisterBrokerResponseHeader, answer.ext_fields))

    async def _is_current(self) -> bool:
        """Return whether the name server has our present topics; it learns that we are alive."""
        answer = await self._call(self._registration.query())
        if answer.code != ResponseCode.SUCCESS:
            return False
        return not decode_fields(QueryDataVersionResponseHeader, answer.ext_fields).changed

    async def _call(self, command: RemotingCommand) -> RemotingCommand:
        return await self._remoting.call(self.address, command, self._timeout_s)

    def _try_again_later(self) -> None:
        self._failure_count += 1
        if self._retry is not None:
            self._retry.cancel()
        wait_s = backoff_s(self._failure_count, RETRY_FIRST_S, self._registration.period_s)
        self._retry = self._clock.call_at(self._clock.monotonic() + wait_s, self._wake.set)

    def _failed(self, error: Exception) -> None:
        # The next one is a full one; and where the connection ended, we are forgotten already.
        self.is_registered = self._may_be_known = False
        if self._clock.monotonic() >= self._silent_until_s:
            self._silent_until_s = self._clock.monotonic() + LOG_INTERVAL_S
            log.warning(
                "registration with name server %s failed: %s; trying again",
                self.address,
                str(error) or type(error).__name__,
            )


def _order_topics(answer: RemotingCommand, address: str) -> frozenset[str] | None:
    """Return the topics in the order table of a registration's answer, None without a table."""
    if not answer.body:
        return None
    try:
        return frozenset(decode_body(KVTable, answer.body).table)
    except WireError as error:
        log.warning("name server %s: its table of ordered topics is left out: %s", address, error)
        return None


class RegistrationService:
    """Keeps this broker registered everywhere. Loop thread."""

    def __init__(
        self,
        registration: Registration,
        topics: TopicConfigManager,
        clock: Clock,
        namesrv: NamesrvController | None = None,
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
        self._is_slave = config.store.is_slave
        self._asking: TimerHandle | None = None  # while no name server knows the master
        self._master = master
        self._registration = registration
        self._topics = topics
        self._namesrv = namesrv
        self._routes = None if namesrv is None else namesrv.routes
        self._remoting = outgoing_client(clock, tls, access, self._lost)
        self._links = [
            NamesrvLink(name_server, self._remoting, self._registration, clock, self._answered)
            for name_server in parse_namesrv_addresses(config.namesrv_addr)
        ]
        self._timer = IntervalTimer(clock, self._registration.period_s, self._register_all)
        self._tls = tls
        self._is_running = False
        self._known = asyncio.Event()
        topics.add_change_listener(self._topic_changed)
        topics.add_deletion_listener(self._topic_deleted)
        topics.add_reset_listener(self.register_again)

    async def start(self) -> None:
        """Register with the built-in name server now and with the others soon."""
        self._is_running = True
        self._register_locally(None)
        for link in self._links:
            link.start()
        self._timer.start()
        if self._tls is not None:
            self._tls.contexts.start()

    async def stop(self) -> None:
        """Unregister everywhere; waits at most UNREGISTER_TIMEOUT_S for a silent name server."""
        self._is_running = False
        self._timer.stop()
        if self._asking is not None:
            self._asking.cancel()
        if self._tls is not None:
            self._tls.contexts.stop()
        if self._routes is not None:
            header = self._registration.header()
            self._routes.unregister(header.broker_name, header.broker_addr, None)
        await asyncio.gather(*(link.stop() for link in self._links))
        await self._remoting.stop()

    @property
    def why_unknown(self) -> str:
        """Why clients cannot find this broker yet; empty when a name server knows it."""
        if self._routes is not None or not self._links:
            return ""
        if any(link.is_registered for link in self._links):
            return ""
        return "no name server has taken the registration yet"

    async def known(self, limit_s: float) -> None:
        """Wait until clients can find this broker, at most `limit_s`."""
        if self.why_unknown:
            await wait_event(self._clock, self._known, limit_s)

    def _register_all(self) -> None:
        self._register_locally(None)
        for link in self._links:
            link.register_all()

    def _lost(self, address: str) -> None:
        """A connection has ended: the name server has forgotten us, or was started again."""
        for link in self._links:
            if link.address == address and self._is_running:
                link.register_all()

    def _answered(self, answer: RegisterBrokerResponseHeader) -> None:
        """Take what a name server says about this broker's master and topics."""
        self._known.set()
        if not self._is_slave:
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
        tables = [link.order_topics for link in self._links]
        if self._namesrv is not None:
            kept = self._namesrv.kv.of_namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
            tables.append(None if kept is None else frozenset(kept))
        named = [table for table in tables if table is not None]
        if not self._is_running or not named:
            return
        ordered = frozenset[str]().union(*named)
        all_heard = all(link.has_answered for link in self._links)
        for topic in list(self._topics.table.values()):
            order = topic.topic_name in ordered or (topic.order and not all_heard)
            if order != topic.order:
                log.info("topic %s: order=%s, as name servers say", topic.topic_name, order)
                self._topics.update(msgspec.structs.replace(topic, order=order))

    def _topic_changed(self, topic: TopicConfig) -> None:
        if not self._is_running or self._is_slave:
            return
        self._register_locally({topic.topic_name})
        for link in self._links:
            link.register_topic(topic.topic_name)

    def _topic_deleted(self, topic: str) -> None:
        # Name servers elsewhere forget a topic only by 216, which tools send them.
        if self._is_running and self._routes is not None and not self._is_slave:
            self._routes.forget_topic(topic, {self._registration.config.broker_name})

    def register_again(self) -> None:
        """Register all topics soon, for a name server that may have lost its tables."""
        if self._is_running:
            self._register_all()

    def _register_locally(self, names: set[str] | None) -> None:
        if self._routes is None:
            return
        if self._routes.data_version(self._registration.address) is None:
            names = None  # it does not know us: all topics, as `NamesrvLink` does
        registration = self._registration
        try:
            answer = self._routes.register(registration.header(), registration.body(names), None)
        except RemoteProtocolError as error:
            log.error("the built-in name server refuses this broker: %s", error)
            return
        if names is None:
            self._answered(answer)
