"""One name server, and what it is told of this broker.

The topics that changed are told as soon as they do; what changes while a registration is under way
goes with the next one. A name server that refuses or does not answer is tried again after a second,
then after twice as long each time, up to the period; one that cannot be reached at least every
AWAY_MAX_S, and one whose connection ends at once, so a name server that was started again knows its
brokers soon. Unlike RocketMQ, which waits for the next period. One that cannot be reached costs one
log line a minute.

RocketMQ's name servers believe the last broker that registers with a name and an id, so each round
of registrations begins with a look who has this broker's. RocketMQ's also take a good-bye for that
of whoever has the name and the id now, so an elected master, which may have a successor, looks
before it says one.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (registerBrokerAll,
registerIncrementBrokerData), broker/.../out/BrokerOuterAPI.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.namesrv.built_in import BuiltInNamesrv
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG
from skylarkmq.broker.registration.registration import RegisteredRole, Registration
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.protocol.bodies.route import ClusterInfo, KVTable, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, WireError, shown
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.route import (
    GetRouteInfoRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerResponseHeader,
)
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.errors import ConnectionFailed, RocketMQError, TlsError
from skylarkmq.remoting.waiting import backoff_s, within

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S: Final = 1.0
REMARK_SIZE_MAX: Final = 512
AWAY_MAX_S: Final = 5.0
"""A look for a name server that nobody reaches costs both sides next to nothing."""
_FENCED: Final = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH

OnAnswer = Callable[[RegisterBrokerResponseHeader], None]
"""Called after each registration of all topics that was taken."""


class NamesrvLink:
    """Keeps this broker registered with one name server outside. Loop thread.

    Its size is one idea: what this name server may know of the broker decides what it is told next.

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
        on_answer: OnAnswer,
    ) -> None:
        """Prepare; nothing is sent yet."""
        self.address = address
        self.has_answered = False
        self.order_topics: frozenset[str] | None = None
        self.conflict = ""
        self._on_answer = on_answer
        self._remoting = remoting
        self._registration = registration
        self._clock = clock
        self._timeout_s = registration.config.register_broker_timeout_mills / 1000
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
        return decode_body(TopicRouteData, granted(answer).body)

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
        registration, wanted = self._registration, self._wanted_count
        is_full = self._taken_count < wanted or not is_known
        names, self._changed = self._changed, set()
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
        answer = granted(await self._call(command))
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


class _Taken(NamedTuple):
    """What the built-in name server says to a registration."""

    answer: RegisterBrokerResponseHeader | None  # None: it does not know this broker yet
    order_topics: frozenset[str] | None = None  # None: it keeps no such table


class BuiltInLink:
    """Keeps this broker registered with the name server in its process. Loop thread.

    It is told before the change that caused it is answered, so the next route question finds it.

    Attributes:
        order_topics, conflict: as of a `NamesrvLink`.
    """

    has_answered = is_registered = True  # it is always reached

    def __init__(
        self,
        namesrv: BuiltInNamesrv,
        registration: Registration,
        clock: Clock,
        on_answer: OnAnswer,
    ) -> None:
        """Prepare; nothing is told yet."""
        self.order_topics: frozenset[str] | None = None
        self.conflict = ""
        self._namesrv = namesrv
        self._registration = registration
        self._on_answer = on_answer
        self._throttled = ThrottledLog(clock, log)
        self._is_running = False

    def start(self) -> None:
        """Register now."""
        self._is_running = True
        self._register(None)

    async def stop(self) -> None:
        """Say good-bye."""
        self._is_running = False
        self._leave()

    def role_changed(self) -> None:
        """Register as another one, or say good-bye, as the role is."""
        self.conflict = ""
        if self._registration.role is None:
            self._leave()
        self._register(None)

    def register_all(self, *, look: bool = False) -> None:
        """Register all topics."""
        self._register(None)

    def register_topic(self, topic: str) -> None:
        """Register one topic."""
        self._register({topic})

    def forget_topic(self, topic: str) -> None:
        """Have a topic that was deleted here forgotten there."""
        names = {self._registration.config.broker_name}
        self._namesrv.tell(lambda namesrv: namesrv.routes.forget_topic(topic, names))

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return what it tells clients of a topic; None: it does not know it."""
        ask = partial(self._namesrv.tell, lambda namesrv: namesrv.routes.topic_route(topic))
        return await result_of(ask)

    def _leave(self) -> None:
        name, address = self._registration.config.broker_name, self._registration.address
        self._namesrv.tell(lambda namesrv: namesrv.routes.unregister(name, address, None))

    def _register(self, names: set[str] | None) -> None:
        if self._registration.role is None:
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

        self._namesrv.tell(register, partial(self._registered, is_whole))

    def _registered(
        self, is_whole: bool, taken: _Taken | None, error: BaseException | None
    ) -> None:
        if not self._is_running:
            return
        if isinstance(error, RemoteProtocolError):
            why = f"the built-in name server refuses this broker: {error}"
            self.conflict = why if error.response_code == _FENCED else ""
            self._throttled.tell("refusal", why, level=logging.ERROR)
        elif error is not None:
            log.error("the built-in name server was not told of this broker", exc_info=error)
        elif taken is None or taken.answer is None:
            self._register(None)
        else:
            self.conflict = ""
            self._throttled.forget("refusal")
            self.order_topics = taken.order_topics
            if is_whole:
                self._on_answer(taken.answer)


def granted(answer: RemotingCommand) -> RemotingCommand:
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
