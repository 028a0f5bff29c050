"""Questions about what is stored: offsets and times of a queue (29, 30, 31, 32), messages by key
(12) and by place (33), the queues of a topic (202), units of a queue as its files hold them (321).

An unknown topic or queue answers 29 to 32 as an empty queue does, 0 or -1, and allocates nothing.
Unlike RocketMQ, where asking for a queue makes it.

A query by key goes to the key index, which knows hashes and whole seconds; the records are then
read off the loop, and the answer holds those of the topic and the key, by their place in the log.
Unlike RocketMQ, messages whose key only has the same hash are left out, an answer is never longer
than a client's frame, and the remark says when the index does not hold everything yet. An answer
says that it is complete when it has all there is: the index was not behind, and no limit cut it.

Units (321) are for those who look for a message that is missing. With a consumer group the answer
tells what the group subscribes to and, for each unit, whether its tags want the message; to an
expression, which looks at more than units, all are wanted. Unlike RocketMQ, an answer has at most
UNITS_MAX units, and tags codes are never addresses of an extension.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/QueryMessageProcessor.java,
AdminBrokerProcessor.java (searchOffsetByTimestamp, getMaxOffset, getMinOffset,
getEarliestMsgStoretime, getTopicStatsInfo, queryConsumeQueue), store/.../DefaultMessageStore.java
(queryMessage)
"""

from __future__ import annotations

import asyncio
from typing import Final

