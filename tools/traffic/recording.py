"""A recording: JSON lines, first a head, then a line for each command that passed.

    {"recording": 1, "to": "127.0.0.1:9876", "bodies": false}
    {"at_ms": 12.3, "connection": 1, "from": "client", "to": "127.0.0.1:9876", "code": 105, ...}

A line has at_ms (since the start), connection (a number), from (client or server), to (the server),
code, name (of a request), opaque, flag, language, version, serialize, remark, fields, body_size and
body (base64; null: left out).

What is left out, always: the values of access keys, signatures, tokens and secrets, which become
`***`, and bodies of settings and accounts. Bodies of all other commands, too, unless they are asked
for. Keys, tags and properties of messages stay: they are part of the header.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import click

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.headers.access import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

VERSION: Final = 1
MASK: Final = "***"
SIGNED_BY: Final = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
SECRET_WORDS: Final = ("secret", "token", "signature", "accesskey", "password")
_SETTINGS: Final = {
    "UPDATE_BROKER_CONFIG", "GET_BROKER_CONFIG", "UPDATE_NAMESRV_CONFIG", "GET_NAMESRV_CONFIG",
    "UPDATE_CONTROLLER_CONFIG", "GET_CONTROLLER_CONFIG",
}  # fmt: skip
SECRET_BODIES: Final = frozenset(
    code
    for code in RequestCode
    if code.name.startswith("AUTH_") or "ACL_CONFIG" in code.name or code.name in _SETTINGS
)
"""Codes whose requests or answers carry passwords or accounts."""
WAITING_MAX: Final = 100_000
Side = Literal["client", "server"]


@dataclass(slots=True)
class Recorder:
    """Writes a recording. Loop thread."""

    file: TextIO
    bodies: bool
    counts: dict[str, int] = field(default_factory=lambda: {"requests": 0, "answers": 0})
    codes: dict[str, int] = field(default_factory=dict[str, int])
    _asked: dict[tuple[int, Side, int], int] = field(
        default_factory=dict[tuple[int, Side, int], int]
    )
    _keys: set[str] = field(default_factory=set[str])

    def head(self, to: str) -> None:
        """Write the first line."""
        self._write({"recording": VERSION, "to": to, "bodies": self.bodies})

    def add(
        self, at_ms: float, connection: int, side: Side, to: str, command: RemotingCommand
    ) -> int:
        """Write a line for a command; return the code of the request that it is or answers."""
        is_answer = bool(command.flag & RESPONSE_FLAG)
        code = command.code
        if is_answer:
            other: Side = "server" if side == "client" else "client"
            code = self._asked.pop((connection, other, command.opaque), -1)
        elif not command.flag & ONEWAY_FLAG and len(self._asked) < WAITING_MAX:
            self._asked[(connection, side, command.opaque)] = code
        self.counts["answers" if is_answer else "requests"] += 1
        name = name_of(code)
        if not is_answer:
            self.codes[name] = self.codes.get(name, 0) + 1
        keeps = self.bodies and code not in SECRET_BODIES and code >= 0
        self._write(
            {
                "at_ms": round(at_ms, 3),
                "connection": connection,
                "from": side,
                "to": to,
                "code": command.code,
                "name": None if is_answer else name,
                "opaque": command.opaque,
                "flag": command.flag,
                "language": command.language.name,
                "version": command.version,
                "serialize": SerializeType(command.serialize_type).name,
                "remark": self._without_keys(command.remark),
                "fields": self._masked(command.ext_fields),
                "body_size": len(command.body),
                "body": b64encode(command.body).decode("ascii") if keeps else None,
            }
        )
        return code

    def closed(self, connection: int) -> None:
        """Forget the requests of a connection that nobody answered."""
        for asked in [each for each in self._asked if each[0] == connection]:
            del self._asked[asked]

    def _masked(self, fields: dict[str, str]) -> dict[str, str]:
        key = fields.get(ACCESS_KEY)
        if key:
            self._keys.add(key)
        return {name: MASK if is_secret(name) else value for name, value in fields.items()}

    def _without_keys(self, remark: str | None) -> str | None:
        """Return a remark without the access keys that were seen: refusals name them."""
        for key in self._keys if remark else ():
            remark = str(remark).replace(key, MASK)
        return remark

    def _write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.flush()


def is_secret(name: str) -> bool:
    """Return whether the value of a header field may be a secret."""
    return any(word in name.lower() for word in SECRET_WORDS)


def name_of(code: int) -> str:
    """Return RocketMQ's name of a request code."""
    known = RequestCode._value2member_map_.get(code)
    return known.name if isinstance(known, RequestCode) else str(code)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a client, and the code of its answer; None: there was none."""

    number: int
    at_ms: float
    connection: int
    to: str
    """The server that got it."""
    code: int
    flag: int
    fields: dict[str, str]
    body_size: int
    body: bytes | None
    answer: int | None


def read(path: Path) -> list[Recorded]:
    """Return the requests of clients in a recording.

    Raises:
        click.ClickException: it is none, or it is damaged.
    """
    requests: list[dict[str, Any]] = []
    answers: dict[tuple[int, int], int] = {}
    for number, line in _lines(path):
        try:
            if number == 0:
                if line.get("recording") != VERSION:
                    raise click.ClickException(f"{path} is no recording of this version")
            elif line["from"] == "client" and not line["flag"] & RESPONSE_FLAG:
                requests.append(line)
            elif line["from"] == "server" and line["flag"] & RESPONSE_FLAG:
                answers[(line["connection"], line["opaque"])] = line["code"]
        except (KeyError, TypeError, AttributeError) as error:
            raise click.ClickException(f"{path}, line {number + 1}: {error!r}") from error
    return [
        Recorded(
            number, line["at_ms"], line["connection"], line["to"], line["code"], line["flag"],
            line["fields"], line["body_size"],
            None if line["body"] is None else b64decode(line["body"]),
            answers.get((line["connection"], line["opaque"])),
        )
        for number, line in enumerate(requests)
    ]  # fmt: skip


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                yield number, json.loads(line)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise click.ClickException(f"{path} is no recording: {error}") from error
