"""RecallMessage: takes a message back that waits for its delivery time (`processor/recall.py`).

Unlike RocketMQ, which answers a handle that is none with INTERNAL_SERVER_ERROR.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../processor/ProducerProcessor.java
(recallMessage)
"""

from __future__ import annotations

from skylarkmq.broker.grpc.calls import OK, Call, RpcHandlers, RpcRefused, rpc, status
from skylarkmq.broker.grpc.names import topic_of
from skylarkmq.broker.grpc.validation import DELAY_TYPE
from skylarkmq.broker.processor.recall import RecallProcessor
from skylarkmq.broker.processor.send_answers import CODES, remark_of
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.topic_attributes import message_types_of
from skylarkmq.protocol.v5.codes import Code, status_code
from skylarkmq.protocol.v5.schema_pb2 import RecallMessageRequest, RecallMessageResponse
from skylarkmq.store.results import TAKEN


class RecallHandlers(RpcHandlers):
    """Takes messages back. Loop thread."""

    def __init__(self, context: Context, store_host: bytes) -> None:
        """Take back what waits in a broker's store.

        Args:
            store_host: packed address of the broker.
        """
        self._topics = context.topics
        self._recalls = RecallProcessor(context, store_host)

    @rpc("RecallMessage", RecallMessageRequest, RecallMessageResponse)
    async def recall_message(
        self, _call: Call, request: RecallMessageRequest
    ) -> RecallMessageResponse:
        """Store what takes a message back."""
        topic = topic_of(request.topic)
        self._check_topic(topic)
        message_id, result = await self._recalls.take_back(topic, request.recall_handle)
        code = status_code(CODES.get(result.status, ResponseCode.MESSAGE_ILLEGAL))
        return RecallMessageResponse(
            status=OK if code == Code.OK else status(code, remark_of(result) or ""),
            message_id=message_id if result.status in TAKEN else "",
        )

    def _check_topic(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None:
            raise RpcRefused(Code.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        types = message_types_of(topic.attributes_map)
        if DELAY_TYPE not in types:
            raise RpcRefused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"no message of topic {name} can be recalled: it takes {', '.join(types)}, and "
                f"only messages of type {DELAY_TYPE} wait",
            )
