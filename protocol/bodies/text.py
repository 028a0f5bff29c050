"""Between typed bodies and their JSON text, and the parts that several bodies share.

Written as standard JSON, numeric keys quoted (Java reads both). The body classes declare their
fields in alphabetical order of the names on the wire, because Java writes them so. Read by msgspec
when the text is standard JSON of the right types, else by the tolerant reader: fastjson's dialect,
references, nulls for missing values.

Maps keyed by queue, `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`, are lists of pairs in their
body class, which names them on the wire in `queue_tables`.

A body class may offer `accept(value)`, a static method that reshapes what the tolerant reader made
of the text before it is turned into the class.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.header_json import DECODE_ERRORS
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong

T = TypeVar("T", bound=msgspec.Struct)


class Body(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What every typed body is: fields by name, in Java's spelling on the wire."""


class MessageQueueBody(Body, kw_only=True, frozen=True):
    """A queue as it stands in bodies; hashable."""

    broker_name: str
    queue_id: JavaInt
    topic: str


class DataVersion(Body, kw_only=True, frozen=True):
    """The version of a table: how often it changed, and when it last did, ms. Also the body of 322.

    Compared for equality, never for order.
    """

    counter: JavaLong = 0
    timestamp: JavaLong = 0


_encode: Final = msgspec.json.Encoder().encode
_decoders: dict[type[msgspec.Struct], Callable[[bytes], Any]] = {}


def encode_body(body: msgspec.Struct) -> bytes:
    """Return the JSON text of `body`.

    Raises:
        LocalProtocolError: a text that UTF-8 cannot carry (a lone surrogate).
    """
    try:
        if hasattr(body, "queue_tables"):
            return _encode_queue_tables(body)
        return _encode(body)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise LocalProtocolError(f"body cannot be written: {error}") from error


def _encode_queue_tables(body: msgspec.Struct) -> bytes:
    # Not by the tolerant writer: a group may have tens of thousands of queues.
    names: tuple[str, ...] = getattr(type(body), "queue_tables", ())
    tables: dict[str, list[tuple[Any, Any]]] = {
        field.encode_name: getattr(body, field.name)
        for field in msgspec.structs.fields(body)
        if field.encode_name in names
    }
    empty: dict[str, list[Any]] = {
        field.name: [] for field in msgspec.structs.fields(body) if field.encode_name in names
    }
    members: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(body, **empty))
    texts = [
        _encode(name) + b":" + (_encode_rows(tables[name]) if name in tables else _encode(value))
        for name, value in members.items()
    ]
    return b"{" + b",".join(texts) + b"}"


def _encode_rows(rows: list[tuple[Any, Any]]) -> bytes:
    return b"{" + b",".join([_encode(queue) + b":" + _encode(item) for queue, item in rows]) + b"}"


def queue_members(key: str | lenient_json.FrozenObject) -> Any:
    """Return the members of a queue used as a key: an object, or its text in quotes."""
    if isinstance(key, str):
        return lenient_json.loads(key)
    return key.as_dict()


def decode_body(
    cls: type[T], data: bytes, *, node_count_max: int = lenient_json.NODE_COUNT_MAX
) -> T:
    """Return the body `cls` that `data` holds.

    `node_count_max` limits the values that the slow, tolerant reader takes.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; not JSON in any dialect, or of another shape.
    """
    tables: tuple[str, ...] = getattr(cls, "queue_tables", ())
    if not tables and b'"$ref"' not in data:
        decode = _decoders.get(cls)
        if decode is None:
            decode = _decoders[cls] = msgspec.json.Decoder(cls).decode
        try:
            body: T = decode(data)
        except DECODE_ERRORS:
            pass
        else:
            return body
    value = lenient_json.loads(data, keep_nulls=False, node_count_max=node_count_max)
    accept: Callable[[Any], Any] | None = getattr(cls, "accept", None)
    try:
        if accept is not None:
            value = accept(value)
        for name in tables:
            value[name] = [(queue_members(key), item) for key, item in value[name].items()]
        return msgspec.convert(value, cls, str_keys=True)
    except (*DECODE_ERRORS, TypeError, LookupError, AttributeError) as error:
        why = str(error)[:200] if isinstance(error, msgspec.ValidationError) else "other shape"
        raise RemoteProtocolError(
            ResponseCode.SYSTEM_ERROR, f"the body is no {cls.__name__}: {why!a}"
        ) from error
