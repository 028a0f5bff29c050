"""Quick decoding of the answers to sends: one typed decode instead of a map of texts.

Only what is like every answer to a send is read here; the general decoder takes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from skylarkmq.kernel import twin
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.frame import RawFrame, SerializeType
from skylarkmq.protocol.header_json import DECODE_ERRORS
from skylarkmq.protocol.headers.fields import JavaInt
from skylarkmq.protocol.properties import MSG_REGION, TRACE_ON
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand

MSG_ID_MARK: Final = b"msgId"

# An answer that says where a message is stored, as a plain tuple because there is one for nearly
# every message: (opaque, code, msgId, queueId, queueOffset, transactionId, MSG_REGION, TRACE_ON)
StoredAnswer = tuple[int, int, str, int, int, str | None, str | None, str]


# Of a field that is not known here, not even the text would be checked.
class _Fields(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    msg_id: str
    queue_id: str | int
    queue_offset: str | int
    transaction_id: str | msgspec.UnsetType = msgspec.UNSET
    region_id: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name=MSG_REGION)
    trace_on: str = msgspec.field(default="true", name=TRACE_ON)


class _JsonAnswer(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    fields: _Fields = msgspec.field(name="extFields")
    opaque: JavaInt
    flag: JavaInt
    code: JavaInt = 0
    language: str = ""
    version: JavaInt = 0
    serialize_type: str = msgspec.field(default="", name="serializeTypeCurrentRPC")
    remark: None = None


class _MsgpackAnswer(msgspec.Struct, array_like=True, gc=False):
    code: JavaInt
    language: int
    version: JavaInt
    opaque: JavaInt
    flag: JavaInt
    remark: None
    fields: _Fields


_DECODERS: Final[dict[int, Callable[[bytes], _JsonAnswer | _MsgpackAnswer]]] = {
    int(SerializeType.JSON): msgspec.json.Decoder(_JsonAnswer).decode,
    int(SerializeType.MSGPACK): msgspec.msgpack.Decoder(_MsgpackAnswer).decode,
}


@twin
def read_stored(frames: Sequence[RawFrame]) -> list[StoredAnswer | None]:
    """Return what frames say that are answers to sends; None in the place of each other one."""
    answers: list[StoredAnswer | None] = []
    for kind, header, _ in frames:
        decode = _DECODERS.get(kind)
        if decode is None or MSG_ID_MARK not in header:
            answers.append(None)
            continue
        try:
            it = decode(header)
        except DECODE_ERRORS:
            answers.append(None)
            continue
        if not it.flag & RESPONSE_FLAG:
            answers.append(None)
            continue
        at = it.fields
        queue_id, queue_offset = at.queue_id, at.queue_offset
        if isinstance(queue_id, str):
            queue_id = _number(queue_id)
        if isinstance(queue_offset, str):
            queue_offset = _number(queue_offset)
        if not (0 <= queue_id < 10**9 and 0 <= queue_offset < 10**18):
            answers.append(None)
            continue
        transaction_id = None if at.transaction_id is msgspec.UNSET else at.transaction_id
        region_id = None if at.region_id is msgspec.UNSET else at.region_id
        answers.append(
            (it.opaque, it.code, at.msg_id, queue_id, queue_offset, transaction_id, region_id,
             at.trace_on)
        )  # fmt: skip
    return answers


def _number(text: str) -> int:
    """Return the number that is meant, -1 when it is not just some digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else -1


def as_command(answer: StoredAnswer) -> RemotingCommand:
    """Return the same answer in the general form, for a waiter that did not send a message."""
    opaque, code, msg_id, queue_id, queue_offset, transaction_id, region_id, trace_on = answer
    fields = {"msgId": msg_id, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    if region_id is not None:
        fields[MSG_REGION] = region_id
    fields[TRACE_ON] = trace_on
    return RemotingCommand(
        code, language=LanguageCode.OTHER, opaque=opaque, flag=RESPONSE_FLAG, ext_fields=fields
    )
