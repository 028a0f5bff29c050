"""Calls to the name servers: any of them will do, the one that answered last is asked first.

One that is dead, silent, busy or no name server at all costs a call a time-out at most, and the
next one is asked; later calls begin with the one that answered. One that was started again knows
nothing until brokers have registered with it, so a topic is missing only when none of them has it.

Unlike RocketMQ: its client keeps to its choice until that cannot be connected, believes it alone,
and lets a call fail whose server took the connection and did not answer.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
(getTopicRouteInfoFromNameServer), remoting/.../netty/NettyRemotingClient.java (name server choice)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from random import Random
from socket import EAI_AGAIN, gaierror
from typing import Final, TypeVar

import msgspec

from skylarkmq.client.errors import (
    AuthError,
    BrokerError,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    TlsError,
    broker_error,
)
from skylarkmq.client.wire.ask import read_body
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import ClusterInfo, TopicList, TopicRouteData
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import REPLY_TOPIC_POSTFIX, is_system_topic
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.route import GetRouteInfoRequestHeader
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.waiting import within

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

log = logging.getLogger(__name__)

NO_NAME_SERVER: Final = (
    "It may be a broker: namesrv_addr and NAMESRV_ADDR name name servers, mostly at port 9876"
)
REPLY_ENDING: Final = f"_{REPLY_TOPIC_POSTFIX}"
NONE_ANSWERED: Final = "no name server answered: "
PATIENCE_S: Final = 0.5
"""How long the connection to one of several may take before the next is asked."""


class NameServers:
    """The name servers of one client.

    Each question raises a RocketMQError when no name server answered, or all refused.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        addresses: Sequence[str],
        timeout_s: float,
        random: Random,
        clock: Clock,
    ) -> None:
        self._remoting = remoting
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._clock = clock
        self._first = random.randrange(len(self._addresses))

    @property
    def text(self) -> str:
        """The addresses, for messages to people."""
        return ";".join(self._addresses)

    async def connect(self) -> str:
        """Make sure that one of them can be reached; return this side's address towards it.

        Raises:
            ConnectionFailed: none of them.
            TlsError: all of them failed a check of TLS.
        """
        try:
            address = await self._first_good(_local_ip)
        except TlsError:
            raise  # it says which check failed, and what to do
        except RocketMQError as error:
            raise self.not_reached(error.text.removeprefix(NONE_ANSWERED)) from error
        assert address is not None  # every connection has one
        return address

    def not_reached(self, why: str) -> ConnectionFailed:
        """Return the error of a start that reaches none of them."""
        hint = "Is the name server running there? Set namesrv_addr or NAMESRV_ADDR"
        failed = ConnectionFailed("", f"no name server reached: {why}", hint=hint)
        failed.address = self.text
        return failed

    async def has_brokers(self, limit_s: float = inf) -> bool:
        """Return whether a broker is registered with one of them, or none of them tells.

        Args:
            limit_s: for all of them together; each has its part, as the first may be silent.

        Raises:
            AuthError: access control refuses the account.
            RocketMQError: no answer.
        """

        timeout_s = min(self._timeout_s, limit_s / len(self._addresses))

        async def ask(connection: Connection) -> bool | None:
            request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await connection.call(request, timeout_s)
            info = _body(ClusterInfo, answer, connection.address)
            return True if info is not None and info.broker_addr_table else None

        try:
            return await self._first_good(ask) is not None
        except AuthError:
            raise
        except BrokerError:
            return True

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return where `topic` lives, None when no name server that answers knows it."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return await self._ask(TopicRouteData, code, encode_fields(header))

    async def broker_names(self) -> list[str]:
        """Return the names of the brokers that are registered."""
        return sorted((await self.cluster_info()).broker_addr_table)

    async def clusters(self) -> set[str]:
        """Return the names of the clusters that have a broker registered."""
        brokers = (await self.cluster_info()).broker_addr_table
        return {broker.cluster for broker in brokers.values() if broker.cluster}

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers that are registered, by name and by cluster."""
        info = await self._ask(ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return ClusterInfo() if info is None else info

    async def topics(self) -> list[str]:
        """Return the names of all topics but those that brokers make for themselves, sorted.

        Topics of retries (%RETRY%group) and dead letters (%DLQ%group) are among them."""
        listed = await self._ask(TopicList, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        # Every broker has topics of its own name and of its cluster's; this answer has them.
        own = await self._ask(TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {})
        names = set(listed.topic_list if listed else ()) - set(own.topic_list if own else ())
        return application_topics(names)

    async def _ask(self, kind: type[T], code: int, ext_fields: dict[str, str]) -> T | None:
        """Return the first answer that can be read; None is "no such topic"."""

        async def ask(connection: Connection) -> T | None:
            request = RemotingCommand.request(code, ext_fields)
            answer = await connection.call(request, self._timeout_s)
            return _body(kind, answer, connection.address)

        return await self._first_good(ask)

    async def _first_good(self, use: Callable[[Connection], Awaitable[R | None]]) -> R | None:
        """Return what `use` makes of the first name server that does not fail it.

        After None the others are asked, too; None when none of them has more to say.
        One that does not connect soon is passed over while there are others, and comes again at
        the end.
        """
        first = self._first
        alone = len(self._addresses) == 1
        waiting = deque((it, alone) for it in self._addresses[first:] + self._addresses[:first])
        errors: list[RocketMQError] = []
        has_answer = False
        while waiting:
            address, patient = waiting.popleft()
            try:
                connection = await self._reach(address, patient=patient)
                if connection is None:
                    waiting.append((address, True))
                    continue
                outcome = await use(connection)
            except (ConnectionFailed, RequestTimeout, ProtocolError, BrokerError) as error:
                log.debug("name server %s: %s", address, error)
                errors.append(error)
                continue
            if outcome is not None:
                self._first = self._addresses.index(address)
                return outcome
            has_answer = True
        if has_answer:
            return None
        raise self._failure(errors)

    async def _reach(self, address: str, *, patient: bool) -> Connection | None:
        """Return a connection; None when it takes longer than PATIENCE_S and goes on."""
        ready = self._remoting.ready(address)
        if ready is not None:
            return ready
        opening = self._remoting.connection(address)
        if patient:
            return await opening
        try:
            return await within(self._clock, PATIENCE_S, opening)
        except TimeoutError:
            return None

    def _failure(self, errors: list[RocketMQError]) -> RocketMQError:
        if len(errors) == 1 or isinstance(errors[-1], BrokerError | ProtocolError):
            return errors[-1]
        if not any(map(may_come, errors)):
            return errors[-1]
        text = NONE_ANSWERED + "; ".join(error.text for error in errors)
        if any(isinstance(error, RequestTimeout) for error in errors):
            return RequestTimeout(text)
        failed = ConnectionFailed("", text)
        failed.address = self.text
        return failed


def may_come(error: RocketMQError) -> bool:
    """Return whether waiting may help after a try to reach a name server.

    It does not help where the host does not exist, or TLS or access control refuses."""
    cause: BaseException | None = error
    while isinstance(cause, RocketMQError):
        if isinstance(cause, TlsError | AuthError):
            return False
        cause = cause.__cause__
    return not isinstance(cause, gaierror) or cause.errno == EAI_AGAIN


def application_topics(names: Iterable[str]) -> list[str]:
    """Return those of the names that no broker makes for itself, sorted."""
    return sorted(
        name for name in names if not is_system_topic(name) and not name.endswith(REPLY_ENDING)
    )


async def _local_ip(connection: Connection) -> str:
    return connection.local_ip


def _body(kind: type[T], answer: RemotingCommand, address: str) -> T | None:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise BrokerError(answer.code, answer.remark or "", address, hint=NO_NAME_SERVER)
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)
    return read_body(kind, answer, address)
