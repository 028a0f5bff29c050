"""Offsets and times of a queue (29, 30, 31, 32).

An unknown topic or queue answers as an empty queue does, 0 or -1, and allocates nothing.

Unlike RocketMQ, where asking for a queue makes it.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(searchOffsetByTimestamp, getMaxOffset, getMinOffset, getEarliestMsgStoretime)
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.pulling import cold_reads
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from skylarkmq.store.message_store import MessageStore


class QueryProcessor:
    """Answers what the store knows of a queue. Loop thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset_by_timestamp,
            RequestCode.GET_MAX_OFFSET: self.get_max_offset,
            RequestCode.GET_MIN_OFFSET: self.get_min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_msg_storetime,
        }

    def search_offset_by_timestamp(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Answer the queue offset of the message stored nearest to a time (29)."""
        header = decode_fields(SearchOffsetRequestHeader, request.ext_fields)
        if self._store.has_cold:
            return self._search_cold(request, header)
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return _found(request, offset)

    async def _search_cold(
        self, request: RemotingCommand, header: SearchOffsetRequestHeader
    ) -> RemotingCommand:
        topic, queue_id, timestamp = header.topic, header.queue_id, header.timestamp
        offset = await cold_reads.offset_by_time(self._store, topic, queue_id, timestamp)
        return _found(request, offset)

    def get_max_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the queue offset that the next message gets (30)."""
        header = decode_fields(GetMaxOffsetRequestHeader, request.ext_fields)
        offset = self._store.max_offset(header.topic, header.queue_id)
        fields = encode_fields(GetMaxOffsetResponseHeader(offset=offset))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)

    def get_min_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the first queue offset that can be read (31)."""
        header = decode_fields(GetMinOffsetRequestHeader, request.ext_fields)
        offset = self._store.min_offset(header.topic, header.queue_id)
        fields = encode_fields(GetMinOffsetResponseHeader(offset=offset))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)

    def get_earliest_msg_storetime(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Answer when the first message of a queue was stored, ms; -1 without any (32)."""
        header = decode_fields(GetEarliestMsgStoretimeRequestHeader, request.ext_fields)
        if self._store.has_cold:
            return self._earliest_cold(request, header)
        return _stored(request, self._store.earliest_time(header.topic, header.queue_id))

    async def _earliest_cold(
        self, request: RemotingCommand, header: GetEarliestMsgStoretimeRequestHeader
    ) -> RemotingCommand:
        topic, queue_id = header.topic, header.queue_id
        first = self._store.min_offset(topic, queue_id)
        return _stored(request, await cold_reads.message_time(self._store, topic, queue_id, first))


def _found(request: RemotingCommand, offset: int) -> RemotingCommand:
    fields = encode_fields(SearchOffsetResponseHeader(offset=offset))
    return request.reply(ResponseCode.SUCCESS, ext_fields=fields)


def _stored(request: RemotingCommand, timestamp: int) -> RemotingCommand:
    fields = encode_fields(GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))
    return request.reply(ResponseCode.SUCCESS, ext_fields=fields)
