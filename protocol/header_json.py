"""JSON command headers (serialize type 0).

    {"code":310,"extFields":{"a":"pg",...},"flag":0,"language":"JAVA","opaque":3,
     "remark":"...","serializeTypeCurrentRPC":"JSON","version":409}

Written as Java writes it: keys in alphabetical order, no blanks, values of `extFields` as text,
nulls and an empty map left out. Read more widely: missing fields have Java's defaults, unknown
ones are skipped, numbers and booleans in `extFields` become the text that Java's own reader would
make of them, nulls are dropped. Nested values, numbers outside int32 in the fixed fields, broken
UTF-8 and lone surrogates are refused.

Sends and pulls have a quick decoder beside the generic one, a struct with all their fields in place
of a map: it returns what the generic one would, or nothing. Answers to both have templates.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../protocol/RemotingCommand.java,
RemotingSerializable.java
"""

from decimal import Decimal, InvalidOperation
from functools import lru_cache
from json import dumps
from typing import Any, Final, Generic, TypeVar

import msgspec

from skylarkmq.protocol.codes import CURRENT_VERSION, SEND_V2_CODES, LanguageCode, RequestCode
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import BadFrameError
from skylarkmq.protocol.headers.fields import JavaInt
from skylarkmq.protocol.headers.pull import PullFields
from skylarkmq.protocol.headers.send import SendFields
from skylarkmq.protocol.remoting_command import (
    EXT_FIELDS_MAX,
    LANGUAGE_BY_NAME,
    LANGUAGE_BY_NUMBER,
    LANGUAGE_NAMES,
    RESPONSE_FLAG,
    RemotingCommand,
    SendResponseEncoder,
)

NUMBER_SIZE_MAX: Final = 400
EXPONENT_MAX: Final = 2**31 - 1  # BigDecimal keeps the exponent in an int

# What msgspec lets through on hostile input: its own errors, UnicodeDecodeError (a ValueError)
# and, on some thousand nested brackets, RecursionError.
DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

_OTHER: Final = LanguageCode.OTHER


F = TypeVar("F")


class _Header(msgspec.Struct, Generic[F]):
    """The header as known clients write it; `F`, the type of extra values, is nearly always str."""

    code: JavaInt = 0
    ext_fields: dict[str, F] | None = msgspec.field(default=None, name="extFields")
    flag: JavaInt = 0
    language: str | int | None = "JAVA"
    opaque: JavaInt = 0
    remark: str | None = None
    version: JavaInt = 0


class SendCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A send in which everything is plain."""

    ext_fields: SendFields = msgspec.field(name="extFields")
    code: JavaInt = 0
    flag: JavaInt = 0
    language: str = "JAVA"
    opaque: JavaInt = 0
    version: JavaInt = 0
    serialize_type: str = msgspec.field(default="JSON", name="serializeTypeCurrentRPC")


class PullCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A pull in which everything is plain."""

    ext_fields: PullFields = msgspec.field(name="extFields")
    code: JavaInt = 0
    flag: JavaInt = 0
    language: str = "JAVA"
    opaque: JavaInt = 0
    version: JavaInt = 0
    serialize_type: str = msgspec.field(default="JSON", name="serializeTypeCurrentRPC")


