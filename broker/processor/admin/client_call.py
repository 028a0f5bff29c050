"""What administrators ask of one client of a group, through the broker: 307 and 309.

    admin --307/309--> broker --the same request--> client
    admin <--the client's answer, unchanged-- broker

307 asks what the client is doing; with 309 it consumes one message now, which the broker reads by
the message's id and sends along. A client that does not answer within 10 s is answered for with
CONSUME_MSG_TIMEOUT.

Unlike RocketMQ, a message that waits for its time or for its transaction is not handed out.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getConsumerRunningInfo, consumeMessageDirectly, callConsumer),
broker/.../client/net/Broker2Client.java (callClient)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.groups.memberships import Member
from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor, check_group
from skylarkmq.protocol import flags
from skylarkmq.protocol.codes import MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import read_record
from skylarkmq.remoting.connection import CODEC_FIELD
from skylarkmq.remoting.errors import ConnectionFailed

CALL_TIMEOUT_S: Final = 10.0
_NOTHING: Final[Mapping[str, str]] = {}
_PARKING_TOPICS: Final = frozenset(
    {
        flags.RMQ_SYS_SCHEDULE_TOPIC,
        flags.RMQ_SYS_WHEEL_TIMER_TOPIC,
        flags.RMQ_SYS_TRANS_HALF_TOPIC,
        flags.RMQ_SYS_TRANS_OP_HALF_TOPIC,
    }
)
_PARKED: Final = "waits for its time or its transaction; it is not consumed before"


class ClientCallProcessor(Processor):
    """Hands requests to clients. Loop thread."""

    def __init__(self, context: Context, client_calls: ClientCalls) -> None:
        super().__init__(context)
        self._client_calls = client_calls

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader)
    async def get_consumer_running_info(
        self, call: Call[GetConsumerRunningInfoRequestHeader]
    ) -> Answer:
        """Answer what a client is doing (307)."""
        header = call.header
        return await self._call(call.request, header.consumer_group, header.client_id)

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader)
    async def consume_message_directly(
        self, call: Call[ConsumeMessageDirectlyResultRequestHeader]
    ) -> Answer:
        """Let a client consume one message now (309)."""
        header = call.header
        if not header.client_id or not header.msg_id:
            raise refused("a clientId and a msgId are needed: who is to consume which message")
        self._find(header.consumer_group, header.client_id)
        _, physical_offset = decode_offset_message_id(header.msg_id)
        (body,) = await self._read_records([physical_offset])
        if body is None:
            raise refused(f"can not find message by the offset, {physical_offset}")
        if read_record(body, 0, check_crc=False).topic.decode() in _PARKING_TOPICS:
            raise refused(f"the message {shown(header.msg_id)} {_PARKED}")
        more = {"brokerName": self._config.broker_name}
        return await self._call(call.request, header.consumer_group, header.client_id, more, body)

    def _find(self, group: str, client_id: str) -> Member:
        check_group(group)
        found = self._consumers.find_client(group, client_id)
        if found is None:
            raise refused(f"The Consumer <{group}> <{shown(client_id)}> not online")
        connection, client = found
        if client.version < MQVersion.V3_1_8_SNAPSHOT:
            raise refused(
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, please "
                "upgrade it to V3_1_8_SNAPSHOT"
            )
        return connection

    async def _call(
        self,
        request: RemotingCommand,
        group: str,
        client_id: str,
        more: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
    ) -> Answer:
        client = self._find(group, client_id)
        fields = {**request.ext_fields, **more}
        fields.pop(CODEC_FIELD, None)  # between the two who share a connection
        forwarded = RemotingCommand.request(request.code, fields, body)
        try:
            answer = await self._client_calls.call(client, forwarded, CALL_TIMEOUT_S)
        except TimeoutError:
            raise RemoteProtocolError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: no answer within {CALL_TIMEOUT_S:g} s",
            ) from None
        except ConnectionFailed as error:
            raise refused(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from error
        return Answer(answer.body, answer.ext_fields, answer.remark, answer.code)
