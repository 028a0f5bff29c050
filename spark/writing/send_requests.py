"""The sink's requests: what was handed over, encoded once, and the command of each try. Pure.

Several messages are one batch (320), stored together or not at all; one message goes alone (310),
which is the only way for compressed and delayed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.writing.outgoing import Outgoing, Queue


class Unsent:
    """One request that has no acknowledgement yet."""

    __slots__ = (
        "batch",
        "body",
        "body_size",
        "count",
        "failed_s",
        "first_unique_key",
        "flag",
        "index",
        "last_unique_key",
        "others",
        "properties",
        "queue",
        "refused",
        "resent",
        "sys_flag",
        "unconfirmed",
    )

    def __init__(
        self, index: int, queue: Queue, messages: Sequence[Outgoing], others: Sequence[Queue]
    ) -> None:
        """Encode the messages.

        Raises:
            ValueError: there is none.
        """
        if not messages:
            raise ValueError("a request has at least one message")
        first = messages[0]
        self.index = index
        self.queue = MessageQueue(*queue)
        self.others = tuple(MessageQueue(*other) for other in others)
        self.count = len(messages)
        self.body_size = sum(len(message.body) for message in messages)
        self.first_unique_key = first.unique_key
        self.last_unique_key = messages[-1].unique_key
        self.batch = len(messages) > 1
        self.flag, self.sys_flag = (0, 0) if self.batch else (first.flag, first.sys_flag)
        self.properties = "" if self.batch else first.properties.decode()
        self.body = (
            encode_batch([BatchItem(it.flag, it.body, it.properties) for it in messages])
            if self.batch
            else first.body
        )
        self.resent = 0
        """Tries that may have stored it without saying so."""
        self.unconfirmed = 0
        """How often it was stored with a status that is not accepted."""
        self.refused = 0
        """How often a broker refused it for a reason that waiting does not change."""
        self.failed_s: float | None = None
        """When it first failed."""

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        return len(self.body) + len(self.properties)


class SendRequests:
    """Makes the requests of one producer group; names are the application's."""

    def __init__(self, group: str, namespace: Namespace, default_queue_count: int) -> None:
        self._group = namespace.wrap(group)
        self._wrap = namespace.wrap
        self._default_queue_count = default_queue_count

    def of(
        self, index: int, queue: Queue, messages: Sequence[Outgoing], others: Sequence[Queue]
    ) -> Unsent:
        """Return the request; `index` is its place in the order of sending."""
        return Unsent(index, queue, messages, others)

    def command(self, request: Unsent, now_ms: int) -> RemotingCommand:
        """Return the command of one try, to the queue that the request stands at."""
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=self._wrap(request.queue.topic),
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=self._default_queue_count,
            queue_id=request.queue.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=now_ms,
            flag=request.flag,
            properties=request.properties,
            batch=request.batch,
            broker_name=request.queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if request.batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand(code, ext_fields=encode_send_header_v2(header), body=request.body)
