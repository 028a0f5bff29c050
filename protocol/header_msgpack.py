"""msgpack command headers (serialize type 0x4D): ours alone, never sent to a Java peer.

One array `[code, language, version, opaque, flag, remark | nil, fields | nil]`; elements after
these seven are ignored. `language` is the number of a LanguageCode. `fields` maps the names of the
JSON header's `extFields` to a string, a bin (UTF-8 text as well, for properties), an integer or a
boolean; at most 1,024 entries; no float, nil, nested value, timestamp or other extension type.
Integers and booleans mean their JSON text.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from skylarkmq.protocol.codes import CURRENT_VERSION, SEND_V2_CODES, LanguageCode, RequestCode
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import BadFrameError, SerializeType
from skylarkmq.protocol.header_json import DECODE_ERRORS, texts_of
from skylarkmq.protocol.headers.fields import JavaInt
from skylarkmq.protocol.headers.pull import PullFields
from skylarkmq.protocol.headers.send import SendFields, send_fields
from skylarkmq.protocol.remoting_command import (
    EXT_FIELDS_MAX,
    LANGUAGE_BY_NUMBER,
    RESPONSE_FLAG,
    RemotingCommand,
    SendResponseEncoder,
)

# The quick decoders look for this byte: one is the remark, and a field must not be nil. UTF-8 text
# never holds it; where a length or a number does, the generic decoder takes over.
NIL: Final = b"\xc0"

_OTHER: Final = LanguageCode.OTHER
_PYTHON: Final = int(LanguageCode.PYTHON)
_MSGPACK: Final = SerializeType.MSGPACK


F = TypeVar("F")


class _Header(msgspec.Struct, Generic[F], array_like=True):
    """The array; `F`, the type of values, is str in what `encode_header` writes."""

    code: JavaInt
    language: int
    version: JavaInt
    opaque: JavaInt
    flag: JavaInt
    remark: str | None
    fields: dict[str, F] | None


class SendCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A send in which everything is plain."""

    code: JavaInt
    language: int
    version: JavaInt
    opaque: JavaInt
    flag: JavaInt
    remark: None
    ext_fields: SendFields


class PullCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pull in which everything is plain."""

    code: JavaInt
    language: int
    version: JavaInt
    opaque: JavaInt
    flag: JavaInt
    remark: None
    ext_fields: PullFields


def _refuse_extension(code: int, data: memoryview) -> object:
    raise ValueError(f"extension type {code} of {len(data)} bytes")


_decode = msgspec.msgpack.Decoder(_Header[str]).decode
_decode_loose = msgspec.msgpack.Decoder(_Header[Any], ext_hook=_refuse_extension).decode
_decode_send = msgspec.msgpack.Decoder(SendCommand).decode
_decode_pull = msgspec.msgpack.Decoder(PullCommand).decode
_pack = msgspec.msgpack.Encoder().encode
_pack_generic: Callable[[object], bytes] = msgpack.packb  # pyright: ignore


def decode_header(data: bytes) -> RemotingCommand:
    """Return the command that `data` describes, without body.

    Raises:
        BadFrameError: not such an array, or something that the fields may not hold.
    """
    header: _Header[str] | _Header[Any]
    try:
        header = strict = _decode(data)
        fields = strict.fields
    except DECODE_ERRORS:
        try:
            header = loose = _decode_loose(data)
            fields = None if loose.fields is None else texts_of(loose.fields)
        except DECODE_ERRORS as error:
            raise BadFrameError("bad_header", f"msgpack: {type(error).__name__}") from error
    if fields is not None and len(fields) > EXT_FIELDS_MAX:
        raise BadFrameError("bad_header", f"msgpack: more than {EXT_FIELDS_MAX} fields")
    return RemotingCommand(
        header.code,
        LANGUAGE_BY_NUMBER.get(header.language, _OTHER),
        header.version,
        header.opaque,
        header.flag,
        header.remark,
        fields,
        b"",
        _MSGPACK,
    )


def encode_header(command: RemotingCommand) -> bytes:
    """Return the header of `command`; every field value as a string.

    Raises:
        LocalProtocolError: a text that UTF-8 cannot carry, or a number over 64 bits.
    """
    try:
        return _pack_generic(
            (
                command.code,
                int(command.language),
                command.version,
                command.opaque,
                command.flag,
                command.remark,
                command.ext_fields or None,
            )
        )
    except (ValueError, OverflowError, TypeError) as error:
        raise LocalProtocolError(f"header cannot be written: {error}") from error


def decode_send_v2_fast(header: bytes) -> SendCommand | None:
    """Return the send request in `header`, None when the generic way has to look at it."""
    try:
        command = _decode_send(header)
    except DECODE_ERRORS:
        try:  # the SDK writes numbers as numbers
            mixed = _decode_loose(header)
            fields = None if mixed.fields is None else send_fields(texts_of(mixed.fields))
        except DECODE_ERRORS:
            return None
        if fields is None or mixed.remark is not None:
            return None
        fixed = mixed.code, mixed.language, mixed.version, mixed.opaque, mixed.flag
        command = SendCommand(*fixed, None, fields)
    if command.code not in SEND_V2_CODES or command.flag & RESPONSE_FLAG or header.count(NIL) != 1:
        return None
    return command


def decode_pull_fast(header: bytes) -> PullCommand | None:
    """Return the pull in `header`, None when the generic way has to look at it."""
    try:
        command = _decode_pull(header)
    except DECODE_ERRORS:
        return None
    is_plain = command.code == RequestCode.PULL_MESSAGE and header.count(NIL) == 1
    return command if is_plain else None


def send_response_parts(region_id: str, trace_on: str) -> tuple[bytes, ...]:
    """Return what stands around opaque, message ids, queue id and queue offset of an answer."""
    start = b"\x97" + _pack(0) + _pack(_PYTHON) + _pack(CURRENT_VERSION)
    region = _pack("MSG_REGION") + _pack(region_id) + _pack("TRACE_ON") + _pack(trace_on)
    fields = _pack(1) + NIL + b"\x85" + _pack("msgId")
    return start, fields, _pack("queueId"), _pack("queueOffset"), region


def send_response_encoder(parts: tuple[bytes, ...]) -> SendResponseEncoder:
    """Return what encodes the headers of successful answers to sends, around their parts."""
    start, fields, queue_name, offset_name, region = parts

    def encode(opaque: int, msg_ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        pack = _pack
        ids = pack(msg_ids.decode("ascii"))
        return b"".join(
            (start, pack(opaque), fields, ids, queue_name, pack(queue_id), offset_name,
             pack(queue_offset), region)
        )  # fmt: skip

    return encode


def pull_response_parts(code: int, remark: str, suggested_id: int) -> tuple[bytes, ...]:
    """Return what stands before opaque, next, least and last offset of an answer to a pull."""
    start = b"\x97" + _pack(code) + _pack(_PYTHON) + _pack(CURRENT_VERSION)
    suggested = _pack("suggestWhichBrokerId") + _pack(suggested_id)
    fields = _pack(RESPONSE_FLAG) + _pack(remark) + b"\x84" + suggested + _pack("nextBeginOffset")
    return start, fields, _pack("minOffset"), _pack("maxOffset")


def encode_pull_response(
    code: int,
    opaque: int,
    remark: str | None,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
) -> bytes:
    """Return the header of an answer to a pull."""
    fields = {
        "suggestWhichBrokerId": suggest_which_broker_id,
        "nextBeginOffset": next_begin_offset,
        "minOffset": min_offset,
        "maxOffset": max_offset,
    }
    return _pack((code, _PYTHON, CURRENT_VERSION, opaque, 1, remark, fields))
