"""A stored message in JSON: one form for all commands and `to_json`, and back to one to be sent.

msg_id, offset_msg_id          the producer's id; the broker's, which names a place
topic, origin_topic            where it lies; where it was sent to first
broker, queue_id, queue_offset, commit_log_offset
tags, keys                     null without a tag; keys are separated by blanks
priority                       a number; null without one
properties                     the application's and RocketMQ's, all texts
flag, sys_flag, reconsume_times, size, body_crc
born_at, born_host, stored_at, store_host           times in ISO 8601, UTC; null for one that no
                               calendar has
body, body_encoding            text, json (a value), hex or base64; both null without a body
body_error                     only where the body cannot be shown: why
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import Message, require_text
from skylarkmq.protocol.properties import PRIORITY, RESERVED_NAMES, SHARDING_KEY

if TYPE_CHECKING:
    from skylarkmq.client.message_view import StoredMessage

BodyForm = Literal["auto", "text", "json", "hex", "base64", "none"]
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

FIELDS: Final[Mapping[str, Callable[[StoredMessage], JsonValue]]] = {
    "msg_id": lambda message: message.msg_id,
    "offset_msg_id": lambda message: message.offset_msg_id,
    "topic": lambda message: message.topic,
    "origin_topic": lambda message: message.origin_topic,
    "broker": lambda message: message.queue.broker_name or None,
    "queue_id": lambda message: message.queue.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "commit_log_offset": lambda message: message.commit_log_offset,
    "tags": lambda message: message.tags,
    "keys": lambda message: message.keys,
    "priority": lambda message: message.priority,
    "properties": lambda message: {**message.properties},
    "flag": lambda message: message.flag,
    "sys_flag": lambda message: message.sys_flag,
    "born_at": lambda message: _iso(message.stored.born_timestamp),
    "born_host": lambda message: str(message.born_host),
    "stored_at": lambda message: _iso(message.stored.store_timestamp),
    "store_host": lambda message: str(message.store_host),
    "reconsume_times": lambda message: message.reconsume_times,
    "size": lambda message: message.size,
    "body_crc": lambda message: message.body_crc,
}
"""All keys but those of the body."""
GIVEN: Final = {
    "tags": str, "keys": str, "properties": dict, "flag": int, "priority": int,
    "body_encoding": str,
}  # fmt: skip
"""What a message to be sent is made of, beside the body."""
DEPTH_SLACK: Final = 100
"""Levels that a row around a body, and the calls that print it, may have."""
_KINDS: Final = {str: "a text", dict: "an object of texts", int: "a number"}


def message_json(message: StoredMessage, form: BodyForm) -> dict[str, JsonValue]:
    """Return a stored message in the form above."""
    row: dict[str, JsonValue] = {name: read(message) for name, read in FIELDS.items()}
    row["body"] = row["body_encoding"] = None
    if form != "none":
        try:
            row["body_encoding"], row["body"] = encoded_body(message.body, form)
        except (RocketMQError, ValueError) as error:
            row["body_error"] = str(error)
    return row


def message_to_send(topic: str, row: object) -> Message:
    """Return a message to be sent from a row in the form above, or from a part of one.

    It has the row's body, tag, keys, flag, priority, sharding key and the properties of the
    application. All that the first delivery alone had is left out: ids, places, times and
    RocketMQ's properties.

    Raises:
        ValueError: no such row; says what is wrong.
    """
    if not isinstance(row, dict):
        raise ValueError('a message in JSON is an object: {"body": "..."}')
    given = cast("dict[str, Any]", row)
    if given.get("body_error"):
        raise ValueError(f"the message has no body: {given['body_error']}")
    known = (*FIELDS, "body", "body_encoding")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ValueError(f"{name!r} is no key of a message{f'; {near[0]}?' if near else ''}")
    if given.get("body") is None and (given.get("body_encoding") != "json" or "body" not in given):
        raise ValueError("the message has no body")
    for name, kind in GIVEN.items():
        value = given.get(name)
        if not isinstance(value, kind | None) or isinstance(value, bool):
            raise ValueError(f"{name} is {_KINDS[kind]}, not {value!r:.40}")
    properties: dict[str, str] = given.get("properties") or {}
    try:
        for value in properties.values():
            require_text("property value", value)
        return Message(
            topic,
            decoded_body(given.get("body_encoding"), given["body"]),
            tags=given.get("tags"),
            keys=given.get("keys") or "",
            properties=own_properties(properties),
            sharding_key=properties.get(SHARDING_KEY),
            flag=given.get("flag") or 0,
            priority=given.get("priority"),
        )
    except TypeError as error:
        raise ValueError(str(error)) from error


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the application gave."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_NAMES and name != PRIORITY and value
    }


# Bodies


def encoded_body(body: bytes, form: BodyForm) -> tuple[str, JsonValue]:
    """Return the name of a body's form, and the body in it.

    Raises:
        ValueError: it is not of that form.
    """
    if form == "hex":
        return "hex", body.hex()
    if form == "base64":
        return "base64", base64.b64encode(body).decode("ascii")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        if form == "auto":
            return encoded_body(body, "base64")
        raise ValueError(f"the body is no UTF-8: hex or base64 shows it, not {form}") from None
    if form == "text" or (form == "auto" and text.lstrip()[:1] not in ("{", "[")):
        return "text", text
    try:
        return "json", _value_of(text)
    except ValueError as error:
        if form == "auto":
            return "text", text
        raise ValueError(f"the body is no JSON: {error}") from None


def decoded_body(encoding: str | None, body: object) -> bytes:
    """Return the bytes of a body; without an encoding a text is text, and all else a JSON value.

    Raises:
        ValueError: it is not of that encoding.
    """
    if encoding == "json" or (encoding is None and not isinstance(body, str)):
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    decode = _DECODERS.get(encoding or "text")
    if decode is None:
        raise ValueError(f"body_encoding is text, json, hex or base64, not {encoding!r}")
    if not isinstance(body, str):
        raise ValueError(f"a body of the encoding {encoding} is a text")
    try:
        return decode(body)
    except ValueError as error:
        raise ValueError(f"the body is no {encoding or 'text'}: {error}") from error


_DECODERS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "text": str.encode,
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def _value_of(text: str) -> JsonValue:
    """Return a JSON text as a value that says all that the text does.

    Raises:
        ValueError: it is no JSON, or a value would say less: a key that stands twice, a number
            with more digits than a float has, half a character.
    """
    try:
        value: JsonValue = json.loads(
            text, object_pairs_hook=_object, parse_float=_number, parse_constant=_refused
        )
        inside: JsonValue = value
        for _ in range(DEPTH_SLACK):
            inside = [inside]
        json.dumps(inside, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is too deep") from error
    return value


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _number(text: str) -> float:
    value = float(text)
    if _digits(repr(value)) != _digits(text):
        raise ValueError(f"{text:.40} has more digits than a float")
    return value


def _digits(number: str) -> str:
    return number.lower().partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")


def _refused(text: str) -> JsonValue:
    raise ValueError(f"{text} is no number")


def _iso(time_ms: int) -> str | None:
    """Return a time as text; None for one that no calendar has, which any producer may write."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
