"""Messages by key (12), by place (33), and what the queues of a topic hold (202).

A query by key goes to the key index, which knows hashes and whole seconds; the records are then
read off the loop, and the answer holds those of the topic and the key, by their place in the log.

Unlike RocketMQ, messages whose key only has the same hash are left out, an answer is never longer
than a client's frame, and the remark says when the index does not hold everything yet.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/QueryMessageProcessor.java,
AdminBrokerProcessor.java (getTopicStatsInfo), store/.../DefaultMessageStore.java (queryMessage)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.pulling import cold_reads
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.text import MessageQueueBody, encode_body
from skylarkmq.protocol.bodies.topic import TopicOffset, TopicStatsTable
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pull import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from skylarkmq.protocol.headers.topic import GetTopicStatsInfoRequestHeader
from skylarkmq.protocol.record import read_record
from skylarkmq.store.index.keys import message_keys
from skylarkmq.store.index.service import IndexAnswer
from skylarkmq.store.message_store import MessageStore

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
ROUNDS_MAX: Final = 3
"""So many times the index is asked, each time for older entries, until a message is found."""
READ_COUNT: Final = 8
"""Records read at a time, which is what a query holds beside its answer."""
BODY_SIZE_MAX: Final = 12 << 20
"""Bytes of an answer with more than one message; Java clients take frames of 16 MiB."""
STATS_SLICE: Final = 16
"""Queues looked at in one turn of the loop."""


class QueryMessageProcessor:
    """Finds messages. Loop thread; the index and the log are read elsewhere."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, topics: TopicConfigManager
    ) -> None:
        self._broker_name = config.broker_name
        self._store = store
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message_by_id,
            RequestCode.GET_TOPIC_STATS_INFO: self.get_topic_stats_info,
        }

    # By key

    async def query_message(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the messages of a topic that have a key (12)."""
        header = decode_fields(QueryMessageRequestHeader, request.ext_fields)
        config = self._store.config
        max_count = header.max_num
        if request.ext_fields.get(UNIQUE_KEY_QUERY) == "true":
            max_count = config.default_query_max_num
        max_count = min(max_count, config.max_msgs_num_batch)
        found = _Found(header.topic, header.key.encode())
        answer = await self._look_up(header, max_count, header.end_timestamp)
        await self._read(answer.offsets, found)
        fields = encode_fields(
            QueryMessageResponseHeader(
                index_last_update_timestamp=answer.last_timestamp,
                index_last_update_phyoffset=answer.last_offset,
            )
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
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark, ext_fields=fields)
        remark = answer.missing
        if found.is_cut:
            remark = f"older messages are left out: an answer has {BODY_SIZE_MAX} bytes at most"
        body = b"".join(found.records[::-1])
        return request.reply(ResponseCode.SUCCESS, remark or None, ext_fields=fields, body=body)

    async def _look_up(
        self, header: QueryMessageRequestHeader, max_count: int, end: int
    ) -> IndexAnswer:
        looked: asyncio.Future[IndexAnswer] = asyncio.get_running_loop().create_future()

        def done(answer: IndexAnswer | None, error: BaseException | None) -> None:
            if looked.done():
                return
            if answer is None:
                why = f"the key index can not be read: {error}"
                looked.set_exception(RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why))
            else:
                looked.set_result(answer)

        begin = header.begin_timestamp
        self._store.index.query(header.topic, header.key, max_count, begin, end, done)
        return await looked

    async def _read(self, offsets: list[int], found: _Found) -> None:
        """Read the records, the newest first, until the answer is full."""
        removed = self._store.removal.topics  # the index keeps what a deleted topic had
        shown = {offset for offset in offsets if not removed.hides(found.topic, offset)}
        newest_first = sorted(shown, reverse=True)
        for start in range(0, len(newest_first), READ_COUNT):
            for record in await self._records(newest_first[start : start + READ_COUNT]):
                if record is not None and not found.is_cut:
                    found.take(record)
            if found.is_cut:
                return

    async def _records(self, offsets: list[int]) -> list[bytes | None]:
        read: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()

        def done(records: list[bytes | None]) -> None:
            if not read.done():
                read.set_result(records)

        self._store.read_records(offsets, done)
        return await read

    # By place

    async def view_message_by_id(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the record at a physical offset, which is what a message id names (33)."""
        header = decode_fields(ViewMessageRequestHeader, request.ext_fields)
        (record,) = await self._records([header.offset])
        if record is None:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        return request.reply(ResponseCode.SUCCESS, body=record)

    # By topic

    def get_topic_stats_info(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Answer the offsets of a topic's queues, and when they were last written to (202)."""
        header = decode_fields(GetTopicStatsInfoRequestHeader, request.ext_fields)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{shown(header.topic)}] not exist"
            )
        count = max(topic.read_queue_nums, topic.write_queue_nums)
        return self._stats_of(request, header.topic, count)

    async def _stats_of(
        self, request: RemotingCommand, topic: str, queue_count: int
    ) -> RemotingCommand:
        store, table = self._store, list[tuple[MessageQueueBody, TopicOffset]]()
        for queue_id in range(queue_count):
            max_offset = store.max_offset(topic, queue_id)
            last = 0
            if max_offset and store.is_cold(topic, queue_id, max_offset - 1):
                last = await cold_reads.message_time(store, topic, queue_id, max_offset - 1)
            elif max_offset:
                last = store.message_time(topic, queue_id, max_offset - 1)
            offset = TopicOffset(
                last_update_timestamp=max(0, last),
                max_offset=max_offset,
                min_offset=store.min_offset(topic, queue_id),
            )
            queue = MessageQueueBody(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
            table.append((queue, offset))
            if queue_id % STATS_SLICE == STATS_SLICE - 1:
                await asyncio.sleep(0)
        body = encode_body(TopicStatsTable(offset_table=table))
        return request.reply(ResponseCode.SUCCESS, body=body)


class _Found:
    """What an answer will hold."""

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
