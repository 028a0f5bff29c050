"""Bytes that no honest client sends, by class; each generator is endless and follows its seed.

Every item is (name of the class, bytes to write on a fresh connection). Some are frames with lies
in their lengths, some are sound frames with lies in a header or body, some are no frames at all.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import SerializeType, encode_frame
from tests.support.hostile_requests import CLIENT, GROUP, TOPIC, Shape, broker_requests
from tests.support.raw_client import send_fields

Item = tuple[str, bytes]

VALUES = (
    "", " ", "-1", "0", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "1" * 40, "1_000", " 1", "1 ", "+1",
    "\u0663", "\uff11",
    "0x10", "1e3", "1.0", "NaN", "null", "true", "TRUE", "yes", "\x00", "a\x00b", "\ud7ff",
    "x" * 5000,
)  # fmt: skip

NAMES = (
    "..", ".", "/", "\\", "../../etc/passwd", "a/b", "a\\b", "\x00", "a\r\nb", "a\tb", " ", "a b",
    "\u00e9", "\u202e", "\uff0e\uff0e", "x" * 128, "x" * 40_000, "", "%2e%2e%2f", "%", "|", "-",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%RETRY%..", "%DLQ%" + "y" * 130, "OFFSET_MOVED_EVENT\n",
)  # fmt: skip

# What a client may say of a message that is for the broker to say, and limits of what it may say.
PROPERTIES = (
    "\x01", "\x02", "\x01\x02" * 200, "A", "A\x01", "\x01B\x02", "DELAY\x01-1\x02",
    "DELAY\x01x\x02",
    "DELAY\x0199999999999999999999\x02", "TRAN_MSG\x01maybe\x02", "TRAN_MSG\x01true\x02",
    "WAIT\x01no\x02", "INNER_MULTI_DISPATCH\x01../x\x02", "REAL_TOPIC\x01..\x02REAL_QID\x01-7\x02",
    "TIMER_DELIVER_MS\x01-1\x02", "TIMER_DELAY_MS\x0199999999999999999999\x02",
    "TIMER_DELAY_SEC\x01x\x02", "TIMER_DELAY_SEC\x011\x02TIMER_DELIVER_MS\x010\x02",
    "TIMER_DEL_UNIQKEY\x01../x\x02", "TIMER_DELAY_MS\x010\x02TIMER_DEL_UNIQKEY\x01\x02",
    "TIMER_OUT_MS\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x0199999\x02",
    "TIMER_ENQUEUE_MS\x01x\x02TIMER_ROLL_TIMES\x01-1\x02TIMER_DEQUEUE_MS\x01\x02",
    "__STARTDELIVERTIME\x01-5\x02", "TRAN_MSG\x01true\x02PGROUP\x01../x\x02",
    "TRAN_MSG\x01TRUE\x02DELAY\x013\x02TIMER_DELAY_SEC\x015\x02",
    "TRANSACTION_CHECK_TIMES\x0199999999999\x02", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01-x\x02",
    "TRAN_PREPARED_QUEUE_OFFSET\x01-9223372036854775808\x02", "__transactionId__\x01..\x02",
    "RETRY_TOPIC\x01../../x\x02", "ORIGIN_MESSAGE_ID\x01zz\x02", "MAX_RECONSUME_TIMES\x01-9\x02",
    "CLUSTER\x01other\x02MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01..\x02CORRELATION_ID\x01\x02",
    "PUSH_REPLY_TIME\x01-1\x02TTL\x01x\x02", "WAIT\x01false\x02DELAY\x0119\x02",
    "DUP_INFO\x01a_b\x02INNER_MULTI_QUEUE_OFFSET\x01-1,x\x02", "CONSUME_START_TIME\x01x\x02",
    "SYS_X\x011\x02", "TAGS\x01\x02", "KEYS\x01a\x00b\x02", "K\x01" + "v" * 32_760 + "\x02",
    "K\x01" + "v" * 40_000 + "\x02", "UNIQ_KEY\x01" + "F" * 31 + "\x02",
)  # fmt: skip

JSON_HEADERS = (
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"NaN", b"{}", b"\xef\xbb\xbf{}", b'{"code":NaN}',
    b'{"code":1e400}', b'{"code":"310"}', b'{"code":310,"code":11}', b'{"code":310,"opaque":1.5}',
    b'{"code":310,"extFields":[]}', b'{"code":310,"extFields":{"a":1}}',
    b'{"code":310,"extFields":{"a":null}}', b'{"code":310,"remark":{}}', b'{"code":310,"flag":"2"}',
    b'{"code":310,"language":"KLINGON"}', b'{"code":310,"language":99}',
    b'{"code":99999999999999999999}', b'{"code":310,"remark":"\xff\xfe"}', b"{'code':310}",
    b'{"code":310,"remark":"\\ud800"}', b'{"code":310,}', b"{code:310}", b"\x00" * 50,
)  # fmt: skip


def _frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """A frame with true lengths around any header."""
    word = (kind & 0xFF) << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def _request(
    rng: Random, code: int, fields: dict[str, str], body: bytes = b"", kind: int | None = None
) -> bytes:
    if kind is None:
        kind = rng.choice((SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK))
    command = RemotingCommand.request(
        code, fields, body, opaque=rng.randrange(1 << 20), serialize_type=kind,
        oneway=rng.random() < 0.1,
    )  # fmt: skip
    try:
        return encode_command(command)
    except (LocalProtocolError, UnicodeEncodeError):
        text = {"code": code, "opaque": 1, "flag": 0, "version": 409, "extFields": fields}
        return encode_frame(SerializeType.JSON, json.dumps(text).encode(), body)


def _any_request(rng: Random) -> bytes:
    code, shape = rng.choice(list(broker_requests().items()))
    body = _body(shape) if rng.random() < 0.7 else rng.randbytes(rng.choice((0, 10, 300)))
    return _request(rng, code, shape.fields, body)


def _body(shape: Shape) -> bytes:
    return b"" if shape.body is None else json.dumps(shape.body).encode()


def lengths(rng: Random) -> bytes:
    """A length word, or a header length, that cannot be."""
    frame = bytearray(_any_request(rng))
    if rng.random() < 0.5:
        word = rng.choice((0, 1, 2, 3, 0xFFFFFFFF, 0x80000000, 16_777_217, 0x7FFFFFFF, 1 << 24))
        frame[:4] = struct.pack(">I", word)
    else:
        real = int.from_bytes(frame[5:8], "big")
        word = rng.choice((0, 1, real - 1, real + 1, len(frame), 0xFFFFFF))
        frame[5:8] = (word & 0xFFFFFF).to_bytes(3, "big")
    return bytes(frame)


def promises(rng: Random) -> bytes:
    """A big frame is announced, and does not come."""
    size = rng.choice((1 << 20, 8 << 20, 16_777_216))
    return struct.pack(">II", size, rng.choice((0, 1)) << 24 | 100) + rng.randbytes(50)


def serialize_types(rng: Random) -> bytes:
    frame = bytearray(_any_request(rng))
    frame[4] = rng.choice((2, 3, 0x4C, 0x7F, 0x80, 0xFF))
    return bytes(frame)


def truncations(rng: Random) -> bytes:
    frame = _any_request(rng)
    return frame[: rng.randrange(len(frame))]


def bit_flips(rng: Random) -> bytes:
    frame = bytearray(_any_request(rng))
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(frame))
        frame[at] ^= 1 << rng.randrange(8)
    return bytes(frame)


def noise(rng: Random) -> bytes:
    return rng.randbytes(rng.choice((1, 4, 8, 100, 5000)))


def other_protocols(rng: Random) -> bytes:
    return rng.choice(
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            b"\r\n\r\n\x00\r\nQUIT\n" + rng.randbytes(16),
            b"*1\r\n$4\r\nPING\r\n",
            b"SSH-2.0-x\r\n",
        )
    )


def json_headers(rng: Random) -> bytes:
    return _frame(0, rng.choice(JSON_HEADERS), rng.randbytes(10))


def deep_json(rng: Random) -> bytes:
    """Nesting, long numbers, many fields: what makes parsers slow."""
    return _frame(0, rng.choice(_deep_heads(rng.choice((1000, 100_000)))))


@cache
def _deep_heads(depth: int) -> tuple[bytes, ...]:
    return (
        b'{"code":310,"extFields":' + b"[" * depth,
        b'{"code":' + b"9" * 200_000 + b"}",
        b'{"a":' * depth,
        json.dumps({"code": 310, "extFields": {f"k{n}": "v" for n in range(20_000)}}).encode(),
    )


def binary_headers(rng: Random) -> bytes:
    """The ROCKETMQ codec with lengths of its own that lie."""
    fixed = struct.pack(">hBhii", rng.choice((310, 11, -1)), rng.randrange(256), 409, 1, 0)
    size = rng.choice((-1, -(1 << 31), (1 << 31) - 1, 0, 5))
    remark = struct.pack(">i", size) + rng.randbytes(rng.choice((0, 5)))
    fields = struct.pack(">i", rng.choice((-1, (1 << 31) - 1, 0, 20)))
    pair = struct.pack(">h", rng.choice((-1, 32767, 1))) + b"a" + struct.pack(">i", size) + b"v"
    return _frame(1, fixed + remark + fields + pair * rng.choice((0, 1, 3)))


def field_values(rng: Random) -> bytes:
    """A sound request but for one field."""
    requests = broker_requests()
    code = rng.choice([code for code, shape in requests.items() if shape.fields])
    fields = dict(requests[code].fields)
    name = rng.choice(list(fields))
    if rng.random() < 0.15:
        del fields[name]
    else:
        fields[name] = rng.choice(VALUES)
    return _request(rng, code, fields, _body(requests[code]) or b"body")


def names(rng: Random) -> bytes:
    """Topics, groups and clients that are none, or must stay plain directory names."""
    requests = broker_requests()
    known = {TOPIC, GROUP, CLIENT, "pg"}
    codes = [code for code, shape in requests.items() if known & set(shape.fields.values())]
    code = rng.choice(codes)
    fields = dict(requests[code].fields)
    fields[rng.choice([key for key in fields if fields[key] in known])] = rng.choice(NAMES)
    return _request(rng, code, fields, _body(requests[code]) or b"body")


def properties(rng: Random) -> bytes:
    text = "".join(rng.choices(PROPERTIES, k=rng.choice((1, 1, 3))))
    return _request(rng, RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, 0, text), b"body")


def batches(rng: Random) -> bytes:
    """Batch bodies whose inner sizes lie."""
    size = rng.choice((-1, 0, 3, 1 << 30, 50))
    item = struct.pack(">iiiii", size, 0, 0, 0, rng.choice((-5, 4, 1 << 30))) + rng.randbytes(30)
    body = item * rng.choice((1, 2, 500))
    return _request(rng, RequestCode.SEND_BATCH_MESSAGE, send_fields(TOPIC, m="true"), body)


_MEMBER = {"groupName": "x" * 300, "subscriptionDataSet": [{"topic": name} for name in NAMES]}
_JSON_BODIES = (
    b"",
    b"[]",
    b"{",
    b"[" * 50_000,
    b'{"clientID":1}',
    b'{"clientID":"' + b"c" * 9000 + b'"}',
    json.dumps({"clientID": "c", "consumerDataSet": [_MEMBER]}).encode(),
    json.dumps({"clientID": "c", "producerDataSet": [{"groupName": n} for n in NAMES]}).encode(),
    json.dumps({"consumerGroup": "../x", "clientId": "c", "mqSet": [{"queueId": -1}]}).encode(),
    json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": {"$ref": "$"}}).encode(),
)


def _wrong(rng: Random) -> Any:
    """A JSON value for a place where something else is expected."""
    deep: Any = 1
    for _ in range(rng.choice((0, 3, 200))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    number = rng.choice((-1, 0, 1 << 31, 1 << 63, 1 << 64, -(1 << 63) - 1, 1e308, 0.5))
    return rng.choice(
        (None, True, number, rng.choice(NAMES), rng.choice(VALUES), [], {}, deep, {"$ref": "$"},
         {"$ref": ".."}, ["x"] * 2000, {f"k{n}": n for n in range(2000)})
    )  # fmt: skip


def spoiled(rng: Random, value: Any) -> Any:
    """A JSON value with one of its places taken by something wrong."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if rng.random() < 0.05:
            return {str(rng.choice(NAMES)) if name == key else name: value[name] for name in value}
        return {**value, key: spoiled(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], spoiled(rng, value[at]), *value[at + 1 :]]
    return _wrong(rng)


