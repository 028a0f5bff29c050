"""One call of a tool: its cluster, its times and bodies, and how large its answer may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from skylarkmq.client.admin import Admin
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.message_json import encoded_body
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.tools.connection import Session
from skylarkmq.tools.moments import Moment, instant
from skylarkmq.tools.output import as_json

BODY_MAX: Final = 2_000
"""Characters of a body that an answer shows; bytes of one that is no text."""
TEXT_MAX: Final = 4_000
"""Characters of any other text."""
ANSWER_MAX: Final = 40_000
"""Characters of an answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool works with; the brokers that do not answer are noted in `session.output`."""

    session: Session
    client: Client
    shows_bodies: bool
    """Whether whoever started the server lets agents see bodies."""

    def looking(self) -> Admin:
        """Return an administrator that only looks, not started."""
        return self.session.looking(self.client)

    def changing(self) -> Admin:
        """Return an administrator that ends where a broker does not answer, not started."""
        return Admin(client=self.client, timeout=self.session.timeout)

    def moment(self, text: str | None) -> datetime | None:
        """Return the time that an argument names.

        Raises:
            click.BadParameter: it names none.
        """
        return None if text is None else instant(Moment().convert(text, None, None), self.client)

    def message_json(self, message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
        """Return a message as commands print it, with the beginning of its body if asked for.

        Raises:
            ValueError: bodies are asked for, and not allowed.
        """
        if bodies and not self.shows_bodies:
            raise ValueError(
                "this server shows no bodies: whoever starts it allows them with --bodies"
            )
        row: dict[str, Any] = message.to_json("auto" if bodies else "none")
        if row["body"] is not None and len(as_json(row["body"], indent=None)) > BODY_MAX:
            row |= _beginning(message)
        return row


def _beginning(message: StoredMessage) -> dict[str, Any]:
    """Return the fields of a body that is too large to be shown whole."""
    try:
        body = message.body
    except RocketMQError as error:  # pragma: no cover - it could be opened a moment ago
        return {"body": None, "body_encoding": None, "body_error": str(error)}
    try:
        text = body.decode("utf-8")[:BODY_MAX]
        encoding = "text"
    except UnicodeDecodeError:
        encoding, text = cast("tuple[str, str]", encoded_body(body[:BODY_MAX], "base64"))
    return {"body": text, "body_encoding": encoding, "body_cut_from": len(body)}


def bounded(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of ANSWER_MAX characters at most.

    Long texts lose their ends, then the largest lists theirs; `cut` says how long the lists were.

    Raises:
        ValueError: it is too large even so.
    """
    answer: dict[str, Any] = _shortened(fields)
    cut: dict[str, int] = {}
    while len(as_json(answer, indent=None)) > ANSWER_MAX:
        found = max(_lists(answer), key=lambda each: each[0], default=None)
        if found is None:
            raise ValueError("the answer is too large: ask for less")
        _, path, largest = found
        cut.setdefault(path, len(largest))
        del largest[len(largest) // 2 :]
        answer["cut"] = {name: f"the first ones of {count}" for name, count in cut.items()}
    return answer


def _shortened(value: Any) -> Any:
    """Return a copy whose texts are TEXT_MAX characters at most, of characters that UTF-8 has."""
    match value:
        case str():
            text = value.encode("utf-8", "replace").decode()
            return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... (of {len(text)})"
        case dict():
            fields = cast("dict[str, Any]", value)
            return {_shortened(name): _shortened(each) for name, each in fields.items()}
        case list() | tuple():
            return [_shortened(each) for each in cast("list[Any]", value)]
        case _:
            return value


def _lists(value: Any, path: str = "") -> Iterator[tuple[int, str, list[Any]]]:
    """Find all lists that are not empty: size, where, itself."""
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            yield from _lists(each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value:
        rows: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        yield len(as_json(rows, indent=None)), path, rows
        for number, each in enumerate(rows):
            yield from _lists(each, f"{path}[{number}]")
