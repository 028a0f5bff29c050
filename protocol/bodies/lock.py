"""Bodies of locking queues for ordered consumption (41, 42).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/LockBatchRequestBody.java,
LockBatchResponseBody.java, UnlockBatchRequestBody.java, common/.../message/MessageQueue.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt


class MessageQueueBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue as it stands in bodies; hashable."""

    broker_name: str
    queue_id: JavaInt
    topic: str


class LockBatchRequestBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The client wants to own these queues for its group."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBody] = []


class LockBatchResponseBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The queues that the client owns now."""

    lock_ok_mq_set: list[MessageQueueBody] = msgspec.field(
        name="lockOKMQSet", default_factory=list[MessageQueueBody]
    )


class UnlockBatchRequestBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The client gives these queues up."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBody] = []
