"""What a scripted broker does with replies: hands them to the client they are for."""

from __future__ import annotations

from collections.abc import Mapping

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.send import ReplyMessageRequestHeader, decode_send_header
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.scripted_stream import ScriptedStream


def push_reply(
    producers: Mapping[str, ScriptedStream], request: RemotingCommand
) -> RemotingCommand:
    """Push the reply (326) and answer its sender at once, without waiting for the client.

    Args:
        producers: connections by client id.
    """
    header = decode_send_header(request.code, request.ext_fields)
    asker = decode_properties(header.properties or "").get("REPLY_TO_CLIENT", "")
    stream = producers.get(asker)
    if stream is None or not stream.open:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"channel of <{asker}> not found.")
    push = ReplyMessageRequestHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=header.properties,
        born_host="192.0.2.9:9",
        store_host="192.0.2.20:10911",
        store_timestamp=header.born_timestamp,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    stream.say(RemotingCommand.request(code, encode_fields(push), request.body))
    return request.reply(0)
