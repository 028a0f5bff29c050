"""Replies of request-reply (324, 325): handed to the client that asked (326), and stored.

    asking client --request message--> topic --> answering client
    asking client <--326-- broker <--324/325 reply-- answering client

The reply names the asking client in REPLY_TO_CLIENT; the broker finds it among its producers, adds
PUSH_REPLY_TIME and waits up to 10 s for it to take the reply. Whether it did is the answer to the
sender; that the reply is stored too (`storeReplyMessageEnable`) changes only the message id there.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/ReplyMessageProcessor.java
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles
from skylarkmq.broker.processor.send_answers import send_extras
from skylarkmq.broker.processor.send_checks import SendChecks, Target, check_busy
from skylarkmq.broker.processor.send_messages import SendMessages
from skylarkmq.broker.requests.processor import CLIENT_ID_SIZE_MAX, Context, Processor
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    decode_send_header,
)
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import find_property, with_property
from skylarkmq.remoting.errors import ConnectionFailed
from skylarkmq.store.results import STORED

PUSH_TIMEOUT_S: Final = 10.0
NOT_STORED_ID: Final = "0"
_REPLY_TO: Final = names.REPLY_TO_CLIENT.encode() + b"\x01"
_PUSH_TIME: Final = names.PUSH_REPLY_TIME.encode()


class ReplyProcessor(Processor):
    """Brings replies to the clients that asked. Loop thread."""

    def __init__(
        self,
        context: Context,
        checks: SendChecks,
        client_calls: ClientCalls,
        stats: BrokerStats,
        store_host: bytes,
    ) -> None:
        super().__init__(context)
        self._checks = checks
        self._maker = SendMessages(
            context.config.broker_cluster_name,
            store_host,
            context.config.store,
            context.store.delay_levels,
            context.store.timer_rules,
            transaction_refusal="a reply cannot be part of a transaction",
        )
        self._client_calls = client_calls
        self._stats = stats
        self._store_host = store_host

    @handles((RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2), NoFields)
    async def send_reply(self, call: Call[NoFields]) -> Answer:
        """Push a reply, store it, and tell its sender whether it arrived (324, 325)."""
        try:
            return await self._reply(call.connection, call.request)
        except RemoteProtocolError as error:
            return Answer(b"", send_extras(self._config), error.remark, error.response_code)

    async def _reply(self, connection: Connection, request: RemotingCommand) -> Answer:
        check_busy(self._store)
        header = decode_send_header(request.code, request.ext_fields)
        target = self._checks.target(header, connection.remote_address)
        inner = self._maker.single(connection.host_bytes, request.body, header, target)
        why = await self._push(connection, request, header, target)
        fields = send_extras(self._config)
        fields.update(msgId=NOT_STORED_ID, queueId=str(target.queue_id), queueOffset="0")
        if self._config.store_reply_message_enable:
            result = await self._put(inner)
            if result.status in STORED:
                fields["msgId"] = offset_message_id(self._store_host, result.physical_offset)
                fields["queueOffset"] = str(result.queue_offset)
                self._stats.topic_in(target.topic).add(result.record_size)
        if target.fresh:
            await durable(self._topics)
        code = ResponseCode.SUCCESS if why is None else ResponseCode.SYSTEM_ERROR
        return Answer(b"", fields, why, code)

    async def _push(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        target: Target,
    ) -> str | None:
        """Hand the reply to the client that asked; why it could not be, None when it was."""
        properties = (header.properties or "").encode()
        sender = find_property(properties, _REPLY_TO)
        if sender is None:
            return f"reply message properties[{names.REPLY_TO_CLIENT}] is null"
        client_id = sender.decode()
        asking = (
            self._producers.find_client(client_id) if len(client_id) <= CLIENT_ID_SIZE_MAX else None
        )
        if asking is None:
            return f"push reply message fail, channel of <{shown(client_id)}> not found."
        push = self._push_request(connection, request, header, target, properties)
        try:
            answer = await self._client_calls.call(asking, push, PUSH_TIMEOUT_S)
        except (TimeoutError, ConnectionFailed) as error:
            return f"push reply message to {shown(client_id)} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {shown(client_id)} fail: it answered {answer.code}"
        return None

    def _push_request(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        target: Target,
        properties: bytes,
    ) -> RemotingCommand:
        now_ms = self._clock.now_ms()
        named = with_property(properties, _PUSH_TIME, str(now_ms).encode()).decode()
        fields = encode_fields(
            ReplyMessageRequestHeader(
                producer_group=header.producer_group,
                topic=target.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=target.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                properties=named,
                reconsume_times=header.reconsume_times,
                unit_mode=bool(header.unit_mode),
                born_host=connection.remote_address,
                store_host=str(HostAddress.unpack(self._store_host)),
                store_timestamp=now_ms,
            )
        )
        return RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body
        )
