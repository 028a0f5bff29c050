"""Where groups stand: what members say of it (223 by 221), in time (303), what all have passed
(308); and one group put where another is (314).

Unlike RocketMQ, 308 does not forget the offsets of the groups that it is asked to leave out, and a
clone without a topic clones all topics. A group that is cloned to is made where groups are made on
demand; its offsets are on the disk before the answer.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getConsumerStatus, cloneGroupOffset, queryConsumeTimeSpan, queryCorrectionOffset),
broker/.../client/net/Broker2Client.java (getConsumeStatus)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.groups.consumer_manager import ConsumerGroupInfo, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.client_calls import ClientCalls
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.pending_calls import ConnectionClosedError
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import (
    check_group,
    check_offset_group,
    check_topic,
)
from skylarkmq.broker.pulling import cold_reads
from skylarkmq.broker.tables.persist import durable
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.group import (
    GetConsumerStatusBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.group import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetRequestHeader,
)
from skylarkmq.store.message_store import MessageStore

STATUS_TIMEOUT_S: Final = 5.0
STATUS_SIZE_MAX: Final = 1 << 20
"""Bytes of one member's answer; a thousand queues have less than a tenth."""
FURTHEST: Final = 2**63 - 1
QUEUES_SLICE: Final = 64
"""Queues looked at in one turn of the loop."""
OFFSETS_SLICE: Final = 4096
"""Offsets of groups looked at in one turn of the loop."""

log = logging.getLogger(__name__)

OffsetTable = list[tuple[MessageQueueBody, int]]


