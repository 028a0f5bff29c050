"""The body of a batch send (SEND_BATCH_MESSAGE): messages of one topic back to back.

    position  size  field            type
    0         4     total size       int32 BE   this message's bytes, its 22 and both parts
    4         4     magic            int32 BE   0, not looked at
    8         4     body CRC         int32 BE   0, not looked at: the broker computes its own
    12        4     flag             int32 BE   the user's
    16        4     body size        int32 BE
    20        b     body
    20+b      2     properties size  int16 BE   so at most 32,767
    22+b      p     properties       see `properties.py`; no separator at its end

The broker makes an ordinary record of each and appends the request's own properties to the
message's (`properties.join_properties`). A batch is atomic in the log, so nothing of it may be
stored before all of it was read.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageDecoder.java (encodeMessages),
store/.../CommitLog.java (MessageExtEncoder.encode of a MessageExtBatch)
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE, encode_properties

_FRONT: Final = struct.Struct(">iiiii")
_SIZE: Final = struct.Struct(">i")
_PROPERTIES_SIZE: Final = struct.Struct(">H")
_FRONT_SIZE: Final = _FRONT.size
_LENGTH_SIZE: Final = _PROPERTIES_SIZE.size
MIN_BATCH_ITEM_SIZE: Final = _FRONT_SIZE + _LENGTH_SIZE
assert MIN_BATCH_ITEM_SIZE == 22


class BatchItem(NamedTuple):
    """One message inside a batch; `properties` is the encoded text as it stands in the batch."""

    flag: int
    body: bytes
    properties: bytes

    @classmethod
    def of(cls, message: Message, extra: Mapping[str, str] | None = None) -> "BatchItem":
        """Return the item of a message, with `extra` properties such as its UNIQ_KEY."""
        properties = message.to_properties()
        if extra:
            properties.update(extra)
        return cls(message.flag, message.body, encode_properties(properties).encode("utf-8"))


def encode_batch(messages: Iterable[Message | BatchItem]) -> bytes:
    """Return the body of a batch send.

    Raises:
        LocalProtocolError: a message's properties or the flag do not fit into their fields.
    """
    parts: list[bytes] = []
    for message in messages:
        item = BatchItem.of(message) if isinstance(message, Message) else message
        flag, body, properties = item
        if len(properties) > MAX_PROPERTIES_SIZE:
            raise LocalProtocolError(f"properties of {len(properties)} bytes are too long")
        size = MIN_BATCH_ITEM_SIZE + len(body) + len(properties)
        try:
            parts.append(_FRONT.pack(size, 0, 0, flag, len(body)))
        except struct.error as error:
            raise LocalProtocolError(f"a number does not fit into its field: {error}") from error
        parts += (body, _PROPERTIES_SIZE.pack(len(properties)), properties)
    return b"".join(parts)


def has_more_items(body: bytes, count: int) -> bool:
    """Return whether a batch has more than `count` messages, long before `split_batch` could.

    Sizes that cannot be end the look: they are for `split_batch` to refuse.
    """
    position, end = 0, len(body)
    if end <= count * MIN_BATCH_ITEM_SIZE:
        return False
    for _ in range(count):
        (size,) = _SIZE.unpack_from(body, position)
        if size < MIN_BATCH_ITEM_SIZE:
            return False
        position += size
        if position > end - MIN_BATCH_ITEM_SIZE:
            return False
    return True


def split_batch(body: bytes) -> list[BatchItem]:
    """Return the messages of a batch body, at least one; all of it is checked before any is
    returned.

    A message costs 22 bytes here and at least 91 in the log, and the request's properties are
    copied to each; who stores them must bound the sum of the records.

    Raises:
        RemoteProtocolError: MESSAGE_ILLEGAL; empty, or the lengths do not add up.
    """
    items: list[BatchItem] = []
    position = 0
    end = len(body)
    if end == 0:
        raise RemoteProtocolError(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    while position < end:
        if end - position < MIN_BATCH_ITEM_SIZE:
            raise _illegal(len(items), "fewer bytes are left than its fixed fields have")
        fields: tuple[int, ...] = _FRONT.unpack_from(body, position)
        size, _, _, flag, body_size = fields
        body_position = position + _FRONT_SIZE
        properties_position = body_position + body_size + _LENGTH_SIZE
        position += size
        if body_size < 0 or properties_position > position or position > end:
            raise _illegal(len(items), f"its size {size} or body size {body_size} is wrong")
        properties = body[properties_position:position]
        high, low = body[properties_position - 2], body[properties_position - 1]
        if len(properties) > MAX_PROPERTIES_SIZE or (high << 8 | low) != len(properties):
            raise _illegal(len(items), "its properties size is wrong")
        items.append(BatchItem(flag, body[body_position : properties_position - 2], properties))
    return items


def _illegal(index: int, why: str) -> RemoteProtocolError:
    remark = f"message {index} of the batch cannot be read: {why}"
    return RemoteProtocolError(ResponseCode.MESSAGE_ILLEGAL, remark)
