"""ROCKETMQ binary command headers (serialize type 1).

    position  size   field          type
    0         2      code           int16 BE   larger codes cannot be written
    2         1      language       uint8      LanguageCode
    3         2      version        int16 BE
    5         4      opaque         int32 BE
    9         4      flag           int32 BE
    13        4 + n  remark         int32 BE length, UTF-8; length 0 means null
    17 + n    4 + m  ext block      int32 BE length, then entries

    ext entry: key int16 BE length + UTF-8, value int32 BE length + UTF-8. An entry with an empty
    key or value is read as null, that is: not there.

Every length is checked against the block around it, and there may be 1,024 entries. Bytes after
the ext block are ignored, as Java does. Unlike RocketMQ: an entry may not run past its block, and
a negative length of the ext block is refused instead of read as none, because both only come from
a broken or hostile peer.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../protocol/RocketMQSerializable.java
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from skylarkmq.protocol.codes import CURRENT_VERSION, SEND_V2_CODES, LanguageCode, RequestCode
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import BadFrameError, SerializeType
from skylarkmq.protocol.headers.pull import PullFields, pull_fields
from skylarkmq.protocol.headers.send import SendFields, send_fields
from skylarkmq.protocol.remoting_command import (
    EXT_FIELDS_MAX,
    LANGUAGE_BY_NUMBER,
    RESPONSE_FLAG,
    RemotingCommand,
    SendResponseEncoder,
)

FIXED: Final = struct.Struct(">hBhiii")
FIXED_SIZE: Final = 17
assert FIXED.size == FIXED_SIZE
INT16_SIZE: Final = 2
INT32_SIZE: Final = 4
OPAQUE_START: Final = 5
OPAQUE_END: Final = 9
MIN_HEADER_SIZE: Final = FIXED_SIZE + INT32_SIZE
LETTER_ENTRY_SIZE: Final = INT16_SIZE + 1 + INT32_SIZE
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
UINT32: Final = struct.Struct(">I")
# An entry up to its value when the key is one letter. Lengths are read unsigned, so that one
# comparison refuses both negative and huge ones.
LETTER_ENTRY: Final = struct.Struct(">HxI")
INT16_MAX: Final = 2**15 - 1
EMPTY_ENTRY: Final = bytes(INT16_SIZE + INT32_SIZE)
assert (INT16.size, INT32.size) == (INT16_SIZE, INT32_SIZE)
assert LETTER_ENTRY.size == LETTER_ENTRY_SIZE

_OTHER: Final = LanguageCode.OTHER
_PULL_CODES: Final = frozenset({int(RequestCode.PULL_MESSAGE)})
_ROCKETMQ: Final = SerializeType.ROCKETMQ
_PYTHON: Final = int(LanguageCode.PYTHON)
_unpack_fixed = FIXED.unpack_from
_unpack_uint32 = UINT32.unpack_from
_unpack_letter_entry = LETTER_ENTRY.unpack_from
_unpack_int32 = INT32.unpack_from
_pack_int16 = INT16.pack
_pack_int32 = INT32.pack
_pack_fixed = FIXED.pack


class SendCommand(NamedTuple):
    """A send in which everything is plain."""

    code: int
    opaque: int
    flag: int
    ext_fields: SendFields


class PullCommand(NamedTuple):
    """A pull in which everything is plain."""

    opaque: int
    flag: int
    ext_fields: PullFields


def decode_header(data: bytes) -> RemotingCommand:
    """Return the command that `data` describes, without body.

    Raises:
        BadFrameError: a length runs past what encloses it, or a text is not UTF-8.
    """
    size = len(data)
    if size < MIN_HEADER_SIZE:
        raise BadFrameError("bad_header", "binary: shorter than its fixed part")
    code, language, version, opaque, flag, remark_size = _unpack_fixed(data)
    position = FIXED_SIZE + remark_size
    if remark_size < 0 or position + INT32_SIZE > size:
        raise BadFrameError("bad_header", "binary: remark runs past the header")
    (block_size,) = _unpack_int32(data, position)
    block_start = position + INT32_SIZE
    if block_size < 0 or block_start + block_size > size:
        raise BadFrameError("bad_header", "binary: ext block runs past the header")
    try:
        remark = data[FIXED_SIZE:position].decode() if remark_size else None
        ext_fields = _decode_block(data, block_start, block_start + block_size)
    except UnicodeDecodeError as error:
        raise BadFrameError("bad_header", "binary: a text is not UTF-8") from error
    return RemotingCommand(
        code,
        LANGUAGE_BY_NUMBER.get(language, _OTHER),
        version,
        opaque,
        flag,
        remark,
        ext_fields,
        b"",
        _ROCKETMQ,
    )


def _decode_block(data: bytes, position: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    # Most texts are ASCII, and those can be cut out of this for less than out of the bytes.
    characters = data.decode("latin-1")
    last = end - LETTER_ENTRY_SIZE
    for _ in range(EXT_FIELDS_MAX + 1):
        if position > last:
            if data[position:end] not in (b"", EMPTY_ENTRY):
                raise BadFrameError("bad_header", "binary: half an entry ends the ext block")
            return fields
        # Most keys of a send have one letter: read both lengths at once, as if this were one.
        key_size, value_size = _unpack_letter_entry(data, position)
        if key_size == 1 and (key := characters[position + INT16_SIZE]) < "\x80":
            position += LETTER_ENTRY_SIZE
        else:
            key_end = position + INT16_SIZE + key_size
            if key_size > INT16_MAX or key_end + INT32_SIZE > end:
                raise BadFrameError("bad_header", "binary: key runs past the ext block")
            key = data[position + INT16_SIZE : key_end].decode()
            (value_size,) = _unpack_uint32(data, key_end)
            position = key_end + INT32_SIZE
        value_end = position + value_size
        if value_end > end:
            raise BadFrameError("bad_header", "binary: value runs past the ext block")
        value = characters[position:value_end]
        if not value.isascii():
            value = data[position:value_end].decode()
        if value and key:
            fields[key] = value
        position = value_end
    raise BadFrameError("bad_header", f"binary: more than {EXT_FIELDS_MAX} ext fields")


def _decode_plain(header: bytes, codes: frozenset[int]) -> tuple[int, int, int, dict[str, str]]:
    """Return code, opaque, flag and fields of a request without a remark.

    Raises:
        BadFrameError: it is something else.
        UnicodeDecodeError: a text is not UTF-8.
    """
    if len(header) < MIN_HEADER_SIZE:
        raise BadFrameError("bad_header", "binary: shorter than its fixed part")
    code, _, _, opaque, flag, remark_size = _unpack_fixed(header)
    (block_size,) = _unpack_int32(header, FIXED_SIZE)
    end = MIN_HEADER_SIZE + block_size
    if code not in codes or flag & RESPONSE_FLAG or remark_size or end > len(header):
        raise BadFrameError("bad_header", "binary: not plain")
    return code, opaque, flag, _decode_block(header, MIN_HEADER_SIZE, end)


def decode_send_v2_fast(header: bytes) -> SendCommand | None:
    """Return the send request in `header`, None when the generic way has to look at it."""
    try:
        code, opaque, flag, texts = _decode_plain(header, SEND_V2_CODES)
    except (BadFrameError, UnicodeDecodeError):
        return None
    fields = send_fields(texts)
    return None if fields is None else SendCommand(code, opaque, flag, fields)


def decode_pull_fast(header: bytes) -> PullCommand | None:
    """Return the pull in `header`, None when the generic way has to look at it."""
    try:
        _, opaque, flag, texts = _decode_plain(header, _PULL_CODES)
    except (BadFrameError, UnicodeDecodeError):
        return None
    fields = pull_fields(texts)
    return None if fields is None else PullCommand(opaque, flag, fields)


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    """Return the length and bytes of a key, remembered: a program writes few different ones."""
    name_bytes = name.encode()
    return _pack_int16(len(name_bytes)) + name_bytes


def _text(value: str) -> bytes:
    value_bytes = value.encode()
    return _pack_int32(len(value_bytes)) + value_bytes


def encode_header(command: RemotingCommand) -> bytes:
    """Return the header of `command`, ext fields in the order of its map.

    Raises:
        LocalProtocolError: a number or length does not fit its field. Unlike RocketMQ, which cuts
            codes above 32767 to 16 bits in silence and so asks for something else.
    """
    remark = command.remark
    try:
        remark_bytes = b"" if remark is None else remark.encode()
        block = b"".join([_key(name) + _text(value) for name, value in command.ext_fields.items()])
        fixed = _pack_fixed(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark_bytes),
        )
        return b"".join((fixed, remark_bytes, _pack_int32(len(block)), block))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"header cannot be written: {error}") from error


_MSG_ID = _key("msgId")
_QUEUE_ID = _key("queueId")
_QUEUE_OFFSET = _key("queueOffset")
_SUGGEST = _key("suggestWhichBrokerId")
_NEXT_BEGIN = _key("nextBeginOffset")
_MIN_OFFSET = _key("minOffset")
_MAX_OFFSET = _key("maxOffset")
_MSG_REGION = _key("MSG_REGION")


def _number(value: int) -> bytes:
    digits = b"%d" % value
    return _pack_int32(len(digits)) + digits


def send_response_parts(region_id: str, trace_on: str) -> tuple[bytes, ...]:
    """Return what stands around opaque, the block's size, message ids, queue id and offset."""
    fixed = _pack_fixed(0, _PYTHON, CURRENT_VERSION, 0, RESPONSE_FLAG, 0)
    region = _MSG_REGION + _text(region_id) + _key("TRACE_ON") + _text(trace_on)
    return fixed[:OPAQUE_START], fixed[OPAQUE_END:], _MSG_ID, _QUEUE_ID, _QUEUE_OFFSET, region


