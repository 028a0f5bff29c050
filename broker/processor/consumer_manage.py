"""A group's offsets (14, 15), its members (38), and their queue locks (41, 42).

Unlike RocketMQ, which stores any offset under any name, an offset is taken only for a queue that
exists and up to its end: unknown names must not fill the table, and a message that is not stored
yet cannot be consumed. Queries of unknown names answer what RocketMQ answers, and allocate nothing.

While a group's members pop its messages, its offsets are the broker's, and there is nothing to
divide or to lock: 15, 38 and 41 are refused. A member that could pop and asks 38 or 41 has its
group pulled instead, unless another one pops (`consumer_manager.py`).

Unlike RocketMQ, a queue that does not exist, or that an unknown group asks for, is not locked: it
is missing from the answer, and nothing is remembered of it.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/ConsumerManageProcessor.java,
AdminBrokerProcessor.java (lockBatchMQ, unlockBatchMQ)
"""

from __future__ import annotations

from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import (
    CLIENT_ID_SIZE_MAX,
    Context,
    Processor,
    check_group,
    check_offset_group,
    check_topic,
)
from skylarkmq.protocol.bodies.group import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.group import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)


class ConsumerManageProcessor(Processor):
    """Answers what consumers ask of their group. Loop thread."""

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader)
    def get_consumer_list_by_group(self, call: Call[GetConsumerListByGroupRequestHeader]) -> Answer:
        """List the members of a group (38), SYSTEM_ERROR when there is none."""
        group = call.header.consumer_group
        check_group(group)
        self._consumers.divides(call.connection, group)
        client_ids = self._consumers.client_ids(group)
        if not client_ids:
            self._consumers.check_mode(group, pops=False)
            raise refused(f"no consumer for this group, {group}")
        return Answer(GetConsumerListByGroupResponseBody(consumer_id_list=client_ids))

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader)
    def update_consumer_offset(self, call: Call[UpdateConsumerOffsetRequestHeader]) -> Answer:
        """Take a group's offset in a queue (15); a smaller one than before is taken too.

        A group that does not exist is made, as by a pull: administrators' tools give a new group
        its offsets so. One-way requests make none: they may come from a member of a group that was
        deleted.
        """
        header, who = call.header, call.remote_address
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        check_offset_group(group)
        check_topic(topic)
        self._consumers.check_mode(group, pops=False)
        config = self._topics.get(topic)
        if config is None:
            raise refused(
                f"topic[{topic}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST
            )
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_nums:
            raise refused(f"queueId[{queue_id}] is illegal, topic[{topic}] has {queue_nums} queues")
        if header.commit_offset < 0:
            raise refused(f"the offset {header.commit_offset} is negative")
        is_known = group in self._groups.table
        if not is_known and (call.request.is_oneway or self._groups.find(group, who) is None):
            raise refused(
                f"subscription group not exist, {group}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        queue = topic, queue_id
        if not self._earlier.may_commit(call.connection, group, queue, header.commit_offset):
            raise refused(
                f"the offset {header.commit_offset} may be one of an earlier life of the log: this "
                f"client has not read queue {queue_id} of topic[{topic}] nor asked about it since "
                "the broker began"
            )
        if not self._offsets.commit(who, group, topic, queue_id, header.commit_offset):
            raise refused(
                f"the offset {header.commit_offset} is above the end of queue {queue_id} of "
                f"topic[{topic}], {self._store.max_offset(topic, queue_id)}"
            )
        return Answer() if is_known else Answer(after=(self._groups,))

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader)
    def query_consumer_offset(self, call: Call[QueryConsumerOffsetRequestHeader]) -> Answer:
        """Return where a group stands in a queue (14).

        A group that never committed starts at 0 where the queue's very first message is still in
        memory (unless `consumeYoungQueueFromFirst` is off), and where nothing is known of the
        queue; else, and for a client that wants no such zero (5.x's setZeroIfNotFound=false),
        QUERY_NOT_FOUND leaves the choice to the client.
        """
        header = call.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        check_group(group)
        check_topic(topic)
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False or not self._starts_at_zero(topic, queue_id):
                raise refused(
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                    ResponseCode.QUERY_NOT_FOUND,
                )
            offset = 0
        self._earlier.told(call.connection, topic, queue_id, offset, group)
        return Answer(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        if not self._config.consume_young_queue_from_first:
            return False
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        units = self._store.queue_units(topic, queue_id, 0, 1)
        return not units or self._store.is_in_memory(units[0].commit_offset)


class LockProcessor(Processor):
    """Locks and frees queues for consumers that consume in order. Loop thread."""

    def __init__(self, context: Context, locks: RebalanceLockManager) -> None:
        super().__init__(context)
        self._locks = locks

    @handles(RequestCode.LOCK_BATCH_MQ, NoFields)
    def lock_batch_mq(self, call: Call[NoFields]) -> Answer:
        """Answer those of the queues that the client owns now."""
        wanted = decode_body(LockBatchRequestBody, call.request.body)
        group, client_id = wanted.consumer_group, wanted.client_id
        check_group(group)
        self._consumers.divides(call.connection, group)
        self._consumers.check_mode(group, pops=False)
        locked: list[MessageQueueBody] = []
        if group in self._groups.table and 0 < len(client_id) <= CLIENT_ID_SIZE_MAX:
            locked = [
                queue
                for queue in dict.fromkeys(wanted.mq_set)
                if self._exists(queue)
                and self._locks.try_lock(group, queue.topic, queue.queue_id, client_id)
            ]
        return Answer(LockBatchResponseBody(lock_ok_mq_set=locked))

    @handles(RequestCode.UNLOCK_BATCH_MQ, NoFields)
    def unlock_batch_mq(self, call: Call[NoFields]) -> Answer:
        """Free those of the queues that the client owns."""
        given_up = decode_body(UnlockBatchRequestBody, call.request.body)
        group, client_id = given_up.consumer_group, given_up.client_id
        check_group(group)
        for queue in given_up.mq_set:
            self._locks.unlock(group, queue.topic, queue.queue_id, client_id)
        return Answer()

    def _exists(self, queue: MessageQueueBody) -> bool:
        config = self._topics.get(queue.topic)
        if config is None:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)
