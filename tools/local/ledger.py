"""The ledger of a redrive: a file that has what became of each dead letter, a line for each step.

The first line says whose it is. After that the last line of a letter counts:

    {"group": "billing", "to": "group", "namesrv": "10.0.0.1:9876"}
    {"letter": ["broker-a", 0, 12, "0A00..."], "state": "sending", "copy": [["%RETRY%billing",
     "broker-a", 0], 120]}                      the queue ended at 120 before the send
    {"letter": [...], "state": "sent", "copy": [[...], 121]}       its copy is there
    {"letter": [...], "state": "failed", "copy": null}             the broker refused: no copy

A letter is its place and its offset id, as a topic that was made anew uses places again. After a
kill or without an answer `sending` stays its last line: the copy is there, from that offset on, or
it is not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import click

from skylarkmq.client.admin import CopyPlace
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.state_folder import file_name, state_folder
from skylarkmq.common.files import DiskFiles
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.output import as_json

State = Literal["sending", "sent", "failed"]


class LetterKey(NamedTuple):
    """Which letter."""

    broker_name: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str

    @classmethod
    def of(cls, letter: StoredMessage) -> LetterKey:
        """Return the key of a letter."""
        queue = letter.queue
        return cls(queue.broker_name, queue.queue_id, letter.queue_offset, letter.offset_msg_id)


class Ledger:
    """What became of each letter; see the head of this file."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        """Begin with nothing known; without a file nothing is written."""
        self._file = file
        self.done: set[LetterKey] = set()
        self.pending: dict[LetterKey, CopyPlace] = {}
        """Letters whose copies may be there, and from where on."""
        self.copies: set[CopyPlace] = set()

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, group: str, to: str, namesrv: str, *, write: bool
    ) -> Generator[Ledger]:
        """Read a ledger, and keep it open to add lines; nobody else may meanwhile.

        Raises:
            click.ClickException: it is of something else, damaged, or in use, or cannot be read.
        """
        head = {"group": group, "to": to, "namesrv": namesrv}
        if not write:
            ledger = cls()
            if path.exists():
                ledger._load(path, _read(path), head)
            yield ledger
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except OSError as error:
            raise click.ClickException(f"{path}: {error.strerror}") from error
        with file:
            import fcntl  # which Windows does not have

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise click.ClickException(
                    f"another redrive of {group} is under way: it holds {path}"
                ) from error
            ledger = cls(file)
            size = ledger._load(path, _read(path), head)
            file.truncate(size)  # a line that a kill cut counts as not written
            if not size:
                ledger._write(head)
                DiskFiles().sync_folder(path.parent)
            yield ledger

    def note(self, letter: LetterKey, state: State, copy: CopyPlace | None) -> None:
        """Add a line; `sending` is durable when it returns, and all lines before it."""
        place = None if copy is None else [list(copy.queue), copy.offset]
        self._write({"letter": list(letter), "state": state, "copy": place})
        if self._file is not None and state == "sending":
            os.fsync(self._file.fileno())
        self._take(letter, state, copy)

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(as_json(row, indent=None).encode() + b"\n")
            self._file.flush()

    def _take(self, letter: LetterKey, state: State, copy: CopyPlace | None) -> None:
        self.done.discard(letter)
        self.pending.pop(letter, None)
        if copy is None:
            return
        if state == "sending":
            self.pending[letter] = copy
        else:
            self.done.add(letter)
            self.copies.add(copy)

    def _load(self, path: Path, data: bytes, head: dict[str, str]) -> int:
        """Take the whole lines; return how many bytes they have."""
        first = as_json(head, indent=None).encode()
        size = data.rfind(b"\n") + 1
        if not size and not first.startswith(data):
            raise click.ClickException(f"{path} is no ledger of a redrive")
        for number, line in enumerate(data[:size].splitlines(), 1):
            try:
                row: dict[str, Any] = json.loads(line)
                if number == 1:
                    _check_head(path, row, head)
                    continue
                copy = row["copy"]
                place = None if copy is None else CopyPlace(MessageQueue(*copy[0]), int(copy[1]))
                if row["state"] not in ("sending", "sent", "failed"):
                    raise ValueError(row["state"])
                self._take(LetterKey(*row["letter"]), row["state"], place)
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                if number == 1:
                    raise click.ClickException(f"{path} is no ledger of a redrive") from error
                raise click.ClickException(
                    f"line {number} of the ledger {path} is damaged. Without it letters may be "
                    "sent twice: repair the line, or remove the ledger if that does no harm"
                ) from error
        return size


def ledger_path(namesrv: str, group: str, to: str) -> Path:
    """Return where the ledger is when nobody names one."""
    return state_folder("redrives") / f"{file_name(f'{namesrv} {group} {to}')}.ndjson"


def _check_head(path: Path, row: dict[str, Any], head: dict[str, str]) -> None:
    if any(row.get(name) != head[name] for name in ("group", "to")):
        raise click.ClickException(
            f"{path} is the ledger of another redrive ({as_json(row, indent=None)[:120]}); name "
            "another --ledger"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
