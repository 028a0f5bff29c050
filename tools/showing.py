"""Messages as commands show them: rows for programs and tables, bodies as text, JSON or hex.

Keys of a message in JSON: msg_id, offset_msg_id, topic, origin_topic, broker, queue_id,
queue_offset, tags, keys, properties, born_at, born_host, stored_at, store_host, reconsume_times,
size, body, body_encoding. `body_encoding` says what `body` is: text, json (a value), hex or base64;
without a body both are null, and `body_error` says why if it cannot be read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, get_args

import click

from skylarkmq.client.admin import StoredMessage
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import StoredView
from skylarkmq.client.send_result import SendResult
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import RESERVED_NAMES
from skylarkmq.tools.output import Columns, Output, Row, moment, visible

BodyForm = Literal["auto", "text", "json", "hex", "base64", "none"]
HEX_WIDTH: Final = 16
CUT: Final = 60
_PRINTABLE: Final = range(0x20, 0x7F)


body_option: Final[Callable[..., Any]] = click.option(
    "--body", "form", type=click.Choice(get_args(BodyForm)), default="auto", show_default=True,
    help="How to show bodies; auto: JSON where it is an object or a list, else text, else base64.",
)  # fmt: skip


def row_of(message: StoredView, queue: MessageQueue, form: BodyForm) -> dict[str, Any]:
    """Return a message as a program reads it."""
    origin = message.origin_topic if isinstance(message, StoredMessage) else message.topic
    row: dict[str, Any] = {
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "topic": message.topic,
        "origin_topic": origin,
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "queue_offset": message.queue_offset,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "born_at": _iso(message.born_at),
        "born_host": str(message.born_host),
        "stored_at": _iso(message.stored_at),
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "size": message.size,
        "body": None,
        "body_encoding": None,
    }
    if form != "none":
        try:
            row["body_encoding"], row["body"] = encoded(message.body, form)
        except (RocketMQError, ValueError) as error:
            row["body_error"] = str(error)
    return row


def result_row(result: SendResult) -> dict[str, Any]:
    """Return what became of a send as a program reads it."""
    return {
        "status": result.status.value,
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "queue_offset": result.queue_offset,
    }


def encoded(body: bytes, form: BodyForm) -> tuple[str, Any]:
    """Return a body in a form, and the form's name.

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
            return encoded(body, "base64")
        raise ValueError(
            f"the body is no UTF-8; --body hex or base64 shows it, not {form}"
        ) from None
    if form == "text" or (form == "auto" and text.lstrip()[:1] not in ("{", "[")):
        return "text", text
    try:
        return "json", json.loads(text)
    except ValueError as error:
        if form == "auto":
            return "text", text
        raise ValueError(f"the body is no JSON: {error}") from None


def body_text(row: Row) -> str:
    """Return the body of a row for a person."""
    if row.get("body_error"):
        return f"({row['body_error']})"
    match row["body_encoding"]:
        case None:
            return ""
        case "json":
            return json.dumps(row["body"], indent=2, ensure_ascii=False)
        case "hex":
            return "\n".join(hex_lines(bytes.fromhex(row["body"])))
        case _:
            return visible(str(row["body"]), "\n\t")


def show_message(output: Output, message: StoredMessage, form: BodyForm) -> None:
    """Print one message: for a person its fields and its body, for programs its row."""
    row = row_of(message, message.queue, form)
    output.one(row, FIELD_COLUMNS)
    if output.is_table:
        click.echo(f"\n{body_text(row)}")


def hex_lines(body: bytes) -> list[str]:
    """Return bytes as `hexdump -C` shows them."""
    lines: list[str] = []
    for at in range(0, len(body), HEX_WIDTH):
        part = body[at : at + HEX_WIDTH]
        shown = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{HEX_WIDTH * 3 - 1}}  |{shown}|")
    return lines


def brief(row: Row) -> str:
    """Return the body of a row in one line."""
    if row["body_encoding"] == "json":
        text = json.dumps(row["body"], ensure_ascii=False)
    elif row["body_encoding"] == "hex":
        text = str(row["body"])
    else:
        text = body_text(row)
    text = visible(text)
    return text if len(text) <= CUT else f"{text[: CUT - 3]}..."


def line_of(row: Row) -> str:
    """Return a message as one line for a person."""
    marks = [moment("stored_at")(row), f"{row['broker']}/{row['queue_id']}@{row['queue_offset']}"]
    marks += [f"[{visible(row['tags'])}]"] if row["tags"] else []
    marks += [f"({visible(row['keys'])})"] if row["keys"] else []
    return f"{' '.join(marks)} {brief(row)}"


LIST_COLUMNS: Final[Columns] = {
    "STORED": moment("stored_at"),
    "QUEUE": lambda row: f"{row['broker']}/{row['queue_id']}",
    "OFFSET": "queue_offset",
    "TAG": "tags",
    "KEYS": "keys",
    "MESSAGE ID": "msg_id",
    "BODY": brief,
}
FIELD_COLUMNS: Final[Columns] = {
    "message id": "msg_id",
    "offset id": "offset_msg_id",
    "topic": "topic",
    "sent to first": "origin_topic",
    "queue": lambda row: f"{row['broker']}/{row['queue_id']} at {row['queue_offset']}",
    "tag": "tags",
    "keys": "keys",
    "born": lambda row: f"{moment('born_at')(row)} at {row['born_host']}",
    "stored": lambda row: f"{moment('stored_at')(row)} at {row['store_host']}",
    "handed back": lambda row: f"{row['reconsume_times']} times",
    "size": "size",
    "properties": lambda row: (
        " ".join(f"{name}={value}" for name, value in own_properties(row).items()) or None
    ),
}


def own_properties(row: Row) -> dict[str, str]:
    """Return the properties that the application gave."""
    return {
        name: value
        for name, value in row["properties"].items()
        if name not in RESERVED_NAMES and value
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
