"""Answers of pulls: the four offsets in the header, the stored records as the body, one write.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

from skylarkmq.broker.metrics.stats import BrokerStats
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import CODEC_FIELD, CODEC_MSGPACK
from skylarkmq.protocol import header_json, header_msgpack, header_rocketmq
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.frame import PREFIX, PREFIX_SIZE, SerializeType
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.store.results import GetMessageResult

MASTER_ID = 0

_ENCODERS = {
    int(SerializeType.JSON): header_json.encode_pull_response,
    int(SerializeType.ROCKETMQ): header_rocketmq.encode_pull_response,
    int(SerializeType.MSGPACK): header_msgpack.encode_pull_response,
}
_RESULTS = {
    ResponseCode.SUCCESS: "found",
    ResponseCode.PULL_NOT_FOUND: "no_new",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "no_matched",
    ResponseCode.PULL_OFFSET_MOVED: "offset_moved",
}


class PullAnswers:
    """Encodes and counts. Loop thread."""

    def __init__(self, stats: BrokerStats) -> None:
        self.stats = stats

    def send(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        code: ResponseCode,
        result: GetMessageResult,
        suggested_id: int = MASTER_ID,
    ) -> None:
        """Answer `request` with what was read; nothing for a one-way request or a lost peer.

        Args:
            suggested_id: of the broker to pull from next.
        """
        self.stats.pull_results[_RESULTS[code]] += 1
        if connection.closed or request.is_oneway:
            return
        if result.count:
            traffic = self.stats.topic_out(header.topic, header.consumer_group)
            traffic.count += result.count
            traffic.bytes += result.size
        data = self._encode(request, code, result, suggested_id)
        counter = self.stats.frames_out[request.serialize_type]
        counter.count += 1
        counter.bytes += len(data)
        connection.send(data)

    @staticmethod
    def _encode(
        request: RemotingCommand, code: ResponseCode, result: GetMessageResult, suggested_id: int
    ) -> bytes:
        kind = request.serialize_type
        if kind == SerializeType.JSON and CODEC_FIELD in request.ext_fields:
            head = _encode_with_codec(request, code, result, suggested_id)
        else:
            head = _ENCODERS[kind](
                code,
                request.opaque,
                result.status.value,
                suggested_id,
                result.next_begin_offset,
                result.min_offset,
                result.max_offset,
            )
        length = PREFIX_SIZE - 4 + len(head) + result.size
        return b"".join((PREFIX.pack(length, kind << 24 | len(head)), head, *result.views))


def _encode_with_codec(
    request: RemotingCommand, code: ResponseCode, result: GetMessageResult, suggested_id: int
) -> bytes:
    fields = encode_fields(
        PullMessageResponseHeader(
            suggest_which_broker_id=suggested_id,
            next_begin_offset=result.next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
    )
    if request.ext_fields[CODEC_FIELD] == CODEC_MSGPACK:
        fields[CODEC_FIELD] = CODEC_MSGPACK
    return header_json.encode_header(request.reply(code, result.status.value, fields))
