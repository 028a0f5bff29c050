"""The requests of administrators that a name server answers: KV configuration (100, 101, 102, 219),
topics (216, 224, 304), write permission of brokers (205, 327).

What is said of topics and permissions lives in memory: a broker's next registration of another
version of its topics says it anew.

Source: apache/rocketmq@rocketmq-all-4.9.8 namesrv/.../processor/DefaultRequestProcessor.java
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from skylarkmq.broker.namesrv.kv_config import KVConfig
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol.bodies.route import KVTable, TopicList
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.route import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

log = logging.getLogger(__name__)


class NamesrvAdminProcessor:
    """Serves administrators from the tables of a name server. Loop thread."""

    def __init__(self, routes: RouteInfoManager, kv: KVConfig) -> None:
        self._routes = routes
        self._kv = kv

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
        }

    # KV configuration

    def _put_kv(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        header = decode_fields(PutKVConfigRequestHeader, request.ext_fields)
        self._kv.put(header.namespace, header.key, header.value)
        return self._answer_when_durable(request)

    def _get_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetKVConfigRequestHeader, request.ext_fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise RemoteProtocolError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {shown(header.namespace)} Key: {shown(header.key)}",
            )
        fields = encode_fields(GetKVConfigResponseHeader(value=value))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)

    def _delete_kv(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        header = decode_fields(DeleteKVConfigRequestHeader, request.ext_fields)
        self._kv.delete(header.namespace, header.key)
        return self._answer_when_durable(request)

    def _list_kv(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetKVListByNamespaceRequestHeader, request.ext_fields)
        rows = self._kv.of_namespace(header.namespace)
        if rows is None:
            raise RemoteProtocolError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {shown(header.namespace)}",
            )
        return request.reply(ResponseCode.SUCCESS, body=encode_body(KVTable(table=rows)))

    async def _answer_when_durable(self, request: RemotingCommand) -> RemotingCommand:
        if self._kv.file is not None:
            await durable(self._kv.file)
        return request.reply(ResponseCode.SUCCESS)

    # Topics

    def _delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_fields(DeleteTopicFromNamesrvRequestHeader, request.ext_fields)
        cluster = header.cluster_name
        log.info("%s lets topic %s be forgotten", connection.remote_address, shown(header.topic))
        self._routes.forget_topic(
            header.topic, self._routes.brokers_of(cluster) if cluster else None
        )
        return request.reply(ResponseCode.SUCCESS)

    def _topics_of_cluster(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = decode_fields(GetTopicsByClusterRequestHeader, request.ext_fields)
        body = TopicList(topic_list=self._routes.topics_of(header.cluster))
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    def _system_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The clusters and the brokers in them, each of which is a topic."""
        names: list[str] = []
        for cluster, brokers in self._routes.cluster_info().cluster_addr_table.items():
            names += [cluster, *brokers]
        body = TopicList(broker_addr=self._routes.first_address(), topic_list=names)
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    # Brokers

    def _wipe_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = decode_fields(WipeWritePermOfBrokerRequestHeader, request.ext_fields)
        count = self._routes.set_write_permission(header.broker_name, allowed=False)
        log.info("%s ends writing to %s", connection.remote_address, shown(header.broker_name))
        fields = encode_fields(WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)

    def _add_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = decode_fields(AddWritePermOfBrokerRequestHeader, request.ext_fields)
        count = self._routes.set_write_permission(header.broker_name, allowed=True)
        log.info("%s allows writing to %s", connection.remote_address, shown(header.broker_name))
        fields = encode_fields(AddWritePermOfBrokerResponseHeader(add_topic_count=count))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)
