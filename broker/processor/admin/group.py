"""Administration of consumer groups: settings (200, 201, 207), members (203, 204, 328), progress
(300), and offsets (43, 45).

Answers to changes come when their tables are on the disk. A group that is deleted while members are
connected is made again by their next heartbeat, where groups are made on demand; its retry and
dead-letter topics stay, as in RocketMQ. The setting `consumeFromMinEnable` is kept and changes
nothing, as there.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateSubscriptionGroup, getAllSubscriptionGroup, deleteSubscriptionGroup,
getConsumerConnectionList, getProducerConnectionList, getAllProducerInfo,
queryTopicConsumeByWho, getAllConsumerOffset, getAllDelayOffset)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import QUEUES_MAX
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.memberships import ClientChannelInfo, Member
from skylarkmq.broker.groups.subscription_group import BUILT_IN_GROUPS
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, Result, handles, refused
from skylarkmq.broker.requests.processor import (
    Context,
    Processor,
    check_group,
    check_producer_group,
    check_topic,
)
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.protocol.bodies.group import (
    ConnectionBody,
    ConsumerConnection,
    DelayOffsetSerializeWrapper,
    DifferingMember,
    GroupList,
    GroupRetryPolicy,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionGroupConfig,
    TimerProgressBody,
)
from skylarkmq.protocol.bodies.text import Body, decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

RETRY_POLICY_TYPES: Final = ("CUSTOMIZED", "EXPONENTIAL")
RETRY_WAITS_MAX: Final = 64
RETRY_WAIT_MAX_MS: Final = 12 * 3_600_000
"""No message can be invisible for longer."""
PRODUCERS_SLICE: Final = 2048
"""Producers of an answer that are looked at before the loop may turn."""


class _Attributes(Body, kw_only=True, frozen=True):
    """What RocketMQ 5's request to change a group has beside the group."""

    attributes: dict[str, str] | None = None


