"""The JSON tables of a store's `config` folder, each with its `.bak`, as a broker would read them.

Both dialects are read: JSON, and fastjson's with numbers as keys.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.lenient_json import loads
from skylarkmq.store.stopped.reader import StoppedStore

TABLES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
    "lmqConsumerOffset.json",
)
BACKUP: Final = ".bak"
_NODES_MAX: Final = 10_000_000
_at = re.compile(r"\bat (\d+)").search


class Table(NamedTuple):
    """One file: its content, or why it has none and at which byte that shows."""

    path: Path
    size: int
    content: dict[str, Any] | None
    position: int = 0
    why: str = ""


def read_table(store: StoppedStore, path: Path) -> Table | None:
    """Read a table; None when there is no such file."""
    if not store.files.exists(path):
        return None
    data = store.files.read_all(path)
    content, position, why = parse(data)
    return Table(path, len(data), content, position, why)


def parse(data: bytes) -> tuple[dict[str, Any] | None, int, str]:
    """Return the object in a text, or the byte where it goes wrong and why."""
    if not data.strip():
        return None, 0, "the file is empty"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return None, error.start, "this is not UTF-8"
    value: Any
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as plain:
        try:
            value = loads(text, node_count_max=_NODES_MAX)
        except (RemoteProtocolError, RecursionError) as error:
            found = _at(str(error))
            characters = int(found[1]) if found else getattr(plain, "pos", 0)
            return None, len(text[:characters].encode()), str(error)
    if not isinstance(value, dict):
        return None, 0, "this is not a JSON object"
    return value, 0, ""  # pyright: ignore[reportUnknownVariableType]


def readable(store: StoppedStore, name: str) -> dict[str, Any]:
    """What a broker would take for a table: the file, else its backup, else nothing."""
    for path in (store.paths.config / name, store.paths.config / (name + BACKUP)):
        table = read_table(store, path)
        if table is not None and table.content is not None:
            return table.content
    return {}
