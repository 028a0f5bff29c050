"""EndTransaction: commits or rolls back the half message of a transaction id.

The id names this broker, or is the message's alone. Rights were checked for the topic that the call
names, and a half message of another one is not found. The answer comes when the end is as durable
as the flush mode makes it. A verdict that is repeated is answered with OK; one that contradicts the
first, or whose transaction nobody knows, with INVALID_TRANSACTION_ID. Without a verdict nothing
happens, as in RocketMQ: the producer will be asked. Whether the client speaks for itself or answers
a check makes no difference.

Unlike RocketMQ: see `transaction/verdicts.py`.
Source: apache/rocketmq@rocketmq-all-5.3.3
proxy/.../grpc/v2/transaction/EndTransactionActivity.java
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.grpc.calls import OK, Call, RpcHandlers, RpcRefused, rpc, status
from skylarkmq.broker.grpc.names import topic_of, transaction_id
from skylarkmq.broker.processor.send_answers import CODES, remark_of
from skylarkmq.broker.transaction.verdicts import UnknownTransactionError, Verdicts
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5.codes import Code, status_code
from skylarkmq.protocol.v5.schema_pb2 import (
    COMMIT,
    ROLLBACK,
    EndTransactionRequest,
    EndTransactionResponse,
)

ID_SIZE_MAX: Final = 1024


class TransactionHandlers(RpcHandlers):
    """Ends transactions. Loop thread."""

    def __init__(self, verdicts: Verdicts, broker_name: str) -> None:
        self._verdicts = verdicts
        self._broker_name = broker_name

    @rpc("EndTransaction", EndTransactionRequest, EndTransactionResponse)
    async def end_transaction(
        self, _call: Call, request: EndTransactionRequest
    ) -> EndTransactionResponse:
        """End one, or do nothing."""
        topic = topic_of(request.topic)
        key = request.transaction_id.removesuffix(transaction_id("", self._broker_name))
        if not key.strip() or len(key) > ID_SIZE_MAX:
            raise RpcRefused(
                Code.INVALID_TRANSACTION_ID,
                f"a transaction id has 1 to {ID_SIZE_MAX} characters that are not all blank",
            )
        if request.resolution not in (COMMIT, ROLLBACK):
            return EndTransactionResponse(status=OK)
        try:
            result = await self._verdicts.end_key(topic, key, commits=request.resolution == COMMIT)
        except UnknownTransactionError as error:
            raise RpcRefused(Code.INVALID_TRANSACTION_ID, str(error)) from error
        except OSError as error:
            raise RemoteProtocolError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        if result is None:
            return EndTransactionResponse(status=OK)
        code = status_code(CODES.get(result.status, ResponseCode.MESSAGE_ILLEGAL))
        return EndTransactionResponse(
            status=OK if code == Code.OK else status(code, remark_of(result) or "")
        )