class AdminOffsetProcessor:
    """Serves administrators of consumption. Loop thread."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        client_calls: ClientCalls,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._client_calls = client_calls
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.get_consumer_status,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_group_offset,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.query_consume_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.query_correction_offset,
        }

    # Status

    async def get_consumer_status(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Ask the members which offsets they hold (223 by 221)."""
        header = decode_fields(GetConsumerStatusRequestHeader, request.ext_fields)
        check_group(header.group)
        info = self._consumers.group(header.group)
        if info is None:
            raise _refused(f"No Any Consumer online in the consumer group: [{header.group}]")
        check_versions(info)
        fields = encode_fields(
            GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        )
        asked = [
            (client.client_id, self._ask_status(member, fields))
            for member, client in info.channels.items()
            if not header.client_addr or header.client_addr == client.client_id
        ]
        answers = await asyncio.gather(*[answer for _, answer in asked])
        table = {
            client_id: _by_queue(held)
            for (client_id, _), held in zip(asked, answers, strict=True)
            if held is not None
        }
        body = lenient_json.dumps({"consumerTable": table})
        return request.reply(ResponseCode.SUCCESS, body=body)

    async def _ask_status(self, member: Connection, fields: dict[str, str]) -> OffsetTable | None:
        """The offsets that a member holds; None when it does not say."""
        asked = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        try:
            answer = await self._client_calls.call(member, asked, STATUS_TIMEOUT_S)
            if len(answer.body) > STATUS_SIZE_MAX:
                log.warning("%s says too much of where it stands", member.remote_address)
            elif answer.code == ResponseCode.SUCCESS:
                return decode_body(GetConsumerStatusBody, answer.body).message_queue_table
        except (TimeoutError, ConnectionClosedError, RemoteProtocolError) as error:
            log.warning("%s does not say where it stands: %s", member.remote_address, error)
        return None

    # Clone

    def clone_group_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Let one group stand where another does (314)."""
        header = decode_fields(CloneGroupOffsetRequestHeader, request.ext_fields)
        source, target = header.src_group, header.dest_group
        check_group(source)
        check_offset_group(target)
        if self._groups.find(target) is None:
            raise unknown_group(target)
        topics = [header.topic] if header.topic else self._offsets.topics_of(source)
        info = self._consumers.group(source)
        for topic in topics:
            if self._topics.get(topic) is None:
                continue
            if (
                not header.offline
                and info is not None
                and info.subscriptions
                and topic not in info.subscriptions
            ):
                continue
            for queue_id, offset in self._offsets.of(source, topic).items():
                self._offsets.keep(connection.remote_address, target, topic, queue_id, offset)
        return self._answer_when_durable(request)

    async def _answer_when_durable(self, request: RemotingCommand) -> RemotingCommand:
        await durable(self._groups, self._offsets)
        return request.reply(ResponseCode.SUCCESS)

    # Time spans

    async def query_consume_time_span(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer from when to when the queues are, and where the group is (303)."""
        header = decode_fields(QueryConsumeTimeSpanRequestHeader, request.ext_fields)
        check_group(header.group)
        topic = header.topic
        config = self._topics.get(topic)
        if config is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{shown(topic)}] not exist"
            )
        spans: list[QueueTimeSpan] = []
        for queue_id in range(config.write_queue_nums):
            spans.append(await self._span(header.group, topic, queue_id))
            if len(spans) % QUEUES_SLICE == 0:
                await asyncio.sleep(0)
        body = encode_body(QueryConsumeTimeSpanBody(consume_time_span_set=spans))
        return request.reply(ResponseCode.SUCCESS, body=body)

    async def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first = store.min_offset(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        place = self._offsets.query(group, topic, queue_id)
        begin_ms = await self._time(topic, queue_id, first)
        waiting_ms = await self._time(topic, queue_id, place) if place < end else -1
        return QueueTimeSpan(
            consume_time_stamp=(
                await self._time(topic, queue_id, place - 1) if place > 0 else begin_ms
            ),
            delay_time=self._clock.now_ms() - waiting_ms if waiting_ms >= 0 else 0,
            max_time_stamp=await self._time(topic, queue_id, end - 1),
            message_queue=MessageQueueBody(
                broker_name=self._broker_name, queue_id=queue_id, topic=topic
            ),
            min_time_stamp=begin_ms,
        )

    async def _time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a message, ms; -1 when it is not there."""
        if offset < 0:
            return -1
        if self._store.is_cold(topic, queue_id, offset):
            return await cold_reads.message_time(self._store, topic, queue_id, offset)
        return self._store.message_time(topic, queue_id, offset)

    # Correction

    async def query_correction_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer how far every group of a topic has come at least (308).

        A queue in which the group to compare with is further back has FURTHEST instead: nobody has
        to go back for it.
        """
        header = decode_fields(QueryCorrectionOffsetRequestHeader, request.ext_fields)
        check_topic(header.topic)
        check_group(header.compare_group)
        passed_over = {*(header.filter_groups or "").split(",")}
        table: dict[int, int] = {}
        count = 0
        for group in self._offsets.groups_of(header.topic):
            if group in passed_over:
                continue
            offsets = self._offsets.of(group, header.topic)
            for queue_id, offset in offsets.items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    table[queue_id] = min(offset, table.get(queue_id, FURTHEST))
            count += len(offsets)
            if count >= OFFSETS_SLICE:
                count = 0
                await asyncio.sleep(0)
        for queue_id, offset in self._offsets.of(header.compare_group, header.topic).items():
            if table.get(queue_id, offset) > offset:
                table[queue_id] = FURTHEST
        body = encode_body(QueryCorrectionOffsetBody(correction_offsets=table))
        return request.reply(ResponseCode.SUCCESS, body=body)


def check_versions(info: ConsumerGroupInfo) -> None:
    """Refuse when a member is too old to be asked or told where it stands."""
    for client in info.channels.values():
        if client.version < MQVersion.V3_0_7_SNAPSHOT:
            raise _refused(
                f"the client does not support this feature. version={client.version}, "
                f"{shown(client.client_id)}"
            )


def unknown_group(group: str) -> RemoteProtocolError:
    """The refusal to move a group that nobody made."""
    return RemoteProtocolError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {group}; create it first",
    )


def _by_queue(table: OffsetTable) -> dict[Any, int]:
    return {
        lenient_json.freeze(
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        ): offset
        for queue, offset in table
    }


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
