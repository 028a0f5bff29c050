"""The requests that a name server answers.

Of brokers and clients: 103, 104, 105, 106, 206, 322. Of administrators: KV configuration (100, 101,
102, 219), topics (216, 224, 304; of units 311, 312, 313), write permission of brokers (205, 327),
the name server's own configuration (318, 319). What is said of topics and permissions lives in
memory: a broker's next registration of another version of its topics replaces it.

Unlike RocketMQ, no key changes while the name server runs (318): it has none that would count.

Numeric keys of the answers' bodies are quoted: every Java client reads them so, and other clients
need them so. Unlike RocketMQ, which quotes them only for clients that ask or are 4.9.4 or newer.
Source: apache/rocketmq@rocketmq-all-4.9.8 namesrv/.../processor/DefaultRequestProcessor.java
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from skylarkmq.broker.base.logs import set_levels
from skylarkmq.broker.config.config_file import known_key, read_values, shown_value, values_of
from skylarkmq.broker.config.properties_file import PropertiesError, read_properties
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG, KVConfig
from skylarkmq.broker.namesrv.route_info import BrokerConnection, BrokerLiveInfo, RouteInfoManager
from skylarkmq.broker.net.handlers import Answer, Call, Handlers, NoFields, handles, refused
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.common.config_fields import ConfigError, is_secret, keys_of
from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.bodies.route import (
    KVTable,
    RegisterBrokerBody,
    TopicList,
    decode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import DataVersion, decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import TopicSysFlag
from skylarkmq.protocol.headers.route import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from skylarkmq.remoting.errors import ConnectionFailed

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 3.0
"""A broker that does not answer for so long is not there any more, when another is in its place."""
CONFIG_SIZE_MAX: Final = 64 << 10
"""Bytes of properties in one request."""


class NamesrvProcessor(Handlers):
    """Answers from the tables of a name server. Loop thread.

    Its size is one idea: a method answers one request code.
    """

    def __init__(
        self,
        routes: RouteInfoManager,
        kv: KVConfig | None = None,
        config: NamesrvConfig | None = None,
    ) -> None:
        """Take the tables and the configuration."""
        self._routes = routes
        self._kv = kv or KVConfig()
        self._config = config or NamesrvConfig()
        self._questions: dict[BrokerConnection, asyncio.Task[bool]] = {}

    @handles(RequestCode.REGISTER_BROKER, RegisterBrokerRequestHeader)
    def _register(
        self, call: Call[RegisterBrokerRequestHeader]
    ) -> Answer | Coroutine[Any, Any, RemotingCommand]:
        header, body = call.header, call.request.body
        if header.body_crc32 and header.body_crc32 != body_crc(body):
            raise refused("crc32 not match")
        rival = self._routes.find_rival(header, call.connection)
        if rival is None or rival.is_own:
            return self._take_in(call)
        return self._replace(call)

    def _take_in(self, call: Call[RegisterBrokerRequestHeader]) -> Answer:
        connection, request, header = call
        try:
            answer = self._routes.register(header, _registration(header, request.body), connection)
        except RemoteProtocolError as error:
            log.warning("registration by %s refused: %s", connection.remote_address, error)
            raise
        connection.remove_close_listener(self._routes.connection_closed)  # of its last time
        connection.add_close_listener(self._routes.connection_closed)
        order = self._kv.of_namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
        return Answer(b"" if order is None else KVTable(table=order), answer)

    async def _replace(self, call: Call[RegisterBrokerRequestHeader]) -> RemotingCommand:
        """Take a broker in whose place another has, once that one does not answer any more."""
        connection, request, header = call
        while (rival := self._routes.find_rival(header, connection)) is not None:
            if rival.is_own or connection.closed:
                break
            if await self._is_there(rival):
                if header.term is None and self._routes.has_elected(header.broker_name):
                    break  # `register` says why it is refused
                why = (
                    f"broker {shown(rival.name)} at {shown(rival.address)} is there and answers, "
                    f"so {shown(header.broker_name)} at {shown(header.broker_addr)} cannot take "
                    "its place: stop that one first"
                )
                log.warning("registration by %s refused: %s", connection.remote_address, why)
                raise refused(why)
            self._routes.drop(rival, "another is in its place, and it does not answer")
        if connection.closed:
            raise refused("the broker has left")
        return self._take_in(call).reply(request)

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

    @handles(RequestCode.UNREGISTER_BROKER, UnRegisterBrokerRequestHeader)
    def _unregister(self, call: Call[UnRegisterBrokerRequestHeader]) -> Answer:
        header = call.header
        name, address = header.broker_name, header.broker_addr
        if not self._routes.unregister(name, address, call.connection):
            why = (
                f"broker {shown(name)} at {shown(address)} did not register by this connection, "
                "so its good-bye does not count"
            )
            log.warning("%s: %s", call.remote_address, why)
            raise refused(why)
        return Answer()

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader)
    def _route(self, call: Call[GetRouteInfoRequestHeader]) -> Answer:
        header = call.header
        route = self._routes.topic_route(header.topic)
        if route is None:
            raise refused(
                f"No topic route info in name server for the topic: {shown(header.topic)}",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        if self._config.order_message_enable:  # `kv` has its queues
            order = self._kv.get(NAMESPACE_ORDER_TOPIC_CONFIG, header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        return Answer(route)

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO, NoFields)
    def _cluster(self, call: Call[NoFields]) -> Answer:
        return Answer(self._routes.cluster_info())

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoFields)
    def _topics(self, call: Call[NoFields]) -> Answer:
        return Answer(TopicList(topic_list=self._routes.topics()))

    @handles(RequestCode.QUERY_DATA_VERSION, QueryDataVersionRequestHeader)
    def _query_data_version(self, call: Call[QueryDataVersionRequestHeader]) -> Answer:
        header = call.header
        known = self._routes.data_version(header.broker_addr)
        changed = known is None or known != decode_body(DataVersion, call.request.body)
        if not changed:
            self._routes.refresh(header.broker_addr)
        return Answer(
            b"" if known is None else known, QueryDataVersionResponseHeader(changed=changed)
        )

    # KV configuration

    @handles(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader)
    def _put_kv(self, call: Call[PutKVConfigRequestHeader]) -> Answer:
        header = call.header
        self._kv.put(header.namespace, header.key, header.value)
        return Answer(after=self._kv_file())

    @handles(RequestCode.GET_KV_CONFIG, GetKVConfigRequestHeader)
    def _get_kv(self, call: Call[GetKVConfigRequestHeader]) -> Answer:
        header = call.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise refused(
                f"No config item, Namespace: {shown(header.namespace)} Key: {shown(header.key)}",
                ResponseCode.QUERY_NOT_FOUND,
            )
        return Answer(header=GetKVConfigResponseHeader(value=value))

    @handles(RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader)
    def _delete_kv(self, call: Call[DeleteKVConfigRequestHeader]) -> Answer:
        header = call.header
        self._kv.delete(header.namespace, header.key)
        return Answer(after=self._kv_file())

    @handles(RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader)
    def _list_kv(self, call: Call[GetKVListByNamespaceRequestHeader]) -> Answer:
        header = call.header
        rows = self._kv.of_namespace(header.namespace)
        if rows is None:
            raise refused(
                f"No config item, Namespace: {shown(header.namespace)}",
                ResponseCode.QUERY_NOT_FOUND,
            )
        return Answer(KVTable(table=rows))

    def _kv_file(self) -> tuple[TableFile, ...]:
        return () if self._kv.file is None else (self._kv.file,)

    # Topics

    @handles(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader)
    def _delete_topic(self, call: Call[DeleteTopicFromNamesrvRequestHeader]) -> Answer:
        header = call.header
        cluster = header.cluster_name
        log.info("%s lets topic %s be forgotten", call.remote_address, shown(header.topic))
        self._routes.forget_topic(
            header.topic, self._routes.brokers_of(cluster) if cluster else None
        )
        return Answer()

    @handles(RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader)
    def _topics_of_cluster(self, call: Call[GetTopicsByClusterRequestHeader]) -> Answer:
        header = call.header
        return Answer(TopicList(topic_list=self._routes.topics_of(header.cluster)))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoFields)
    def _system_topics(self, call: Call[NoFields]) -> Answer:
        """Return the clusters and the brokers in them, each of which is a topic."""
        names: list[str] = []
        for cluster, brokers in self._routes.cluster_info().cluster_addr_table.items():
            names += [cluster, *brokers]
        return Answer(TopicList(broker_addr=self._routes.first_address(), topic_list=names))

    @handles(RequestCode.GET_UNIT_TOPIC_LIST, NoFields)
    def _unit_topics(self, call: Call[NoFields]) -> Answer:
        """Return the topics of a unit (311)."""
        return self._flagged(TopicSysFlag.FLAG_UNIT, TopicSysFlag.FLAG_UNIT)

    @handles(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoFields)
    def _unit_sub_topics(self, call: Call[NoFields]) -> Answer:
        """Return the topics that groups of a unit subscribe to (312)."""
        return self._flagged(TopicSysFlag.FLAG_UNIT_SUB, TopicSysFlag.FLAG_UNIT_SUB)

    @handles(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoFields)
    def _unit_sub_topics_of_none(self, call: Call[NoFields]) -> Answer:
        """Return those of them that are of no unit themselves (313)."""
        both = TopicSysFlag.FLAG_UNIT | TopicSysFlag.FLAG_UNIT_SUB
        return self._flagged(both, TopicSysFlag.FLAG_UNIT_SUB)

    def _flagged(self, mask: int, flags: int) -> Answer:
        return Answer(TopicList(topic_list=self._routes.topics_flagged(mask, flags)))

    # The name server itself

    @handles(RequestCode.GET_NAMESRV_CONFIG, NoFields)
    def _get_config(self, call: Call[NoFields]) -> Answer:
        """Return every key with its value, but for secrets (319)."""
        rows = sorted(values_of(self._config).items())
        text = "".join(f"{key}={shown_value(value)}\n" for key, value in rows if not is_secret(key))
        return Answer(text.encode())

    @handles(RequestCode.UPDATE_NAMESRV_CONFIG, NoFields)
    def _update_config(self, call: Call[NoFields]) -> Answer:
        """Change `logLevel`, until the next start, and refuse all other keys (318).

        The body holds properties.
        """
        body = call.request.body
        if len(body) > CONFIG_SIZE_MAX:
            raise refused(f"the body has {len(body)} bytes, {CONFIG_SIZE_MAX} are allowed")
        known = keys_of(NamesrvConfig)
        try:
            texts = {
                known_key(item.key, item.value, known): item.value for item in read_properties(body)
            }
            if fixed := [key for key in texts if key not in known or not known[key].effect.is_live]:
                raise refused(
                    f"{', '.join(fixed)}: keys of a name server take a restart; set them where it "
                    "is started",
                    ResponseCode.NO_PERMISSION,
                )
            values = read_values(known, texts)
            changes = {known[key].attribute: value for key, value in values.items()}
            self._config = dataclasses.replace(self._config, **changes)
        except PropertiesError as error:
            raise refused(f"the body is no properties text: {error}") from error
        except ConfigError as error:
            raise refused(f"{shown(error.key)}={shown(error.value)}: {error.cure}") from error
        for key, value in values.items():
            log.warning("%s is %s now: %s", key, value, call.remote_address)
        set_levels(self._config.log_level)
        return Answer()

    # Brokers

    @handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequestHeader)
    def _wipe_write_permission(self, call: Call[WipeWritePermOfBrokerRequestHeader]) -> Answer:
        header = call.header
        count = self._routes.set_write_permission(header.broker_name, allowed=False)
        log.info("%s ends writing to %s", call.remote_address, shown(header.broker_name))
        return Answer(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    @handles(RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequestHeader)
    def _add_write_permission(self, call: Call[AddWritePermOfBrokerRequestHeader]) -> Answer:
        header = call.header
        count = self._routes.set_write_permission(header.broker_name, allowed=True)
        log.info("%s allows writing to %s", call.remote_address, shown(header.broker_name))
        return Answer(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))


async def _answers(connection: BrokerConnection) -> bool:
    question = RemotingCommand.request(RequestCode.HEART_BEAT)
    try:
        await connection.call(question, ANSWER_TIMEOUT_S)
    except (TimeoutError, ConnectionFailed):
        return False
    return True


def _registration(header: RegisterBrokerRequestHeader, body: bytes) -> RegisterBrokerBody:
    if not body:
        return RegisterBrokerBody()
    if header.compressed:
        return decode_compressed_registration(body)
    return decode_body(RegisterBrokerBody, body)
