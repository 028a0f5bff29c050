"""Clients: their heartbeats (34), their leaving (35), the check of a filter beforehand (46).

A heartbeat makes the configuration of a new group and its `%RETRY%` topic, so its answer waits for
their tables to be on the disk; the membership itself counts at once. The answer's version tells a
client what this broker can do. Other members hear of a change after the answer.

Unlike RocketMQ, names and amounts are checked, all of them before anything is taken in. A client
whose heartbeat is refused never receives anything and may not say why, so each reason is logged as
a warning, once for a client and group, and counted.

A group that others consume in another way (`consumer_manager.py`) is left out, and the answer says
so: the client's other groups have nothing to do with it.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/ClientManageProcessor.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from typing import Any, Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import READ_WRITE
from skylarkmq.broker.filter.pull_subscription import compile_subscription, no_filter
from skylarkmq.broker.filter.tag_filter import (
    EXPRESSION_SIZE_MAX,
    TAGS_MAX,
    count_tags,
    is_tag_type,
)
from skylarkmq.broker.groups.consumer_manager import GROUPS_PER_CLIENT_MAX
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import (
    CLIENT_ID_SIZE_MAX,
    Context,
    Processor,
    check_group,
    check_producer_group,
    check_topic,
)
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol.bodies.group import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import TopicSysFlag, retry_topic
from skylarkmq.protocol.headers.group import UnregisterClientRequestHeader
from skylarkmq.protocol.sql92.errors import TEXT_SIZE_MAX

log = logging.getLogger(__name__)

SUBSCRIPTIONS_PER_CLIENT_MAX: Final = 1024
"""Topics that one client may subscribe to, over all of its groups."""
REFUSALS_TOLD_MAX: Final = 1024
"""Refusals that are remembered, so that each is told once; then all are forgotten."""

SQL_SIZE_MAX: Final = 32_768
"""Characters of all expressions by properties in one heartbeat: each may have to be compiled."""


class ClientManageProcessor(Processor):
    """Registers and forgets clients. Loop thread."""

    def __init__(self, context: Context, locks: RebalanceLockManager, stats: BrokerStats) -> None:
        super().__init__(context)
        self._locks = locks
        self._stats = stats
        self._told: set[tuple[str, str, str]] = set()  # (client, group or "", why it was refused)

    @handles(RequestCode.CHECK_CLIENT_CONFIG, NoFields)
    def check_client(self, call: Call[NoFields]) -> Answer:
        """Tell a consumer whether its subscription can be served, before it starts (46).

        The code is 1 when filters are off, 23 when the expression is wrong.
        """
        data = decode_body(CheckClientRequestBody, call.request.body).subscription_data
        if not is_tag_type(data.expression_type):
            if not self._config.enable_property_filter:
                raise no_filter(data.expression_type)
            compile_subscription(data.expression_type, data.sub_string)
        return Answer()

    @handles(RequestCode.HEART_BEAT, NoFields)
    def heart_beat(self, call: Call[NoFields]) -> Answer | Coroutine[Any, Any, RemotingCommand]:
        """Take in all groups of one client (34)."""
        connection, request, _ = call
        client_id = connection.remote_address  # until it is known
        try:
            data = decode_body(HeartbeatData, request.body)
            client_id = data.client_id
            self._check(connection, data)
        except RemoteProtocolError as error:
            self._note_refusal(client_id, error)
            raise
        changed: list[str] = []
        left_out: RemoteProtocolError | None = None
        try:
            for consumer in data.consumer_data_set:
                try:
                    self._check_mode(consumer)
                except RemoteProtocolError as error:
                    self._note_refusal(client_id, error)
                    left_out = error
                    continue
                self._open_group(
                    consumer.group_name, connection.remote_address, unit_mode=consumer.unit_mode
                )
                if self._consumers.register(
                    connection, client_id, request.language, request.version, consumer
                ):
                    changed.append(consumer.group_name)
        except RemoteProtocolError as error:  # no room for a group, or it comes too soon
            self._note_refusal(client_id, error)
            self._tell_after_answer(changed)
            raise
        for producer in data.producer_data_set:
            self._producers.register(
                connection, client_id, request.language, request.version, producer.group_name
            )
        if left_out is None and (self._topics.pending or self._groups.pending):
            return self._answer_when_durable(request, changed)
        self._tell_after_answer(changed)
        if left_out is not None:
            raise left_out
        return Answer()

    def _check_mode(self, consumer: ConsumerData) -> None:
        try:
            self._consumers.check_heartbeat(consumer)
        except RemoteProtocolError as error:
            raise _GroupRefused(consumer.group_name, error) from error

    async def _answer_when_durable(
        self, request: RemotingCommand, changed: list[str]
    ) -> RemotingCommand:
        try:
            await durable(self._groups, self._topics)
        finally:
            self._tell_after_answer(changed)
        return request.reply(ResponseCode.SUCCESS)

    def _tell_after_answer(self, changed: list[str]) -> None:
        """Have the members of groups told in the next loop turn: the answer is queued in this."""
        call_soon = asyncio.get_running_loop().call_soon
        for group in changed:
            call_soon(self._consumers.tell, group)

    def _note_refusal(self, client_id: str, error: RemoteProtocolError) -> None:
        self._stats.heartbeats_refused += 1
        group = error.group if isinstance(error, _GroupRefused) else ""
        key = client_id[:CLIENT_ID_SIZE_MAX], group, error.remark
        if key in self._told:
            return
        if len(self._told) >= REFUSALS_TOLD_MAX:
            self._told.clear()
        self._told.add(key)
        log.warning(
            "the heartbeat of client %s is refused, so it receives nothing: %s%s",
            shown(key[0]),
            f"group {group}: " if group else "",
            error.remark,
        )

    def _open_group(self, group: str, remote_address: str, *, unit_mode: bool) -> None:
        if self._store.follows:
            return  # its clients tell the master, too
        config = self._groups.find(group, remote_address)
        if config is not None and config.retry_queue_nums > 0:
            self._topics.create_in_send_back(
                retry_topic(group),
                config.retry_queue_nums,
                READ_WRITE,
                TopicSysFlag.FLAG_UNIT_SUB if unit_mode else 0,
                remote_address,
            )

    def _check(self, connection: Connection, data: HeartbeatData) -> None:
        if not 0 < len(data.client_id) <= CLIENT_ID_SIZE_MAX:
            raise refused(
                f"the clientID has {len(data.client_id)} characters, 1 to {CLIENT_ID_SIZE_MAX} "
                "are allowed"
            )
        consumers, producers = data.consumer_data_set, data.producer_data_set
        _check_amount(
            "consumer groups",
            {consumer.group_name for consumer in consumers},
            self._consumers.groups_of(connection),
        )
        _check_amount(
            "producer groups",
            {producer.group_name for producer in producers},
            self._producers.groups_of(connection),
        )
        for producer in producers:
            check_producer_group(producer.group_name)
        self._check_subscriptions(connection, consumers)

    def _check_subscriptions(self, connection: Connection, consumers: list[ConsumerData]) -> None:
        count = sum(len(consumer.subscription_data_set) for consumer in consumers)
        named = {consumer.group_name for consumer in consumers}
        for group in self._consumers.groups_of(connection):
            info = self._consumers.group(group)
            if group not in named and info is not None:
                count += len(info.subscriptions)
        if count > SUBSCRIPTIONS_PER_CLIENT_MAX:
            raise refused(
                f"the client has {count} subscriptions, at most {SUBSCRIPTIONS_PER_CLIENT_MAX} "
                "are allowed: spread them over several clients"
            )
        sql_size = sum(
            len(subscription.sub_string)
            for consumer in consumers
            for subscription in consumer.subscription_data_set
            if not is_tag_type(subscription.expression_type)
        )
        if sql_size > SQL_SIZE_MAX:
            raise refused(
                f"the expressions of the heartbeat have {sql_size} characters, at most "
                f"{SQL_SIZE_MAX} are allowed: spread them over several clients"
            )
        for consumer in consumers:
            check_group(consumer.group_name)
            for subscription in consumer.subscription_data_set:
                try:
                    _check_subscription(subscription)
                except RemoteProtocolError as error:
                    raise _GroupRefused(consumer.group_name, error) from error

    @handles(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader)
    def unregister_client(self, call: Call[UnregisterClientRequestHeader]) -> Answer:
        """Take a client out of a producer group, a consumer group, or both (35).

        Its queue locks in the consumer group are free then.
        """
        header = call.header
        if header.producer_group is not None:
            self._producers.unregister(call.connection, header.producer_group)
        if header.consumer_group is not None:
            self._leave(call.connection, header.consumer_group)
        return Answer()

    def _leave(self, connection: Connection, group: str) -> None:
        info = self._consumers.group(group)
        client = None if info is None else info.channels.get(connection)
        self._consumers.unregister(connection, group)
        if client is not None and client.client_id not in self._consumers.client_ids(group):
            self._locks.release(group, client.client_id)


def _check_amount(what: str, named: set[str], known: Collection[str]) -> None:
    count = len(named.union(known))
    if count > GROUPS_PER_CLIENT_MAX:
        raise refused(
            f"the client is in {count} {what}, at most {GROUPS_PER_CLIENT_MAX} are allowed"
        )


class _GroupRefused(RemoteProtocolError):
    """What one group of a heartbeat asks for is refused."""

    def __init__(self, group: str, error: RemoteProtocolError) -> None:
        super().__init__(error.response_code, error.remark)
        self.group = group


def _check_subscription(data: SubscriptionData) -> None:
    check_topic(data.topic)
    is_tags = is_tag_type(data.expression_type)
    size_max = EXPRESSION_SIZE_MAX if is_tags else TEXT_SIZE_MAX
    size = max(len(data.sub_string), sum(map(len, data.tags_set)))
    if size > size_max:
        raise refused(
            f"the subscription of {data.topic} has {size} characters, at most {size_max} are "
            "allowed"
        )
    count = max(len(data.tags_set), len(data.code_set))
    if is_tags:
        count = max(count, count_tags(data.sub_string))
    if count > TAGS_MAX:
        raise refused(
            f"the subscription of {data.topic} has {count} tags, at most {TAGS_MAX} are allowed"
        )