class AdminGroupProcessor(Processor):
    """Serves administrators of groups. Loop thread."""

    def __init__(
        self,
        context: Context,
        delay_offsets: DelayOffsetTable,
        stats: BrokerStats,
        timer: TimerMessageService | None = None,
    ) -> None:
        """Make the processor.

        Args:
            timer: delivers messages with a time of their own; None: nothing is told about it.
        """
        super().__init__(context)
        self._timer = timer
        self._delay_offsets = delay_offsets
        self._stats = stats

    # Settings

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoFields)
    def update_group(self, call: Call[NoFields]) -> Answer:
        """Create or replace a group (200)."""
        group = decode_body(SubscriptionGroupConfig, call.request.body)
        check_group(group.group_name)
        if unknown := decode_body(_Attributes, call.request.body).attributes:
            raise refused(
                f"attributes {shown(', '.join(unknown))}: a group has none here; lite topics, of "
                "RocketMQ 5.5, are not built, and every receive goes by priority"
            )
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            raise refused(
                f"retryQueueNums {group.retry_queue_nums} is out of range: 0 (no message comes "
                f"twice) to {QUEUES_MAX} are allowed"
            )
        if group.broker_id < 0 or group.which_broker_when_consume_slowly < 0:
            raise refused("brokerId and whichBrokerWhenConsumeSlowly are ids of brokers, 0 or more")
        _check_retry_policy(group.retry_policy)
        known = self._groups.table.get(group.group_name)
        if known is not None and group.message_request_mode is msgspec.UNSET:  # 401 sets it
            group = msgspec.structs.replace(group, message_request_mode=known.message_request_mode)
        self._groups.update(group)
        return Answer(after=(self._groups,))

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfigRequestHeader)
    def get_group(self, call: Call[GetSubscriptionGroupConfigRequestHeader]) -> Answer:
        """Answer one group's configuration (352, of RocketMQ 5); asking makes none."""
        name = call.header.group
        group = self._groups.table.get(name)
        if group is None:
            raise refused(
                f"No group in this broker. group: {shown(name)}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return Answer(group)

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoFields)
    def get_all_groups(self, call: Call[NoFields]) -> Result:
        """Answer the whole table (201)."""
        return self._groups.body.answer(call.request)

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader)
    def delete_group(self, call: Call[DeleteSubscriptionGroupRequestHeader]) -> Answer:
        """Remove a group, and where it stands when asked to (207). An unknown one is no error."""
        header = call.header
        check_group(header.group_name)
        if header.group_name in BUILT_IN_GROUPS:
            raise refused(f"the group {header.group_name} is the broker's own")
        self._groups.delete(header.group_name)
        self._stats.forget_group(header.group_name)
        if not header.remove_offset:
            return Answer(after=(self._groups,))
        self._offsets.remove_group(header.group_name)
        return Answer(after=(self._groups, self._offsets))

    # Members

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader)
    def get_consumer_connections(
        self, call: Call[GetConsumerConnectionListRequestHeader]
    ) -> Answer:
        """Answer a group's members and subscriptions, and whose differ from the others' (203)."""
        header = call.header
        info = self._consumers.group(header.consumer_group)
        if info is None:
            raise refused(
                f"the consumer group[{shown(header.consumer_group)}] not online",
                ResponseCode.CONSUMER_NOT_ONLINE,
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
            pops=info.pops or msgspec.UNSET,
            subscription_table=info.subscriptions,
        )
        return Answer(body)

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequestHeader)
    def get_producer_connections(
        self, call: Call[GetProducerConnectionListRequestHeader]
    ) -> Answer:
        """Answer the clients of a producer group (204)."""
        header = call.header
        check_producer_group(header.producer_group)
        clients = self._producers.clients(header.producer_group)
        if not clients:
            raise refused(f"the producer group[{header.producer_group}] not exist")
        return Answer(ProducerConnection(connection_set=_connections(clients)))

    @handles(RequestCode.GET_ALL_PRODUCER_INFO, NoFields)
    async def get_all_producers(self, call: Call[NoFields]) -> Answer:
        """Answer every producer of every group (328)."""
        data: dict[str, list[ProducerInfo]] = {}
        count = 0
        for group in sorted(self._producers.groups):
            clients = self._producers.clients(group).items()
            if clients:  # else it has gone in an earlier turn
                data[group] = [self._producer(peer, client) for peer, client in clients]
                count += len(clients)
            if count >= PRODUCERS_SLICE:
                count = 0
                await asyncio.sleep(0)
        return Answer(ProducerTableInfo(data=data))

    def _producer(self, peer: Member, client: ClientChannelInfo) -> ProducerInfo:
        silent_ms = int(self._clock.monotonic() * 1000) - client.last_update_ms
        return ProducerInfo(
            client_id=client.client_id,
            language=client.language.name,
            last_update_timestamp=self._clock.now_ms() - silent_ms,
            remote_ip="/" + peer.remote_address,
            version=client.version,
        )

    # Progress

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequestHeader)
    def query_consumers_of_topic(self, call: Call[QueryTopicConsumeByWhoRequestHeader]) -> Answer:
        """Answer the groups that subscribe to a topic or ever consumed it (300)."""
        header = call.header
        check_topic(header.topic)
        groups = {
            *self._consumers.subscribed_to(header.topic),
            *self._offsets.groups_of(header.topic),
        }
        return Answer(GroupList(group_list=sorted(groups)))

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET, NoFields)
    def get_all_offsets(self, call: Call[NoFields]) -> Result:
        """Answer where every group stands (43)."""
        return self._offsets.body.answer(call.request)

    @handles(RequestCode.GET_ALL_DELAY_OFFSET, NoFields)
    def get_all_delay_offsets(self, call: Call[NoFields]) -> Answer:
        """Answer how far each delay level is delivered, and messages with times (45)."""
        levels = range(1, self._store.delay_levels.max_level + 1)
        body = DelayOffsetSerializeWrapper(
            offset_table={
                level: offset for level in levels if (offset := self._delay_offsets.get(level))
            },
            timer_progress=self._timer_progress(),
        )
        return Answer(body)

    def _timer_progress(self) -> TimerProgressBody | msgspec.UnsetType:
        progress = None if self._timer is None else self._timer.progress()
        if progress is None:
            return msgspec.UNSET
        (due_ms, offset), (cancel_ms, cancel_offset) = progress.messages, progress.cancels
        return TimerProgressBody(
            queue_offset=progress.queue_offset,
            void_below=progress.void_below,
            messages=(due_ms, offset),
            cancels=(cancel_ms, cancel_offset),
        )


def _check_retry_policy(policy: GroupRetryPolicy) -> None:
    if policy.type not in RETRY_POLICY_TYPES:
        raise refused(
            f"groupRetryPolicy has the type {shown(policy.type)}, one of "
            f"{', '.join(RETRY_POLICY_TYPES)} is allowed"
        )
    customized, exponential = policy.customized_retry_policy, policy.exponential_retry_policy
    if customized is not None and not (
        0 < len(customized.next) <= RETRY_WAITS_MAX
        and all(0 <= wait <= RETRY_WAIT_MAX_MS for wait in customized.next)
    ):
        raise refused(
            f"the customizedRetryPolicy has 1 to {RETRY_WAITS_MAX} waits, each of 0 to "
            f"{RETRY_WAIT_MAX_MS} ms"
        )
    if exponential is not None and not (
        0 < exponential.initial <= exponential.max <= RETRY_WAIT_MAX_MS
        and exponential.multiplier >= 1
    ):
        raise refused(
            f"the exponentialRetryPolicy has 0 < initial <= max <= {RETRY_WAIT_MAX_MS} ms, and a "
            "multiplier of 1 or more"
        )


def _connections(clients: Mapping[Member, ClientChannelInfo]) -> list[ConnectionBody]:
    return [
        ConnectionBody(
            client_addr=peer.remote_address,
            client_id=client.client_id,
            language=client.language.name,
            version=client.version,
        )
        for peer, client in clients.items()
    ]
