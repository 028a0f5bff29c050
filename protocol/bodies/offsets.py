"""Offset tables: answers to 43 and 45, and the files `consumerOffset.json`, `delayOffset.json`;
the event that a group was moved.

    {"offsetTable":{"<topic>@<group>":{"<queue id>":<next queue offset>}}}
    {"offsetTable":{"<delay level>":<next queue offset>}}

Java writes the numeric keys without quotes; both are read, quoted ones are written.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/
ConsumerOffsetSerializeWrapper.java, store/.../schedule/DelayOffsetSerializeWrapper.java,
common/.../protocol/topic/OffsetMovedEvent.java
"""

import msgspec

from skylarkmq.protocol.bodies.lock import MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class ConsumerOffsetSerializeWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where each group stands: by `topic@group`, then by queue id, the offset read next."""

    offset_table: dict[str, dict[JavaInt, JavaLong]] = {}


class DelayOffsetSerializeWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where delivery stands: by delay level, the offset in that level's queue read next."""

    offset_table: dict[JavaInt, JavaLong] = {}


class OffsetMovedEvent(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A pull from `offset_request` was told to go on from `offset_new`."""

    consumer_group: str
    message_queue: MessageQueueBody
    offset_new: JavaLong
    offset_request: JavaLong