def bodies(rng: Random) -> bytes:
    """JSON bodies that are not what the code asks for."""
    requests = broker_requests()
    code = rng.choice([code for code, shape in requests.items() if shape.body is not None])
    if rng.random() < 0.2:
        body = rng.choice((*_JSON_BODIES, rng.randbytes(200)))
    else:
        body = json.dumps(spoiled(rng, requests[code].body)).encode()
    return _request(rng, code, requests[code].fields, body)


def surprises(rng: Random) -> bytes:
    """Answers that nobody asked for, unknown codes, flags that are none."""
    code = rng.choice((-1, 0, 1, 5, 12, 28, 33, 37, 39, 105, 200, 999, 65_535))
    command = RemotingCommand.request(code, {}, b"", opaque=rng.randrange(-5, 50))
    command.flag = rng.choice((0, 1, 2, 3, -1, 1 << 30))
    return encode_command(command)


CLASSES: tuple[Callable[[Random], bytes], ...] = (
    lengths, promises, serialize_types, truncations, bit_flips, noise, other_protocols,
    json_headers, deep_json, binary_headers, field_values, names, properties, batches, bodies,
    surprises,
)  # fmt: skip
# The heavy class comes once in a while, the ones with many faces more often.
_WEIGHTS = [
    1 if make is deep_json else 12 if make in (field_values, names) else 5 for make in CLASSES
]


def hostile_items(rng: Random) -> Iterator[Item]:
    """Items of all classes, for ever."""
    while True:
        (make,) = rng.choices(CLASSES, _WEIGHTS)
        yield make.__name__, make(rng)
