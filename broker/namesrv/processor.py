"""The requests of brokers and clients that a name server answers: 103, 104, 105, 106, 206, 322.

Those of administrators are in `admin.py`.

Numeric keys of the answers' bodies are quoted: every Java client reads them so, and other clients
need them so. Unlike RocketMQ, which quotes them only for clients that ask or are 4.9.4 or newer.
Source: apache/rocketmq@rocketmq-all-4.9.8 namesrv/.../processor/DefaultRequestProcessor.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from skylarkmq.broker.namesrv.admin import NamesrvAdminProcessor
from skylarkmq.broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG, KVConfig
from skylarkmq.broker.namesrv.route_info import BrokerConnection, BrokerLiveInfo, RouteInfoManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.pending_calls import ConnectionClosedError
from skylarkmq.broker.net.router import Handler
from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.bodies.route import (
    KVTable,
    RegisterBrokerBody,
    TopicList,
    decode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import DataVersion, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.route import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 3.0
"""A broker that does not answer for so long is not there any more, when another is in its place."""


class NamesrvProcessor:
    """Answers from the tables of a name server. Loop thread."""

    def __init__(
        self,
        routes: RouteInfoManager,
        kv: KVConfig | None = None,
        *,
        order_message_enable: bool = False,
    ) -> None:
        """Take the tables.

        Args:
            order_message_enable: routes of ordered topics carry the queues that `kv` has for them.
        """
        self._routes = routes
        self._kv = kv or KVConfig()
        self._order_message_enable = order_message_enable
        self._questions: dict[BrokerConnection, asyncio.Task[bool]] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each code."""
        handlers: dict[int, Handler] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
        }
        return {**handlers, **NamesrvAdminProcessor(self._routes, self._kv).handlers()}

    def _register(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        header = decode_fields(RegisterBrokerRequestHeader, request.ext_fields)
        if header.body_crc32 and header.body_crc32 != body_crc(request.body):
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        rival = self._routes.find_rival(header, connection)
        if rival is None or rival.is_own:
            return self._take_in(connection, request, header)
        return self._replace(connection, request, header)

    def _take_in(
        self, connection: Connection, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> RemotingCommand:
        try:
            answer = self._routes.register(header, _registration(header, request.body), connection)
        except RemoteProtocolError as error:
            log.warning("registration by %s refused: %s", connection.remote_address, error)
            raise
        connection.remove_close_listener(self._routes.connection_closed)  # of its last time
        connection.add_close_listener(self._routes.connection_closed)
        order = self._kv.of_namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
        body = b"" if order is None else encode_body(KVTable(table=order))
        return request.reply(ResponseCode.SUCCESS, ext_fields=encode_fields(answer), body=body)

    async def _replace(
        self, connection: Connection, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> RemotingCommand:
        """Take a broker in whose place another has, once that one does not answer any more."""
        while (rival := self._routes.find_rival(header, connection)) is not None:
            if rival.is_own or connection.closed:
                break
            if await self._is_there(rival):
                why = (
                    f"broker {shown(rival.name)} at {shown(rival.address)} is there and answers, "
                    f"so {shown(header.broker_name)} at {shown(header.broker_addr)} can not take "
                    "its place: stop that one first"
                )
                log.warning("registration by %s refused: %s", connection.remote_address, why)
                raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
            self._routes.drop(rival, "another is in its place, and it does not answer")
        if connection.closed:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "the broker has left")
        return self._take_in(connection, request, header)

    async def _is_there(self, broker: BrokerLiveInfo) -> bool:
        """Ask a broker anything; every remoting peer answers, also what it does not know.

        Those who want to know the same meanwhile share the question.
        """
        questions = [self._question(each) for each in broker.connections]
        return any(await asyncio.gather(*questions))

    def _question(self, connection: BrokerConnection) -> asyncio.Future[bool]:
        task = self._questions.get(connection)
        if task is None:
            task = self._questions[connection] = asyncio.create_task(_answers(connection))
            task.add_done_callback(lambda _: self._questions.pop(connection))
        return asyncio.shield(task)

    def _unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_fields(UnRegisterBrokerRequestHeader, request.ext_fields)
        name, address = header.broker_name, header.broker_addr
        if not self._routes.unregister(name, address, connection):
            why = (
                f"broker {shown(name)} at {shown(address)} did not register by this connection, "
                "so its good-bye does not count"
            )
            log.warning("%s: %s", connection.remote_address, why)
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
        return request.reply(ResponseCode.SUCCESS)

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetRouteInfoRequestHeader, request.ext_fields)
        route = self._routes.topic_route(header.topic)
        if route is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {shown(header.topic)}",
            )
        if self._order_message_enable:
            order = self._kv.get(NAMESPACE_ORDER_TOPIC_CONFIG, header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        return request.reply(ResponseCode.SUCCESS, body=encode_body(route))

    def _cluster(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, body=encode_body(self._routes.cluster_info()))

    def _topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = TopicList(topic_list=self._routes.topics())
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    def _query_data_version(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = decode_fields(QueryDataVersionRequestHeader, request.ext_fields)
        known = self._routes.data_version(header.broker_addr)
        changed = known is None or known != decode_body(DataVersion, request.body)
        if not changed:
            self._routes.refresh(header.broker_addr)
        return request.reply(
            ResponseCode.SUCCESS,
            ext_fields=encode_fields(QueryDataVersionResponseHeader(changed=changed)),
            body=b"" if known is None else encode_body(known),
        )


async def _answers(connection: BrokerConnection) -> bool:
    question = RemotingCommand.request(RequestCode.HEART_BEAT)
    try:
        await connection.call(question, ANSWER_TIMEOUT_S)
    except (TimeoutError, ConnectionClosedError):
        return False
    return True


def _registration(header: RegisterBrokerRequestHeader, body: bytes) -> RegisterBrokerBody:
    if not body:
        return RegisterBrokerBody()
    if header.compressed:
        return decode_compressed_registration(body)
    return decode_body(RegisterBrokerBody, body)
