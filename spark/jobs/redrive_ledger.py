"""What became of each dead letter that a redrive took on: a file of lines, synced as it grows.

    {"v":1,"group":"g"}                                              the first line
    {"letter":[broker,queue,offset,id],"event":"intent","to":[topic,broker,queue],"from":120,
     "at":"2026-01-31T05:00:00Z"}                                    synced before the send
    {"letter":[...],"event":"sent","status":"SEND_OK","offset":123,...}    synced after it
    {"letter":[...],"event":"failed","error":"..."}                  the broker refused: not stored
    {"letter":[...],"event":"unknown","error":"..."}                 no answer came

The last line of a letter counts. One whose last line is `sent` is never sent again. An intent
without an outcome is one whose run was killed: like `unknown`, its copy may be there or not, and
`from` says from which offset of the target queue on it would be. A last line that was cut was not
synced, so what it says had not happened, or is unknown from the line before: it goes.

On the driver's disk; one thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.durable_folder import sync_folder, take_lock
from skylarkmq.spark.jobs.common import JobError

VERSION: Final = 1
State = Literal["intent", "sent", "failed", "unknown"]
STATES: Final = ("intent", "sent", "failed", "unknown")


class LetterKey(NamedTuple):
    """Which letter: its place, and its id, as a topic that was made anew uses places again."""

    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.queue_id}/{self.queue_offset}/{self.msg_id}"


class Entry(NamedTuple):
    """One line: what became of a letter."""

    key: LetterKey
    state: State
    target: MessageQueue | None = None
    """Of an intent, and of what follows it: where the copy goes."""
    from_offset: int = -1
    """The target queue's end before the send."""
    at: str = ""
    """ISO 8601."""
    error: str = ""
    status: str = ""
    queue_offset: int = -1
    """Where the copy is, of `sent`."""

    def line(self) -> bytes:
        """Return its line."""
        document: dict[str, Any] = {"letter": list(self.key), "event": self.state, "at": self.at}
        if self.target is not None:
            document |= {"to": list(self.target), "from": self.from_offset}
        if self.state == "sent":
            document |= {"status": self.status, "offset": self.queue_offset}
        if self.error:
            document["error"] = self.error
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Entry:
        """Return what a line says; ValueError, KeyError or TypeError when it is none."""
        document = json.loads(line)
        broker, queue_id, offset, msg_id = document["letter"]
        if document["event"] not in STATES:
            raise ValueError(f"event {document['event']!r}")
        target = document.get("to")
        return cls(
            LetterKey(str(broker), int(queue_id), int(offset), str(msg_id)),
            document["event"],
            None if target is None else MessageQueue(*target),
            int(document.get("from", -1)),
            document.get("at", ""),
            document.get("error", ""),
            document.get("status", ""),
            int(document.get("offset", -1)),
        )


class RedriveLedger:
    """The ledger of one group's redrives; a context manager. `entries` has the last of each letter.

    Read-only it takes no lock and makes no file, as a dry run wants it.
    """

    def __init__(self, path: str | Path, group: str, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.entries: dict[LetterKey, Entry] = {}
        self._group = group
        self._read_only = read_only
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Read what is there, and take the ledger for this process.

        Raises:
            JobError: it is of another group, damaged, or another process has it.
            OSError: the disk refuses.
        """
        if self._read_only:
            if self.path.exists():
                self._load(self.path.read_bytes())
            return self
        new = not self.path.exists()
        descriptor = take_lock(self.path)
        if descriptor is None:
            raise JobError(
                f"another redrive is at work with the ledger {self.path}: wait for it, or stop it"
            )
        self._descriptor = descriptor
        try:
            data = self.path.read_bytes()
            whole = self._load(data)
            if whole < len(data):
                os.ftruncate(self._descriptor, whole)
            os.lseek(self._descriptor, 0, os.SEEK_END)
            if whole == 0:
                self._append([json.dumps({"v": VERSION, "group": self._group}).encode() + b"\n"])
            if new:
                sync_folder(self.path.absolute().parent)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def record(self, entries: Iterable[Entry]) -> None:
        """Add lines; they are on the disk when it returns. OSError where the disk refuses."""
        listed = list(entries)
        if listed:
            self._append([entry.line() for entry in listed])
            self.entries.update((entry.key, entry) for entry in listed)

    def _append(self, lines: list[bytes]) -> None:
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)

    def _load(self, data: bytes) -> int:
        """Take the lines in; return how many bytes are whole lines."""
        whole = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                if number == 1:
                    self._check(json.loads(line))
                    continue
                entry = Entry.of_line(line)
            except (ValueError, KeyError, TypeError) as error:
                raise JobError(
                    f"line {number} of the ledger {self.path} is damaged ({error}). Without it "
                    "letters may be sent twice: fix the line, or remove the file if that is "
                    "acceptable."
                ) from error
            self.entries[entry.key] = entry
        return whole

    def _check(self, document: dict[str, Any]) -> None:
        if document.get("v") != VERSION:
            raise ValueError(f"version {document.get('v')!r}, this release knows {VERSION}")
        if document["group"] != self._group:
            raise JobError(
                f"the ledger {self.path} is of group {document['group']}, not {self._group}: "
                "give each group its own --ledger"
            )

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
