"""The front of a send's frame, up to the body, made around the parts that a queue's sends share.

    JSON      parts[0] sys_flag parts[1] born parts[2] flag parts[3] properties, a JSON string
              parts[4] opaque parts[5]
    msgpack   parts[0] opaque uint32 parts[1] sys_flag "h" flag "g" born int64
              "i" properties, str 32

Without flags, as nearly all messages are, msgpack writes each of the two as one zero byte, else as
an int32. `properties` is the text of the properties.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from skylarkmq.kernel import twin
from skylarkmq.protocol.codes import CURRENT_VERSION, LanguageCode, RequestCode
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.frame import PREFIX, SerializeType
from skylarkmq.protocol.message import MessageQueue

_to_json: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
_to_msgpack: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
_pack_prefix = PREFIX.pack
_pack_opaque = struct.Struct(">I").pack
_pack_flags = struct.Struct(">Bi3si").pack
_pack_rest = struct.Struct(">3sq3sI").pack
_MSGPACK_MARK: Final = SerializeType.MSGPACK << 24


def json_parts(group: str, queue: MessageQueue, default_queue_count: int) -> tuple[bytes, ...]:
    """Return the parts of a JSON header, for sends of a producer group to one queue."""
    names = map(_to_json, (group, queue.topic, AUTO_CREATE_TOPIC_KEY_TOPIC, queue.broker_name))
    group_text, topic, default_topic, broker = names
    front = (
        b'{"code":%d,"extFields":{"a":%s,"b":%s,"c":%s,"d":"%d","e":"%d","f":"'
    ) % (RequestCode.SEND_MESSAGE_V2, group_text, topic, default_topic, default_queue_count,
         queue.queue_id)  # fmt: skip
    middle = b',"j":"0","k":"false","m":"false","n":%s},"flag":0,"language":"PYTHON","opaque":'
    end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
    return front, b'","g":"', b'","h":"', b'","i":', middle % broker, end


def msgpack_parts(group: str, queue: MessageQueue, default_queue_count: int) -> tuple[bytes, ...]:
    """Return the parts of a msgpack header, for sends of a producer group to one queue."""
    front = (RequestCode.SEND_MESSAGE_V2, LanguageCode.PYTHON, CURRENT_VERSION)
    fixed: dict[str, object] = {
        "a": group,
        "b": queue.topic,
        "c": AUTO_CREATE_TOPIC_KEY_TOPIC,
        "d": default_queue_count,
        "e": queue.queue_id,
        "j": 0,
        "k": False,
        "m": False,
        "n": queue.broker_name,
    }
    entries = b"".join(_to_msgpack(part) for item in fixed.items() for part in item)
    # An array of 7: after the opaque come flag, remark and the map, its changing fields last.
    return (
        b"\x97" + b"".join(_to_msgpack(int(number)) for number in front) + b"\xce",
        b"\x00\xc0" + bytes((0x80 + len(fixed) + 4,)) + entries + b"\xa1f",
    )


@twin
def json_send_head(
    parts: tuple[bytes, ...],
    opaque: int,
    sys_flag: int,
    born_timestamp: int,
    flag: int,
    properties: str,
    body_size: int,
) -> bytes:
    """Return the front of a JSON frame."""
    header = b"%s%d%s%d%s%d%s%s%s%d%s" % (
        parts[0], sys_flag, parts[1], born_timestamp, parts[2], flag, parts[3],
        _to_json(properties), parts[4], opaque, parts[5],
    )  # fmt: skip
    size = len(header)
    return _pack_prefix(4 + size + body_size, size) + header


@twin
def msgpack_send_head(
    parts: tuple[bytes, ...],
    opaque: int,
    sys_flag: int,
    born_timestamp: int,
    flag: int,
    properties: str,
    body_size: int,
) -> bytes:
    """Return the front of a msgpack frame."""
    front, middle = parts
    text = properties.encode()
    flags = b"\0\xa1h\0"
    if sys_flag or flag:
        flags = _pack_flags(0xD2, sys_flag, b"\xa1h\xd2", flag)
    size = len(front) + 4 + len(middle) + len(flags) + 18 + len(text)
    return b"".join((
        _pack_prefix(4 + size + body_size, _MSGPACK_MARK | size), front, _pack_opaque(opaque),
        middle, flags, _pack_rest(b"\xa1g\xd3", born_timestamp, b"\xa1i\xdb", len(text)), text,
    ))  # fmt: skip
