"""Where groups stand: what members say of it (223 by 221), in time (303), what all have passed
(308); one group put where another is (314), or moved by time or to an exact offset (222 by 220).

Unlike RocketMQ, 308 does not forget the offsets of the groups that it is asked to leave out, and a
clone without a topic clones all topics. A group that is cloned to is made where groups are made on
demand; its offsets are on the disk before the answer.

A reset by time needs the group's offsets and, as in RocketMQ, its members: the broker works out
where each queue goes on and tells the members (220), who drop what they hold, commit the new
offsets and go on there. Without a member the answer is CONSUMER_NOT_ONLINE, and an administrator
writes the offsets itself (15). A reset that names an `offset` moves a group without members too:
the broker changes its table, which is on the disk before the answer. So does each reset of a group
whose members pop: where it goes on is the broker's matter alone. A forced reset to the time -1,
the queues' ends, skips what accumulated.

Unlike RocketMQ, where the language of the administrator decides how all members are told, each
member is told in the form that clients of its language read; and none is told when one of them is
too old.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getConsumerStatus, cloneGroupOffset, queryConsumeTimeSpan, queryCorrectionOffset),
broker/.../client/net/Broker2Client.java (getConsumeStatus, resetOffset); `offset` and `queueId`
from apache/rocketmq@rocketmq-all-5.3.3 remoting/.../protocol/header/ResetOffsetRequestHeader.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.groups.consumer_manager import ConsumerGroupInfo
from skylarkmq.broker.groups.consumer_offset import NO_OFFSET
from skylarkmq.broker.groups.memberships import Member
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.requests.processor import (
    Context,
    Processor,
    check_group,
    check_offset_group,
    check_topic,
)
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.group import (
    GetConsumerStatusBody,
    MessageQueueForC,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import LanguageCode, MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.group import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    InvokeBrokerToResetOffsetRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from skylarkmq.remoting.errors import ConnectionFailed

NEWEST: Final = -1
"""The time of a reset that means the end of each queue."""
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


class AdminOffsetProcessor(Processor):
    """Serves administrators of consumption. Loop thread."""

    def __init__(self, context: Context, client_calls: ClientCalls) -> None:
        super().__init__(context)
        self._client_calls = client_calls

    # Status

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatusRequestHeader)
    async def get_consumer_status(self, call: Call[GetConsumerStatusRequestHeader]) -> Answer:
        """Ask the members which offsets they hold (223 by 221)."""
        header = call.header
        check_group(header.group)
        info = self._consumers.group(header.group)
        if info is None:
            raise refused(f"No Any Consumer online in the consumer group: [{header.group}]")
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
        return Answer(lenient_json.dumps({"consumerTable": table}))

    async def _ask_status(self, member: Member, fields: dict[str, str]) -> OffsetTable | None:
        """The offsets that a member holds; None when it does not say."""
        asked = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        try:
            answer = await self._client_calls.call(member, asked, STATUS_TIMEOUT_S)
            if len(answer.body) > STATUS_SIZE_MAX:
                log.warning("%s says too much of where it stands", member.remote_address)
            elif answer.code == ResponseCode.SUCCESS:
                return decode_body(GetConsumerStatusBody, answer.body).message_queue_table
        except (TimeoutError, ConnectionFailed, RemoteProtocolError) as error:
            log.warning("%s does not say where it stands: %s", member.remote_address, error)
        return None

    # Clone

    @handles(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader)
    def clone_group_offset(self, call: Call[CloneGroupOffsetRequestHeader]) -> Answer:
        """Let one group stand where another does (314)."""
        header = call.header
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
                self._offsets.keep(call.remote_address, target, topic, queue_id, offset)
        return Answer(after=(self._groups, self._offsets))

    # Time spans

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader)
    async def query_consume_time_span(
        self, call: Call[QueryConsumeTimeSpanRequestHeader]
    ) -> Answer:
        """Answer from when to when the queues are, and where the group is (303)."""
        header = call.header
        check_group(header.group)
        topic = header.topic
        config = self._find_topic(topic)
        spans: list[QueueTimeSpan] = []
        for queue_id in range(config.write_queue_nums):
            spans.append(await self._span(header.group, topic, queue_id))
            if len(spans) % QUEUES_SLICE == 0:
                await asyncio.sleep(0)
        return Answer(QueryConsumeTimeSpanBody(consume_time_span_set=spans))

    async def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first = store.min_offset(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        place = self._offsets.query(group, topic, queue_id)
        begin_ms = await self._message_time(topic, queue_id, first)
        waiting_ms = await self._message_time(topic, queue_id, place) if place < end else -1
        return QueueTimeSpan(
            consume_time_stamp=(
                await self._message_time(topic, queue_id, place - 1) if place > 0 else begin_ms
            ),
            delay_time=self._clock.now_ms() - waiting_ms if waiting_ms >= 0 else 0,
            max_time_stamp=await self._message_time(topic, queue_id, end - 1),
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=begin_ms,
        )

    # Correction

    @handles(RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffsetRequestHeader)
    async def query_correction_offset(
        self, call: Call[QueryCorrectionOffsetRequestHeader]
    ) -> Answer:
        """Answer how far every group of a topic has come at least (308).

        A queue in which the group to compare with is further back has FURTHEST instead: nobody has
        to go back for it.
        """
        header = call.header
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
        return Answer(QueryCorrectionOffsetBody(correction_offsets=table))

    # Reset

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, InvokeBrokerToResetOffsetRequestHeader)
    async def reset_offset(self, call: Call[InvokeBrokerToResetOffsetRequestHeader]) -> Answer:
        """Move a group in a topic (222)."""
        header = call.header
        check_group(header.group)
        config = self._topic_to_reset(header.topic)
        by_offset = header.offset is not None and header.offset >= 0
        queues = self._queues_of(header, config)
        table: OffsetTable = []
        for queue_id in queues:
            if len(table) % QUEUES_SLICE == QUEUES_SLICE - 1:
                await asyncio.sleep(0)
            target = await self._target(header, queue_id, by_offset=by_offset)
            table.append((self._queue(header.topic, queue_id), target))
        info = self._consumers.group(header.group)
        pops = self._consumers.pops(header.group)
        if info is not None and not pops:
            self._push_reset(info, call.request, header, table)
        elif by_offset or pops:
            await self._write(call.connection, header.group, header.topic, table)
        else:
            raise refused(
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        return Answer(ResetOffsetBody(offset_table=table))

    @staticmethod
    def _queues_of(
        header: InvokeBrokerToResetOffsetRequestHeader, config: TopicConfig
    ) -> Sequence[int]:
        if header.queue_id < 0:
            return range(config.write_queue_nums)
        if header.queue_id >= config.write_queue_nums:
            raise refused(
                f"queueId[{header.queue_id}] is illegal, topic[{header.topic}] has "
                f"{config.write_queue_nums} write queues"
            )
        return (header.queue_id,)

    async def _target(
        self, header: InvokeBrokerToResetOffsetRequestHeader, queue_id: int, *, by_offset: bool
    ) -> int:
        """Where a queue is to go on."""
        store, topic = self._store, header.topic
        end = store.max_offset(topic, queue_id)
        if by_offset:
            assert header.offset is not None
            return min(max(header.offset, store.min_offset(topic, queue_id)), end)
        place = self._offsets.query(header.group, topic, queue_id)
        if place == NO_OFFSET:
            raise refused(f"THe consumer group <{header.group}> not exist")
        if header.timestamp == NEWEST:
            target = end
        else:
            target = await self._offset_by_time(topic, queue_id, header.timestamp)
        target = max(0, target)
        return target if header.is_force else min(target, place)

    def _push_reset(
        self,
        info: ConsumerGroupInfo,
        request: RemotingCommand,
        header: InvokeBrokerToResetOffsetRequestHeader,
        table: OffsetTable,
    ) -> None:
        """Tell all members (220), or none when one of them would not understand."""
        check_versions(info)
        fields = encode_fields(
            ResetOffsetRequestHeader(
                topic=header.topic,
                group=header.group,
                timestamp=header.timestamp,
                is_force=header.is_force,
            )
        )
        by_queue = encode_body(ResetOffsetBody(offset_table=table))
        as_list = encode_body(ResetOffsetBodyForC(offset_table=[_for_c(*row) for row in table]))
        asked_for_c = request.language == LanguageCode.CPP
        for member, client in info.channels.items():
            is_c = client.language == LanguageCode.CPP or (
                asked_for_c and client.language != LanguageCode.JAVA
            )
            push = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                fields,
                as_list if is_c else by_queue,
                oneway=True,
            )
            member.push(push)

    async def _write(
        self, connection: Connection, group: str, topic: str, table: OffsetTable
    ) -> None:
        """Move a group without members that pull."""
        if group not in self._groups.table:
            raise unknown_group(group)
        self._topic_to_reset(topic)  # it may have been deleted while its queues were looked at
        for queue, target in table:
            self._offsets.commit(connection.remote_address, group, topic, queue.queue_id, target)
        log.info(
            "%s sets the offsets of group %s in %d queues of %s",
            connection.remote_address,
            group,
            len(table),
            topic,
        )
        await durable(self._offsets)

    def _topic_to_reset(self, topic: str) -> TopicConfig:
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise refused(
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            )
        return config


def check_versions(info: ConsumerGroupInfo) -> None:
    """Refuse when a member is too old to be asked or told where it stands."""
    for client in info.channels.values():
        if client.version < MQVersion.V3_0_7_SNAPSHOT:
            raise refused(
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


def _for_c(queue: MessageQueueBody, offset: int) -> MessageQueueForC:
    return MessageQueueForC(
        broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic
    )