from skylarkmq.broker.access.accounts import SUB, Kind
from skylarkmq.broker.access.control import ensure
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.filter.tag_filter import is_tag_type, tag_filter
from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor, check_group
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.bodies.text import MessageQueueBody
from skylarkmq.protocol.bodies.topic import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    TopicOffset,
    TopicStatsTable,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from skylarkmq.protocol.headers.topic import (
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from skylarkmq.protocol.properties import RETRY_TOPIC, find_property
from skylarkmq.protocol.record import read_record
from skylarkmq.store.index.keys import message_keys
from skylarkmq.store.index.service import IndexAnswer
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
ROUNDS_MAX: Final = 3
"""So many times the index is asked, each time for older entries, until a message is found."""
_ORIGIN: Final = RETRY_TOPIC.encode() + b"\x01"
READ_COUNT: Final = 8
"""Records read at a time, which is what a query holds beside its answer."""
BODY_SIZE_MAX: Final = 12 << 20
"""Bytes of an answer with more than one message; Java clients take frames of 16 MiB."""
STATS_SLICE: Final = 16
"""Queues looked at in one turn of the loop."""
UNITS_MAX: Final = 2000


class QueryProcessor(Processor):
    """Answers what the store knows of queues and messages.

    Loop thread; the index and cold files are read off it.
    """

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader)
    async def search_offset_by_timestamp(self, call: Call[SearchOffsetRequestHeader]) -> Answer:
        """Answer the queue offset of the message stored nearest to a time (29)."""
        header = call.header
        offset = await self._offset_by_time(header.topic, header.queue_id, header.timestamp)
        self._earlier.told(call.connection, header.topic, header.queue_id, offset)
        return Answer(header=SearchOffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader)
    def get_max_offset(self, call: Call[GetMaxOffsetRequestHeader]) -> Answer:
        """Answer the queue offset that the next message gets (30)."""
        offset = self._store.max_offset(call.header.topic, call.header.queue_id)
        self._earlier.told(call.connection, call.header.topic, call.header.queue_id, offset)
        return Answer(header=GetMaxOffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader)
    def get_min_offset(self, call: Call[GetMinOffsetRequestHeader]) -> Answer:
        """Answer the first queue offset that can be read (31)."""
        offset = self._store.min_offset(call.header.topic, call.header.queue_id)
        self._earlier.told(call.connection, call.header.topic, call.header.queue_id, offset)
        return Answer(header=GetMinOffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequestHeader)
    async def get_earliest_msg_storetime(
        self, call: Call[GetEarliestMsgStoretimeRequestHeader]
    ) -> Answer:
        """Answer when the first message of a queue was stored, ms; -1 without any (32)."""
        topic, queue_id = call.header.topic, call.header.queue_id
        first = self._store.min_offset(topic, queue_id)
        timestamp = await self._message_time(topic, queue_id, first)
        return Answer(header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    @handles(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader)
    async def get_topic_stats_info(self, call: Call[GetTopicStatsInfoRequestHeader]) -> Answer:
        """Answer the offsets of a topic's queues, and when they were last written to (202)."""
        topic, store = call.header.topic, self._store
        config = self._find_topic(topic)
        table: list[tuple[MessageQueueBody, TopicOffset]] = []
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            max_offset = store.max_offset(topic, queue_id)
            self._earlier.told(call.connection, topic, queue_id, max_offset)
            last = await self._message_time(topic, queue_id, max_offset - 1)
            offset = TopicOffset(
                last_update_timestamp=max(0, last),
                max_offset=max_offset,
                min_offset=store.min_offset(topic, queue_id),
            )
            table.append((self._queue(topic, queue_id), offset))
            if queue_id % STATS_SLICE == STATS_SLICE - 1:
                await asyncio.sleep(0)
        return Answer(TopicStatsTable(offset_table=table))

    # Messages

    @handles(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader)
    async def view_message_by_id(self, call: Call[ViewMessageRequestHeader]) -> Answer:
        """Answer the record at a physical offset, which is what a message id names (33)."""
        (record,) = await self._read_records([call.header.offset])
        if record is None:
            raise refused(f"can not find message by the offset, {call.header.offset}")
        view = read_record(record, 0, check_crc=False)
        topic = view.topic.decode("utf-8", "replace")
        ensure(call.request, Kind.TOPIC, topic, SUB)
        origin = find_property(view.properties, _ORIGIN)
        if is_retry_topic(topic) and origin is not None:
            ensure(call.request, Kind.TOPIC, origin.decode("utf-8", "replace"), SUB)
        return Answer(record)

    @handles(RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader)
    async def query_message(self, call: Call[QueryMessageRequestHeader]) -> Answer:
        """Answer the messages of a topic that have a key (12)."""
        header, config = call.header, self._store.config
        max_count = header.max_num
        if call.request.ext_fields.get(UNIQUE_KEY_QUERY) == "true":
            max_count = config.default_query_max_num
        max_count = min(max_count, config.max_msgs_num_batch)
        found = _Found(header.topic, header.key.encode())
        answer = await self._look_up(header, max_count, header.end_timestamp)
        await self._read(answer.offsets, found)
        cut = answer.missing or len(answer.offsets) >= max_count or found.is_cut
        indexed = QueryMessageResponseHeader(
            index_last_update_timestamp=answer.last_timestamp,
            index_last_update_phyoffset=answer.last_offset,
            complete=None if cut else True,
        )
        for _ in range(ROUNDS_MAX - 1):
            older = found.oldest_timestamp - 1
            if found.records or not answer.offsets or older < header.begin_timestamp:
                break
            answer = await self._look_up(header, max_count, older)
            await self._read(answer.offsets, found)
        if not found.records:
            why = "can not find message, maybe time range not correct"
            remark = f"{why}; {answer.missing}" if answer.missing else why
            return Answer(header=indexed, remark=remark, code=ResponseCode.QUERY_NOT_FOUND)
        remark = answer.missing
        if found.is_cut:
            remark = f"older messages are left out: an answer has {BODY_SIZE_MAX} bytes at most"
        return Answer(b"".join(found.records[::-1]), indexed, remark or None)

    async def _look_up(
        self, header: QueryMessageRequestHeader, max_count: int, end: int
    ) -> IndexAnswer:
        topic, key, begin = header.topic, header.key, header.begin_timestamp
        query = self._store.index.query
        try:
            return await result_of(lambda done: query(topic, key, max_count, begin, end, done))
        except Exception as error:
            raise refused(f"the key index cannot be read: {error}") from error

    async def _read(self, offsets: list[int], found: _Found) -> None:
        """Read the records, the newest first, until the answer is full."""
        removed = self._store.removal.topics  # the index keeps what a deleted topic had
        visible = {offset for offset in offsets if not removed.hides(found.topic, offset)}
        newest_first = sorted(visible, reverse=True)
        for start in range(0, len(newest_first), READ_COUNT):
            for record in await self._read_records(newest_first[start : start + READ_COUNT]):
                if record is not None and not found.is_cut:
                    found.take(record)
            if found.is_cut:
                return


class _Found:
    """Collects the records for one answer."""

    def __init__(self, topic: str, key: bytes) -> None:
        self.topic = topic
        self._topic = topic.encode()
        self._key = key
        self._size = 0
        self.records: list[bytes] = []  # newest first
        self.is_cut = False  # the next record did not fit
        self.oldest_timestamp = 0  # of all records seen, ms

    def take(self, record: bytes) -> None:
        """Keep a record of the topic and the key; they come newest first."""
        view = read_record(record, 0, check_crc=False)
        self.oldest_timestamp = view.store_timestamp
        if view.topic != self._topic or self._key not in message_keys(view.properties):
            return
        if self.records and self._size + len(record) > BODY_SIZE_MAX:
            self.is_cut = True
            return
        self.records.append(record)
        self._size += len(record)


class QueryConsumeQueueProcessor(Processor):
    """Shows the units of queues. Loop thread."""

    def __init__(self, context: Context, filters: ConsumerFilterManager) -> None:
        super().__init__(context)
        self._filters = filters

    @handles(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader)
    def query_consume_queue(self, call: Call[QueryConsumeQueueRequestHeader]) -> Answer:
        """Answer units from an index on (321)."""
        header = call.header
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            raise refused(f"{queue_id}@{shown(topic)} is not exist!")
        self._earlier.told(call.connection, topic, queue_id, queue.max_offset)
        subscription: SubscriptionData | None = None
        filter_data: str | None = None
        if group is not None:
            check_group(group)
            subscription = self._consumers.find_subscription(group, topic)
            filter_data = (
                f"{group}@{topic} is not online!"
                if subscription is None
                else self._filters.shown(topic, group)
            )
        found = self._units(queue, header.index, min(max(0, header.count), UNITS_MAX))
        units = list(UNIT.iter_unpack(found))
        wanted = _wanted(subscription, units)
        body = QueryConsumeQueueResponseBody(
            filter_data=filter_data,
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=[
                ConsumeQueueData(
                    eval=is_wanted, physic_offset=offset, physic_size=size, tags_code=tags_code
                )
                for (offset, size, tags_code), is_wanted in zip(units, wanted, strict=True)
            ],
            subscription_data=subscription,
        )
        missing = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        return Answer(body, remark=None if units else missing)

    def _units(self, queue: ConsumeQueue, index: int, count: int) -> bytes:
        if not queue.min_offset <= index < queue.max_offset:
            return b""
        units = b""
        while count > 0:
            part = self._store.queues.units(queue, index, count)
            if not part:
                break
            units += part
            index += len(part) // UNIT_SIZE
            count -= len(part) // UNIT_SIZE
        return units


def _wanted(subscription: SubscriptionData | None, units: list[tuple[int, int, int]]) -> list[bool]:
    """Tell for each unit whether a group wants its message; without a group none is wanted."""
    if subscription is None:
        return [False] * len(units)
    if not is_tag_type(subscription.expression_type):
        return [True] * len(units)
    wants = tag_filter(subscription.sub_string, subscription.code_set)
    return [wants is None or wants(tags_code) for _, _, tags_code in units]