class _OutHeader(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fields in the order in which they are written."""

    code: int
    ext_fields: dict[str, str] | None = msgspec.field(default=None, name="extFields")
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


def _float_text(literal: str) -> str:
    """Return what java.math.BigDecimal.toString makes of a JSON number with a fraction."""
    if len(literal) > NUMBER_SIZE_MAX:
        raise ValueError("number too long")
    try:
        number = Decimal(literal)
    except InvalidOperation as error:
        raise ValueError("number out of range") from error
    if abs(number.adjusted()) > EXPONENT_MAX:
        raise ValueError("number out of range")
    return str(number)


_decode = msgspec.json.Decoder(_Header[str]).decode
_decode_loose = msgspec.json.Decoder(_Header[Any], float_hook=_float_text).decode
_encode = msgspec.json.Encoder().encode
_decode_send = msgspec.json.Decoder(SendCommand).decode
_decode_pull = msgspec.json.Decoder(PullCommand).decode


def texts_of(fields: dict[str, Any]) -> dict[str, str]:
    """Return loosely typed fields as text; bytes are UTF-8.

    Raises:
        ValueError: a value is neither text, bytes, boolean nor integer.
    """
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, bytes):
            texts[name] = value.decode()
        elif isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, int):
            texts[name] = str(value)
        else:
            raise ValueError(f"a field holds a {type(value).__name__}")
    return texts


def decode_header(data: bytes) -> RemotingCommand:
    """Return the command that `data` describes, without body.

    Raises:
        BadFrameError: not a header.
    """
    header: _Header[str] | _Header[Any]
    try:
        header = strict = _decode(data)
        ext_fields = strict.ext_fields
    except DECODE_ERRORS:
        try:
            header = loose = _decode_loose(data)
            found = loose.ext_fields or {}
            ext_fields = texts_of({k: v for k, v in found.items() if v is not None})
        except DECODE_ERRORS as error:
            raise BadFrameError("bad_header", f"JSON: {type(error).__name__}") from error
    if ext_fields is not None and len(ext_fields) > EXT_FIELDS_MAX:
        raise BadFrameError("bad_header", f"JSON: more than {EXT_FIELDS_MAX} extFields")
    language = header.language
    return RemotingCommand(
        header.code,
        LANGUAGE_BY_NAME.get(language, _OTHER)
        if isinstance(language, str)
        else LANGUAGE_BY_NUMBER.get(-1 if language is None else language, _OTHER),
        header.version,
        header.opaque,
        header.flag,
        header.remark,
        ext_fields,
    )


def encode_header(command: RemotingCommand) -> bytes:
    """Return the header of `command`.

    Raises:
        LocalProtocolError: a text that UTF-8 cannot carry (a lone surrogate).
    """
    header = _OutHeader(
        code=command.code,
        ext_fields=command.ext_fields or None,
        flag=command.flag,
        language=LANGUAGE_NAMES[command.language],
        opaque=command.opaque,
        remark=command.remark,
        serialize_type="JSON",
        version=command.version,
    )
    try:
        return _encode(header)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise LocalProtocolError(f"header cannot be written: {error}") from error


def decode_send_v2_fast(header: bytes) -> SendCommand | None:
    """Return the send request in `header`, None when the generic way has to look at it.

    Worth trying only when `header` starts as Java writes it, `{"code":310,` for example; what
    counts is the `code` of the result.
    """
    try:
        command = _decode_send(header)
    except DECODE_ERRORS:
        return None
    if command.code not in SEND_V2_CODES or command.flag & RESPONSE_FLAG:
        return None
    return command


def decode_pull_fast(header: bytes) -> PullCommand | None:
    """Return the pull in `header`, None when the generic way has to look at it."""
    try:
        command = _decode_pull(header)
    except DECODE_ERRORS:
        return None
    return command if command.code == RequestCode.PULL_MESSAGE else None


_TAIL: Final = f'"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'
_SEND_RESPONSE: Final = (
    '{"code":0,"extFields":{"queueId":"\0","TRACE_ON":"%s","MSG_REGION":%s,"msgId":"\0",'
    '"queueOffset":"\0"},"flag":1,"language":"PYTHON","opaque":\0,' + _TAIL
)
_PULL_RESPONSE: Final = (
    '{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d",'
    '"minOffset":"%%d","maxOffset":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,%s' + _TAIL
)


def _escaped(text: str) -> str:
    """Return `text` as a JSON string of ASCII that can stand in a template."""
    return dumps(text).replace("%", "%%")


@lru_cache(maxsize=64)  # remarks of pull answers are the names of a dozen statuses
def _pull_template(remark: str | None) -> str:
    return _PULL_RESPONSE % ("" if remark is None else f'"remark":{_escaped(remark)},')


def send_response_parts(region_id: str, trace_on: str) -> tuple[bytes, ...]:
    """Return what stands around queue id, message ids, queue offset and opaque of an answer."""
    return tuple((_SEND_RESPONSE % (trace_on, dumps(region_id))).encode("ascii").split(b"\0"))


def send_response_encoder(parts: tuple[bytes, ...]) -> SendResponseEncoder:
    """Return what encodes the headers of successful answers to sends, around their parts."""
    start, ids, offset, opaque_name, end = parts

    def encode(opaque: int, msg_ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        return b"%b%d%b%b%b%d%b%d%b" % (
            start, queue_id, ids, msg_ids, offset, queue_offset, opaque_name, opaque, end
        )  # fmt: skip

    return encode


def pull_response_parts(code: int, remark: str, suggested_id: int) -> tuple[bytes, ...]:
    """Return what stands around next, least and last offset and opaque of an answer to a pull."""
    before_code, before_id, before_next, *others = _pull_template(remark).split("%d")
    start = f"{before_code}{code}{before_id}{suggested_id}{before_next}"
    return tuple(part.encode("ascii") for part in (start, *others))


def encode_pull_response(
    code: int,
    opaque: int,
    remark: str | None,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
) -> bytes:
    """Return the header of an answer to a pull; `remark` is the name of a store status."""
    numbers = (code, suggest_which_broker_id, next_begin_offset, min_offset, max_offset, opaque)
    return (_pull_template(remark) % numbers).encode("ascii")
