"""Tells name servers about this broker and its topics, and says good-bye at the stop.

To every name server separately and at once: all topics at the start and every
`registerNameServerPeriod` (10 to 60 s); the topics that changed as soon as they do. What changes
while a registration is under way goes with the next one. With `forceRegister=false` the periodic
one first asks whether the name server has another version. A name server that refuses or does not
answer is tried again after a second, then after twice as long each time, up to the period; one that
cannot be reached at least every AWAY_MAX_S, and one whose connection ends at once, so a name server
that was started again knows its brokers soon. Unlike RocketMQ, which waits for the next period.

Name servers answer with the topics that are consumed in order: they are marked as such here, as
`updateOrderConf` of RocketMQ's tools wants it. A mark goes once every name server has answered and
none of them names the topic.

A slave registers with its own id, and name servers answer where its master is; while none of them
knows, it asks every 3 s. The topics that it names count for nobody; its own come from its master,
and no name server changes them.

What a broker registers as is its role: of the configuration, or, where replicas elect their master,
what they say while it runs. One without a role is registered nowhere, and said good-bye where it
was. An elected master tells the term of its election; a name server of ours refuses it once a later
one has registered. RocketMQ's believes the last one that registers, so each round of registrations
begins with a look who has this broker's name and id there. Both are told in the log, once a minute,
and by `why_unknown`. RocketMQ's also takes a good-bye for that of whoever has the name and the id
now, so an elected master, which may have a successor, looks before it says one.

The built-in name server is told in this process (`built_in.py`), before the change that caused it
is answered, so the next route question finds it. Nothing here keeps the broker waiting, and a name
server that cannot be reached costs one log line a minute.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (registerBrokerAll,
registerIncrementBrokerData), broker/.../out/BrokerOuterAPI.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.access.outgoing import outgoing_client
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.config.settings import READ_WRITE, BrokerConfig, parse_namesrv_addresses
from skylarkmq.broker.metrics.runtime_info import GRPC_ADDRESS, GRPC_ENDPOINT, GrpcPlaces
from skylarkmq.broker.namesrv.built_in import BuiltInNamesrv
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.crc import body_crc
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.protocol.bodies.route import (
    ClusterInfo,
    KVTable,
    RegisterBrokerBody,
    TopicRouteData,
    encode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, WireError, shown
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.route import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.errors import ConnectionFailed, RocketMQError, TlsError
from skylarkmq.remoting.waiting import backoff_s, wait_event, within

log = logging.getLogger(__name__)

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
UNREGISTER_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S: Final = 1.0
REMARK_SIZE_MAX: Final = 512
AWAY_MAX_S: Final = 5.0
"""A look for a name server that nobody reaches costs both sides next to nothing."""
ASK_AGAIN_S: Final = 3.0
_FENCED: Final = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
# A registration up to its topics, as `encode_body` writes it.
_HEAD: Final = b'{"filterServerList":[],"topicConfigSerializeWrapper":'


@dataclass(frozen=True, slots=True)
class RegisteredRole:
    """What a broker registers as: id 0 is the master."""

    broker_id: int
    term: int  # of its election; 0 for a slave, and for a master that is configured


class Registration:
    """What this broker says of itself. Loop thread.

    Attributes:
        role: what it registers as; None: it registers nowhere.
        withheld: permissions that clients are told of topics in place of their own.
    """

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
        self.role = None if config.is_replica else RegisteredRole(config.broker_id, 0)
        self.address = address
        self.withheld: Mapping[str, int] = {}
        ha_port = config.ha_port(int(port)) if ha_port is None else ha_port
        self._ha_server_address = f"{config.broker_ip2 or host}:{ha_port}"
        period_ms = min(max(config.register_name_server_period, PERIOD_MS_MIN), PERIOD_MS_MAX)
        self.period_s = period_ms / 1000
        self._topics = topics

    def body(self, names: set[str] | None = None) -> RegisterBrokerBody:
        """Return all topics, or those of `names` that are there, as they are now."""
        table = self._topics.table
        table = (
            dict(table) if names is None else {name: table[name] for name in names & table.keys()}
        )
        if self._is_restricted:
            table = {name: self.as_told(topic) for name, topic in table.items()}
        wrapper = TopicConfigSerializeWrapper(
            data_version=self._topics.data_version, topic_config_table=table
        )
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)

    def header(self, *, compressed: bool = False, crc: int = 0) -> RegisterBrokerRequestHeader:
        """Return the header of a registration; there is a role."""
        role = self.role
        assert role is not None, "nothing is registered without a role"
        return RegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            ha_server_addr=self._ha_server_address,
            broker_id=role.broker_id,
            compressed=compressed,
            body_crc32=crc,
            term=role.term or None,
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
        if self.config.compressed_register or self._is_restricted:
            return self.command()
        body = _HEAD + await self._topics.body.encoded() + b"}"
        fields = encode_fields(self.header(crc=body_crc(body)))
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body)

    def query(self, role: RegisteredRole) -> RemotingCommand:
        """Return the question whether the name server has another version of the topics."""
        header = QueryDataVersionRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=role.broker_id,
        )
        body = encode_body(self._topics.data_version)
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, encode_fields(header), body)

    def good_bye(self, role: RegisteredRole) -> RemotingCommand:
        """Return the end of the registration as `role`."""
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=role.broker_id,
        )
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, encode_fields(header))

    @property
    def _is_restricted(self) -> bool:
        return self.config.broker_permission != READ_WRITE or bool(self.withheld)

    def as_told(self, topic: TopicConfig) -> TopicConfig:
        """Return a topic with the permission that clients are told."""
        allowed = self.config.broker_permission
        perm = topic.perm if allowed == READ_WRITE else allowed
        perm &= self.withheld.get(topic.topic_name, perm)
        return msgspec.structs.replace(topic, perm=perm)


class NamesrvLink:
    """Keeps this broker registered with one name server outside. Loop thread.

    Attributes:
        has_answered: a registration was taken at some time.
        is_registered: the last one was.
        order_topics: the topics that it named as consumed in order; None: it keeps no such table.
        conflict: another broker is in this one's place there, and what to do; else empty.
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
        self.conflict = ""
        self._on_answer = on_answer
        self._remoting = remoting
        self._registration = registration
        self._clock = clock
        self._timeout_s = registration.config.register_broker_timeout_mills / 1000
        self._all_wanted = True
        self._wanted_count = 0  # of registrations of all topics
        self._taken_count = 0  # of those, up to the last one that was taken
        self._look_wanted = False  # who has our place there, at a registration of all topics
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_registered = False
        self._known_as: RegisteredRole | None = None  # as which it may know us: that was sent
        self._throttled = ThrottledLog(clock, log)
        self._failure_count = 0  # in a row
        self._is_away = False  # the last one did not get as far as the name server
        self._retry: TimerHandle | None = None

    def start(self) -> None:
        """Register now, and whenever something wants it."""
        self._wake.set()
        self._task = asyncio.ensure_future(self._run())

    def register_all(self, *, look: bool = False) -> None:
        """Have all topics registered soon.

        Args:
            look: whether another broker has our place there, too.
        """
        self._all_wanted = True
        self._wanted_count += 1
        self._look_wanted = self._look_wanted or look
        self._wake.set()

    @property
    def is_behind(self) -> bool:
        """Whether it can be reached, and has not taken all that it is to know."""
        return self._taken_count < self._wanted_count and not self._is_away

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return what it tells clients of a topic; None: it does not know it.

        Raises:
            RocketMQError: it does not answer.
            WireError: it answers nonsense, or refuses.
        """
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        fields = encode_fields(header)
        answer = await self._call(
            RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(TopicRouteData, _granted(answer).body)

    def role_changed(self) -> None:
        """Register as another one soon, or say good-bye, as the role is."""
        self.conflict = ""
        self.register_all()

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
        try:
            await within(self._clock, UNREGISTER_TIMEOUT_S, self._leave())
        except (RocketMQError, WireError, TimeoutError) as error:
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
                self.is_registered = self._is_away = False
            if self._registration.role is None:
                is_done = self._known_as is None
            else:
                is_done = self.is_registered
            if not is_done:
                self._try_again_later()

    async def _register(self) -> None:
        role = self._registration.role
        if role is None:
            await self._leave()
            return
        # Where the connection has ended we may be forgotten; and a name server that meets us by a
        # part takes no further topics from a whole of the same version.
        is_known = self.is_registered and self._remoting.ready(self.address) is not None
        is_known = is_known and self._known_as == role
        registration, is_full = self._registration, self._all_wanted or not is_known
        names, self._changed, self._all_wanted = self._changed, set(), False
        wanted = self._wanted_count
        looks, self._look_wanted = self._look_wanted and is_full, False
        if looks and is_known:  # else our place may be another's, and rightly so
            await self._look(role)
        if is_full and self._may_ask(role) and await self._is_current(role):
            self.is_registered, self._known_as = True, role
            self._failure_count = 0
            self._taken_count = wanted
            return
        command = await registration.full_command() if is_full else registration.command(names)
        if registration.role != role:  # while the topics were encoded
            self._wake.set()
            return
        is_news = not self.is_registered or self._known_as != role
        self._known_as = role
        answer = _granted(await self._call(command))
        if is_news:
            log.info("registered with name server %s", self.address)
        if not is_known:
            self.conflict = ""
        self.is_registered = self.has_answered = True
        self._throttled.forget("failure")
        self._failure_count = 0
        if is_full:  # tools mark a topic first, and tell name servers after that
            self._taken_count = wanted
            self.order_topics = _order_topics(answer, self.address)
            self._on_answer(decode_fields(RegisterBrokerResponseHeader, answer.ext_fields))

    def _may_ask(self, role: RegisteredRole) -> bool:
        """Return whether the version of the topics tells all that there is to tell."""
        # A slave wants the answer of a registration; a role or a term may be news.
        is_plain = role.broker_id == MASTER_ID and not role.term
        is_news = self._known_as not in (None, role)
        return is_plain and not is_news and not self._registration.config.force_register

    async def _look(self, role: RegisteredRole) -> None:
        """Note whether another broker has our name and id there."""
        try:
            holder = await self._holder(role)
        except (RocketMQError, WireError) as error:
            log.debug("name server %s does not tell who has our place: %s", self.address, error)
            return
        if holder in (None, self._registration.address):
            self.conflict = ""
            return
        name = self._registration.config.broker_name
        self._tell_conflict(
            f"name server {self.address} sends clients of {name} to {shown(holder or '')}, which "
            f"registers with the same brokerName and brokerId {role.broker_id} as this broker at "
            f"{self._registration.address}: give one of them another name, or stop it"
        )

    async def _holder(self, role: RegisteredRole) -> str | None:
        """Return the address that has our name and id there, None when it names none."""
        answer = await self._call(RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            return None
        table = decode_body(ClusterInfo, answer.body).broker_addr_table
        broker = table.get(self._registration.config.broker_name)
        return None if broker is None else broker.broker_addrs.get(role.broker_id)

    def _tell_conflict(self, why: str) -> None:
        self.conflict = why
        self._throttled.tell("conflict", why, level=logging.ERROR)

    async def _leave(self) -> None:
        """Say good-bye, unless the name server does not know us, or another has our place."""
        role = self._known_as
        if role is not None:
            is_ours = not self.conflict
            if role.term:
                is_ours = await self._holder(role) in (None, self._registration.address)
            if is_ours:
                await self._call(self._registration.good_bye(role))
            else:
                log.info("no good-bye to %s: another broker has our place", self.address)
        self.is_registered, self._known_as, self.conflict = False, None, ""
        self._failure_count = 0

    async def _is_current(self, role: RegisteredRole) -> bool:
        """Return whether the name server has our present topics; it learns that we are alive."""
        answer = await self._call(self._registration.query(role))
        if answer.code != ResponseCode.SUCCESS:
            return False
        return not decode_fields(QueryDataVersionResponseHeader, answer.ext_fields).changed

    async def _call(self, command: RemotingCommand) -> RemotingCommand:
        return await self._remoting.call(self.address, command, self._timeout_s)

    def _try_again_later(self) -> None:
        self._failure_count += 1
        if self._retry is not None:
            self._retry.cancel()
        longest_s = AWAY_MAX_S if self._is_away else self._registration.period_s
        wait_s = backoff_s(self._failure_count, RETRY_FIRST_S, longest_s)
        self._retry = self._clock.call_at(self._clock.monotonic() + wait_s, self._wake.set)

    def _failed(self, error: Exception) -> None:
        # The next one is a full one; and where the connection ended, we are forgotten already.
        self.is_registered = False
        if isinstance(error, ConnectionFailed | RemoteProtocolError):
            self._known_as = None
        is_tls = isinstance(error, TlsError)  # somebody is there, and will not do for a while
        self._is_away = isinstance(error, ConnectionFailed) and not error.reached and not is_tls
        if isinstance(error, RemoteProtocolError) and error.response_code == _FENCED:
            self._tell_conflict(f"name server {self.address} refuses this broker: {error}")
            return
        what = "good-bye to" if self._registration.role is None else "registration with"
        why = str(error) or type(error).__name__
        self._throttled.tell(
            "failure", f"{what} name server {self.address} failed: {why}; trying again"
        )


def _granted(answer: RemotingCommand) -> RemotingCommand:
    """Return an answer that does not refuse.

    Raises:
        RemoteProtocolError: it does.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(answer.code, ascii((answer.remark or "")[:REMARK_SIZE_MAX]))
    return answer


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
        self._namesrv = namesrv
        self._order_topics: frozenset[str] | None = None  # that it named last
        self._remoting = outgoing_client(clock, tls, access, self._lost)
        self._links = [
            NamesrvLink(name_server, self._remoting, self._registration, clock, self._answered)
            for name_server in parse_namesrv_addresses(config.namesrv_addr)
        ]
        self._timer = IntervalTimer(clock, self._registration.period_s, self._period_ended)
        self._refusal = ""  # of the built-in name server: another is the master
        self._throttled = ThrottledLog(clock, log)
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
        self._leave_locally()
        await asyncio.gather(*(link.stop() for link in self._links))
        await self._remoting.stop()

    def set_role(self, role: RegisteredRole | None) -> None:
        """Register as another one from now on, everywhere; None: say good-bye.

        The built-in name server is told when this returns, the others soon.
        """
        registration = self._registration
        if role == registration.role:
            return
        registration.role = role
        self._refusal = ""
        if role is None:
            self._known.clear()
        if not self._is_running:
            return
        if role is None:
            self._leave_locally()
        self._register_locally(None)
        for link in self._links:
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
        conflicts = [self._refusal, *(link.conflict for link in self._links)]
        conflict = next(filter(None, conflicts), "")
        if conflict:
            return conflict
        if self._namesrv is not None or not self._links:
            return ""
        if any(link.is_registered for link in self._links):
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

    def as_told(self, topic: TopicConfig) -> TopicConfig:
        """Return a topic with the permission that clients are told."""
        return self._registration.as_told(topic)

    async def grpc_places(self, address: str) -> GrpcPlaces | None:
        """Return where another broker is found by gRPC; None: it has no endpoint.

        Raises:
            RocketMQError: it does not answer.
            WireError: it answers nonsense, or refuses to, as one that is busy: it may have one.
        """
        asked = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        timeout_s = self._registration.config.register_broker_timeout_mills / 1000
        answer = _granted(await self._remoting.call(address, asked, timeout_s))
        table = decode_body(KVTable, answer.body).table
        endpoint = table.get(GRPC_ENDPOINT)
        return None if endpoint is None else GrpcPlaces(endpoint, table.get(GRPC_ADDRESS, endpoint))

    def not_told(self) -> list[str]:
        """Return the name servers that can be reached, and have not taken all topics yet."""
        return [link.address for link in self._links if link.is_behind]

    async def routes(self, topic: str) -> list[TopicRouteData | None]:
        """Return what each name server that answers tells clients of a topic; None: nothing."""
        if not self._links:
            if self._namesrv is None:
                return []
            ask = partial(self._namesrv.tell, lambda namesrv: namesrv.routes.topic_route(topic))
            return [await result_of(ask)]
        asked = (link.route(topic) for link in self._links)
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

    @property
    def _is_slave(self) -> bool:
        role = self._registration.role
        return role is not None and role.broker_id != MASTER_ID

    def _period_ended(self) -> None:
        if self._registration.role is not None:
            self._register_all(look=True)

    def _register_all(self, *, look: bool = False) -> None:
        self._register_locally(None)
        for link in self._links:
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
        tables.append(self._order_topics)
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
        if not self._leads():
            return
        self._register_locally({topic.topic_name})
        for link in self._links:
            link.register_topic(topic.topic_name)

    def _topic_deleted(self, topic: str) -> None:
        # Name servers elsewhere forget a topic only by 216, which tools send them.
        if self._leads() and self._namesrv is not None:
            names = {self._registration.config.broker_name}
            self._namesrv.tell(lambda namesrv: namesrv.routes.forget_topic(topic, names))

    def register_again(self) -> None:
        """Register all topics soon, for a name server that may have lost its tables."""
        if self._is_running:
            self._register_all()

    def _leads(self) -> bool:
        """Return whether the topics here are what name servers are to know."""
        role = self._registration.role
        return self._is_running and role is not None and not self._is_slave

    def _leave_locally(self) -> None:
        if self._namesrv is not None:
            name, address = self._registration.config.broker_name, self._registration.address
            self._namesrv.tell(lambda namesrv: namesrv.routes.unregister(name, address, None))

    def _register_locally(self, names: set[str] | None) -> None:
        if self._namesrv is None or self._registration.role is None:
            return
        header, body = self._registration.header(), self._registration.body(names)
        is_whole = names is None

        def register(namesrv: NamesrvController) -> _Taken:
            routes = namesrv.routes
            if not is_whole and routes.data_version(header.broker_addr) is None:
                return _Taken(None)  # it wants all topics, as `NamesrvLink` gives them
            answer = routes.register(header, body, None)
            order = namesrv.kv.of_namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
            return _Taken(answer, None if order is None else frozenset(order))

        self._namesrv.tell(register, partial(self._registered_locally, is_whole))

    def _registered_locally(
        self, is_whole: bool, taken: _Taken | None, error: BaseException | None
    ) -> None:
        if not self._is_running:
            return
        if isinstance(error, RemoteProtocolError):
            why = f"the built-in name server refuses this broker: {error}"
            self._refusal = why if error.response_code == _FENCED else ""
            self._throttled.tell("refusal", why, level=logging.ERROR)
        elif error is not None:
            log.error("the built-in name server was not told of this broker", exc_info=error)
        elif taken is None or taken.answer is None:
            self._register_locally(None)
        else:
            self._refusal = ""
            self._throttled.forget("refusal")
            self._order_topics = taken.order_topics
            if is_whole:
                self._answered(taken.answer)


class _Taken(NamedTuple):
    """What the built-in name server says to a registration."""

    answer: RegisterBrokerResponseHeader | None  # None: it does not know this broker yet
    order_topics: frozenset[str] | None = None  # None: it keeps no such table
