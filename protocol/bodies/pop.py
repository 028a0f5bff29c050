"""Bodies of pop consumption by 5.x's remoting clients: several messages done at once (200151),
which queues a consumer gets and how (400), how a group takes a topic's messages (401).

Source: apache/rocketmq@rocketmq-all-5.3.3 remoting/.../protocol/body/,
common/.../message/MessageQueueAssignment.java
"""

import msgspec

from skylarkmq.protocol.bodies.text import Body, MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class BatchAck(msgspec.Struct, kw_only=True, frozen=True):
    """Messages of one queue and one answer that are done.

    `bit_set` says which: bit i is the message at `start_offset` + i; the first byte has the lowest
    eight bits, its lowest bit the first. `retry` is 0 for the topic itself, 1 for its retry topic.
    """

    bit_set: bytes = msgspec.field(name="b", default=b"")
    consumer_group: str = msgspec.field(name="c")
    invisible_time: JavaLong = msgspec.field(name="it", default=0)
    pop_time: JavaLong = msgspec.field(name="pt")
    queue_id: JavaInt = msgspec.field(name="q")
    retry: str = msgspec.field(name="r", default="0")
    revive_queue_id: JavaInt = msgspec.field(name="rq", default=0)
    start_offset: JavaLong = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")


class BatchAckMessageRequestBody(Body, kw_only=True, frozen=True):
    """Messages of several queues that are done."""

    acks: list[BatchAck] = []
    broker_name: str | None = None


class QueryAssignmentRequestBody(Body, kw_only=True, frozen=True):
    """Which queues of the topic does this client get?"""

    client_id: str
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str = ""
    topic: str


class MessageQueueAssignment(Body, kw_only=True, frozen=True):
    """One queue and how to take its messages; queue id -1 means all queues of the broker."""

    message_queue: MessageQueueBody
    mode: str


class QueryAssignmentResponseBody(Body, kw_only=True, frozen=True):
    """The queues; an empty list takes all away from the client, none at all changes nothing."""

    message_queue_assignments: list[MessageQueueAssignment] | None = []


class MessageRequestModeBody(Body, kw_only=True, frozen=True):
    """How a group takes the messages of a topic.

    `pop_share_queue_num` is among how many further members the queues of one are shared in pop
    mode; 0 and less: all members pop all queues.
    """

    consumer_group: str
    mode: str
    pop_share_queue_num: JavaInt = 0
    topic: str
