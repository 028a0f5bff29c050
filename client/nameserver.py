"""Calls to the name servers: any of them will do, the one that answered last is asked first.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
(getTopicRouteInfoFromNameServer), remoting/.../netty/NettyRemotingClient.java (name server choice)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from typing import TypeVar

import msgspec

from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    broker_error,
)
from skylarkmq.client.remoting import Remoting
from skylarkmq.protocol.bodies.route import ClusterInfo, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.route import GetRouteInfoRequestHeader
from skylarkmq.protocol.remoting_command import RemotingCommand

T = TypeVar("T", bound=msgspec.Struct)

log = logging.getLogger(__name__)


class NameServers:
    """The name servers of one client."""

    def __init__(
        self, remoting: Remoting, addresses: Sequence[str], timeout_s: float, random: Random
    ) -> None:
        self._remoting = remoting
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._next = random.randrange(len(self._addresses))

    @property
    def text(self) -> str:
        """The addresses, for messages to people."""
        return ";".join(self._addresses)

    async def connect(self) -> str:
        """Make sure that one of them can be reached; return this side's address towards it.

        Raises:
            ConnectionFailed: none of them.
        """
        errors: list[str] = []
        for address in self._in_order():
            try:
                return (await self._remoting.connection(address)).local_ip
            except ConnectionFailed as error:
                errors.append(str(error))
                self._next += 1
        raise ConnectionFailed(
            self.text,
            f"no name server reached: {'; '.join(errors)}",
            hint="Is the name server running there? Set namesrv_addr or NAMESRV_ADDR",
        )

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return where `topic` lives, None when the name server does not know it.

        Raises:
            RocketMQError: no name server answered, or one refused.
        """
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer, address = await self._call(code, encode_fields(header))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return _body(TopicRouteData, answer, address)

    async def broker_names(self) -> list[str]:
        """Return the names of the brokers that are registered.

        Raises:
            RocketMQError: no name server answered, or one refused.
        """
        answer, address = await self._call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return sorted(_body(ClusterInfo, answer, address).broker_addr_table)

    async def clusters(self) -> set[str]:
        """Return the names of the clusters that have a broker registered.

        Raises:
            RocketMQError: no name server answered, or one refused.
        """
        answer, address = await self._call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        brokers = _body(ClusterInfo, answer, address).broker_addr_table
        return {broker.cluster for broker in brokers.values() if broker.cluster}

    async def _call(self, code: int, ext_fields: dict[str, str]) -> tuple[RemotingCommand, str]:
        last: RocketMQError | None = None
        for address in self._in_order():
            try:
                request = RemotingCommand.request(code, ext_fields)
                return await self._remoting.call(address, request, self._timeout_s), address
            except (ConnectionFailed, RequestTimeout, ProtocolError) as error:
                log.debug("name server %s: %s", address, error)
                last = error
                self._next += 1
        assert last is not None, "there is at least one name server"
        raise last

    def _in_order(self) -> list[str]:
        start = self._next % len(self._addresses)
        return self._addresses[start:] + self._addresses[:start]


def _body(kind: type[T], answer: RemotingCommand, address: str) -> T:
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)
    try:
        return decode_body(kind, answer.body)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error
