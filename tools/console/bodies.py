"""What a message's body shows: JSON in lines, text, or bytes in hex.

Compressed bodies are opened as the SDK opens them for consumers. Of a large body the page shows the
beginning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.tools.showing import hex_lines

Form = Literal["json", "text", "hex"]
FORMS: Final[tuple[Form, ...]] = ("json", "text", "hex")
JSON_SIZE_MAX: Final = 512 << 10
SHOWN_MAX: Final = 128 << 10
HEX_SIZE_MAX: Final = 4 << 10
PREVIEW_MAX: Final = 160


@dataclass(frozen=True, slots=True)
class Body:
    """A body as a page shows it."""

    form: Form | Literal["empty", "unreadable"]
    """How it is shown."""
    text: str
    size: int = 0
    """Bytes, opened."""
    stored_size: int = 0
    """Bytes as stored; fewer when it is compressed."""
    is_cut: bool = False
    """Only its beginning is shown."""


def body_of(message: StoredMessage, form: str = "") -> Body:
    """Return the body of a message, in the form asked for or else in the one that fits."""
    stored_size = len(message.stored.body)
    try:
        data = message.body
    except RocketMQError as error:
        return Body("unreadable", str(error), stored_size=stored_size)
    if not data:
        return Body("empty", "", 0, stored_size)
    pretty = _pretty(data) if form in ("", "json") else None
    if pretty is not None:
        return _shown("json", pretty, data, stored_size)
    text = _text(data, lossy=form == "text")
    if text is not None and form != "hex":
        return _shown("text", text, data, stored_size)
    lines = "\n".join(hex_lines(data[:HEX_SIZE_MAX]))
    return Body("hex", lines, len(data), stored_size, len(data) > HEX_SIZE_MAX)


def preview(message: StoredMessage) -> str:
    """Return the beginning of a body in one line."""
    try:
        data = message.body
    except RocketMQError:
        return "(cannot be opened)"
    text = _text(data[: PREVIEW_MAX * 4], lossy=False)
    if text is None:
        return data[: PREVIEW_MAX // 3].hex(" ")
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_MAX else line[: PREVIEW_MAX - 1] + "…"


def _shown(form: Form, text: str, data: bytes, stored_size: int) -> Body:
    return Body(form, text[:SHOWN_MAX], len(data), stored_size, len(text) > SHOWN_MAX)


def _pretty(data: bytes) -> str | None:
    if len(data) > JSON_SIZE_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        pretty = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        pretty.encode()  # half a surrogate pair, as "\\ud800", is no character that a page can have
    except (ValueError, RecursionError):
        return None
    return pretty


def _text(data: bytes, *, lossy: bool) -> str | None:
    """Return bytes as text; None: they are no text, but for a last character that was cut."""
    if lossy:
        return data.decode("utf-8", "replace")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3 or not error.start:
            return None
        text = data[: error.start].decode("utf-8")
    return None if any(char < " " and char not in "\t\r\n" for char in text) else text
