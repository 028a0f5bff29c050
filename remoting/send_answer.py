"""Quick decoding of the answers to sends: one typed decode instead of a map of texts.

Only answers that carry `msgId` come here; the general decoder takes what the typed one refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.frame import RawFrame, SerializeType
from skylarkmq.protocol.header_json import DECODE_ERRORS
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand

MSG_ID_MARK: Final = b"msgId"


class StoredFields(msgspec.Struct, rename="camel", gc=False):
    """Where a message is; the names are those on the wire."""

    msg_id: str
    queue_id: JavaInt
    queue_offset: JavaLong
    transaction_id: str | None = None
    region_id: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: str = msgspec.field(default="true", name="TRACE_ON")


class _JsonAnswer(msgspec.Struct, gc=False):
    fields: StoredFields = msgspec.field(name="extFields")
    opaque: JavaInt
    flag: JavaInt
    code: JavaInt = 0
    remark: str | None = None


class _MsgpackAnswer(msgspec.Struct, array_like=True, gc=False):
    code: JavaInt
    language: int
    version: int
    opaque: JavaInt
    flag: JavaInt
    remark: str | None
    fields: StoredFields


StoredAnswer = _JsonAnswer | _MsgpackAnswer

# Not strict: in JSON every value is text.
_DECODERS: Final[dict[int, Callable[[bytes], StoredAnswer]]] = {
    int(SerializeType.JSON): msgspec.json.Decoder(_JsonAnswer, strict=False).decode,
    int(SerializeType.MSGPACK): msgspec.msgpack.Decoder(_MsgpackAnswer, strict=False).decode,
}


def decode_stored(frame: RawFrame) -> StoredAnswer | None:
    """Return the answer to a send, None when the frame is anything else."""
    kind, header, _ = frame
    decode = _DECODERS.get(kind)
    if decode is None:
        return None
    try:
        answer = decode(header)
    except DECODE_ERRORS:
        return None
    return answer if answer.flag & RESPONSE_FLAG else None


def as_command(answer: StoredAnswer) -> RemotingCommand:
    """Return the same answer in the general form, for a waiter that did not send a message."""
    fields: dict[str, Any] = msgspec.to_builtins(answer.fields)
    return RemotingCommand(
        answer.code,
        language=LanguageCode.OTHER,
        opaque=answer.opaque,
        flag=answer.flag,
        remark=answer.remark,
        ext_fields={name: str(value) for name, value in fields.items() if value is not None},
    )