def send_response_encoder(parts: tuple[bytes, ...]) -> SendResponseEncoder:
    """Return what encodes the headers of successful answers to sends, around their parts."""
    start, flag, _, _, _, region = parts

    def encode(opaque: int, msg_ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        queue, offset = b"%d" % queue_id, b"%d" % queue_offset
        size = _pack_int32
        block = b"".join(
            (_MSG_ID, size(len(msg_ids)), msg_ids, _QUEUE_ID, size(len(queue)), queue,
             _QUEUE_OFFSET, size(len(offset)), offset, region)
        )  # fmt: skip
        return b"".join((start, size(opaque), flag, size(len(block)), block))

    return encode


def pull_response_parts(code: int, remark: str, suggested_id: int) -> tuple[bytes, ...]:
    """Return what stands around opaque, the block's size, next, least and last offset."""
    remark_bytes = remark.encode()
    fixed = _pack_fixed(code, _PYTHON, CURRENT_VERSION, 0, RESPONSE_FLAG, len(remark_bytes))
    first = _SUGGEST + _number(suggested_id) + _NEXT_BEGIN
    return fixed[:OPAQUE_START], fixed[OPAQUE_END:] + remark_bytes, first, _MIN_OFFSET, _MAX_OFFSET


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
    remark_bytes = b"" if remark is None else remark.encode()
    block = b"".join(
        (
            _SUGGEST,
            _number(suggest_which_broker_id),
            _NEXT_BEGIN,
            _number(next_begin_offset),
            _MIN_OFFSET,
            _number(min_offset),
            _MAX_OFFSET,
            _number(max_offset),
        )
    )
    fixed = _pack_fixed(code, _PYTHON, CURRENT_VERSION, opaque, 1, len(remark_bytes))
    return b"".join((fixed, remark_bytes, _pack_int32(len(block)), block))
