"""Administration of consumer groups: settings (200, 201, 207), members (203, 204, 328), progress
(208, 300), and offsets (43, 45).

Answers to changes come when their tables are on the disk. A group that is deleted while members are
connected is made again by their next heartbeat, where groups are made on demand; its retry and
dead-letter topics stay, as in RocketMQ. The setting `consumeFromMinEnable` is kept and changes
nothing, as there.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateSubscriptionGroup, getAllSubscriptionGroup, deleteSubscriptionGroup,
getConsumerConnectionList, getProducerConnectionList, getAllProducerInfo, getConsumeStats,
queryTopicConsumeByWho, getAllConsumerOffset, getAllDelayOffset)
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final

import msgspec

from skylarkmq.broker.config.settings import QUEUES_MAX
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.consumer_manager import ClientChannelInfo, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.groups.subscription_group import BUILT_IN_GROUPS, SubscriptionGroupManager
from skylarkmq.broker.metrics.rates import ConsumeRateService
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import check_group, check_producer_group, check_topic
from skylarkmq.broker.pulling import cold_reads
from skylarkmq.broker.tables.json_table import Answer
from skylarkmq.broker.tables.persist import TableFile, durable
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import (
    ConnectionBody,
    ConsumerConnection,
    ConsumeStats,
    DelayOffsetSerializeWrapper,
    DifferingMember,
    GroupList,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionGroupConfig,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from skylarkmq.store.message_store import MessageStore

QUEUES_SLICE: Final = 256
"""Queues of an answer that are looked at before the loop may turn."""
PRODUCERS_SLICE: Final = 2048
"""Producers of an answer that are looked at before the loop may turn."""

Row = tuple[MessageQueueBody, OffsetWrapper]


class AdminGroupProcessor:
    """Serves administrators of groups. Loop thread."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        producers: ProducerManager,
        delay_offsets: DelayOffsetTable,
        rates: ConsumeRateService,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._delay_offsets = delay_offsets
        self._rates = rates
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.get_consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.get_producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.get_all_producers,
            RequestCode.GET_CONSUME_STATS: self.get_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.query_consumers_of_topic,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_all_delay_offsets,
        }

    # Settings

    def update_group(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Create or replace a group (200)."""
        group = decode_body(SubscriptionGroupConfig, request.body)
        check_group(group.group_name)
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            raise _refused(
                f"retryQueueNums {group.retry_queue_nums} is out of range: 0 (no message comes "
                f"twice) to {QUEUES_MAX} are allowed"
            )
        if group.broker_id < 0 or group.which_broker_when_consume_slowly < 0:
            raise _refused(
                "brokerId and whichBrokerWhenConsumeSlowly are ids of brokers, 0 or more"
            )
        self._groups.update(group)
        return _answer_when_durable(request, self._groups)

    def get_group(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer one group's configuration (352, of RocketMQ 5); asking makes none."""
        name = decode_fields(GetSubscriptionGroupConfigRequestHeader, request.ext_fields).group
        group = self._groups.table.get(name)
        if group is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {shown(name)}",
            )
        return request.reply(ResponseCode.SUCCESS, body=encode_body(group))

    def get_all_groups(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Answer the whole table (201)."""
        return self._groups.body.answer(request)

    def delete_group(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Remove a group, and where it stands when asked to (207). An unknown one is no error."""
        header = decode_fields(DeleteSubscriptionGroupRequestHeader, request.ext_fields)
        check_group(header.group_name)
        if header.group_name in BUILT_IN_GROUPS:
            raise _refused(f"the group {header.group_name} is the broker's own")
        self._groups.delete(header.group_name)
        self._rates.forget_group(header.group_name)
        if not header.remove_offset:
            return _answer_when_durable(request, self._groups)
        self._offsets.remove_group(header.group_name)
        return _answer_when_durable(request, self._groups, self._offsets)

    # Members

    def get_consumer_connections(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer a group's members and subscriptions, and whose differ from the others' (203)."""
        header = decode_fields(GetConsumerConnectionListRequestHeader, request.ext_fields)
        info = self._consumers.group(header.consumer_group)
        if info is None:
            raise RemoteProtocolError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{shown(header.consumer_group)}] not online",
            )
        differing = [
            DifferingMember(
                client_id=client_id,
                subscriptions={topic: expression for topic, _, expression in wish},
            )
            for client_id, wish in self._consumers.watch.examples(header.consumer_group)
        ]
        body = ConsumerConnection(
            connection_set=_connections(info.channels),
            consume_from_where=info.consume_from_where,
            consume_type=info.consume_type,
            differing_members=differing or msgspec.UNSET,
            message_model=info.message_model,
            subscription_table=info.subscriptions,
        )
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    def get_producer_connections(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the clients of a producer group (204)."""
        header = decode_fields(GetProducerConnectionListRequestHeader, request.ext_fields)
        check_producer_group(header.producer_group)
        clients = self._producers.group(header.producer_group)
        if not clients:
            raise _refused(f"the producer group[{header.producer_group}] not exist")
        body = ProducerConnection(connection_set=_connections(clients))
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    async def get_all_producers(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer every producer of every group (328)."""
        data: dict[str, list[ProducerInfo]] = {}
        count = 0
        for group in sorted(self._producers.groups):
            clients = self._producers.group(group).items()
            if clients:  # else it has gone in an earlier turn
                data[group] = [self._producer(peer, client) for peer, client in clients]
                count += len(clients)
            if count >= PRODUCERS_SLICE:
                count = 0
                await asyncio.sleep(0)
        body = encode_body(ProducerTableInfo(data=data))
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _producer(self, peer: Connection, client: ClientChannelInfo) -> ProducerInfo:
        silent_ms = int(self._clock.monotonic() * 1000) - client.last_update_ms
        return ProducerInfo(
            client_id=client.client_id,
            language=client.language.name,
            last_update_timestamp=self._clock.now_ms() - silent_ms,
            remote_ip="/" + peer.remote_address,
            version=client.version,
        )

    # Progress

    def query_consumers_of_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the groups that subscribe to a topic or ever consumed it (300)."""
        header = decode_fields(QueryTopicConsumeByWhoRequestHeader, request.ext_fields)
        check_topic(header.topic)
        groups = {
            *self._consumers.subscribed_to(header.topic),
            *self._offsets.groups_of(header.topic),
        }
        body = GroupList(group_list=sorted(groups))
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    def get_all_offsets(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Answer where every group stands (43)."""
        return self._offsets.body.answer(request)

    def get_all_delay_offsets(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer how far each delay level is delivered (45)."""
        levels = range(1, self._store.delay_levels.max_level + 1)
        body = DelayOffsetSerializeWrapper(
            offset_table={
                level: offset for level in levels if (offset := self._delay_offsets.get(level))
            }
        )
        return request.reply(ResponseCode.SUCCESS, body=encode_body(body))

    def get_consume_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Answer where a group stands in each queue of its topics (208)."""
        header = decode_fields(GetConsumeStatsRequestHeader, request.ext_fields)
        group, topic = header.consumer_group, header.topic
        check_group(group)
        if topic and topic.strip():
            check_topic(topic)
            return self._stats_of(request, group, [topic])
        return self._stats_of(request, group, sorted(self._offsets.topics_of(group)))

    async def _stats_of(
        self, request: RemotingCommand, group: str, topics: Collection[str]
    ) -> RemotingCommand:
        rows: list[Row] = []
        tps = 0.0
        info = self._consumers.group(group)
        for topic in topics:
            config = self._topics.get(topic)
            if config is None or (
                info is not None and info.subscriptions and topic not in info.subscriptions
            ):
                continue  # gone, or not consumed any more
            for queue_id in range(config.read_queue_nums):
                rows.append(await self._row(group, topic, queue_id))
                if len(rows) % QUEUES_SLICE == 0:
                    await asyncio.sleep(0)
            tps += self._rates.per_second(topic, group)
        body = encode_body(ConsumeStats(consume_tps=tps, offset_table=rows))
        return request.reply(ResponseCode.SUCCESS, body=body)

    async def _row(self, group: str, topic: str, queue_id: int) -> Row:
        store = self._store
        end = max(0, store.max_offset(topic, queue_id))
        place = max(0, self._offsets.query(group, topic, queue_id))
        last = 0
        if 0 < place <= end:
            if store.is_cold(topic, queue_id, place - 1):
                last = await cold_reads.message_time(store, topic, queue_id, place - 1)
            else:
                last = store.message_time(topic, queue_id, place - 1)
        queue = MessageQueueBody(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
        return queue, OffsetWrapper(
            broker_offset=end, consumer_offset=place, last_timestamp=max(0, last)
        )


async def _answer_when_durable(request: RemotingCommand, *tables: TableFile) -> RemotingCommand:
    await durable(*tables)
    return request.reply(ResponseCode.SUCCESS)


def _connections(clients: Mapping[Connection, ClientChannelInfo]) -> list[ConnectionBody]:
    return [
        ConnectionBody(
            client_addr=peer.remote_address,
            client_id=client.client_id,
            language=client.language.name,
            version=client.version,
        )
        for peer, client in clients.items()
    ]


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
