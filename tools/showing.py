"""Messages as commands show them: for people tables and lines, bodies as text, JSON or hex.

Programs get `StoredMessage.to_json`; see `client/message_json.py` for its keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import click

from skylarkmq.client.message_json import BodyForm, own_properties
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.tools.output import Columns, Output, Row, moment, visible

HEX_WIDTH: Final = 16
CUT: Final = 60
BODY_MIN: Final = 16
"""Characters of a body that a narrow terminal shows in a table."""
_PRINTABLE: Final = range(0x20, 0x7F)


body_option: Final[Callable[..., Any]] = click.option(
    "--body", "form", type=click.Choice(get_args(BodyForm)), default="auto", show_default=True,
    help="How to show bodies; auto: JSON where it is an object or a list, else text, else base64.",
)  # fmt: skip


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
    row = message.to_json(form)
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
    return short(text)


def short(text: str) -> str:
    """Return the beginning of a text, in one line."""
    text = visible(text)
    return text if len(text) <= CUT else f"{text[: CUT - 3]}..."


def line_of(row: Row) -> str:
    """Return a message as one line for a person."""
    marks = [moment("stored_at")(row), f"{row['broker']}/{row['queue_id']}@{row['queue_offset']}"]
    marks += [f"[{visible(row['tags'])}]"] if row["tags"] else []
    marks += [f"({visible(row['keys'])})"] if row["keys"] else []
    marks += [f"priority={row['priority']}"] if row["priority"] is not None else []
    return f"{' '.join(marks)} {brief(row)}"


LIST_COLUMNS: Final[Columns] = {
    "STORED": moment("stored_at"),
    "QUEUE": lambda row: f"{row['broker']}/{row['queue_id']}",
    "OFFSET": "queue_offset",
    "TAG": "tags",
    "KEYS": "keys",
    "PRIORITY": "priority",
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
    "priority": "priority",
    "born": lambda row: f"{moment('born_at')(row)} at {row['born_host']}",
    "stored": lambda row: f"{moment('stored_at')(row)} at {row['store_host']}",
    "handed back": lambda row: f"{row['reconsume_times']} times",
    "size": "size",
    "properties": lambda row: own_text(row["properties"]) or None,
}


def own_text(properties: Mapping[str, str]) -> str:
    """Return the application's properties in one line."""
    return " ".join(f"{name}={value}" for name, value in own_properties(properties).items())
