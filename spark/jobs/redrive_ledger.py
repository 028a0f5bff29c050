"""What became of each dead letter that a redrive took on: lines, durable as they come (`line_log`).

    {"v":1,"group":"g"}                                              the first line
    {"letter":[broker,queue,offset,id],"event":"intent","to":[topic,broker,queue],"from":120,
     "at":"2026-01-31T05:00:00Z"}                                    durable before it is sent
    {"letter":[...],"event":"sent","status":"SEND_OK","offset":123,...}    and after it
    {"letter":[...],"event":"failed","error":"..."}                  the broker refused: not stored
    {"letter":[...],"event":"unknown","error":"..."}                 no answer came

The last line of a letter counts. One whose last line is `sent` is never sent again. An intent
without an outcome is one whose run was killed: like `unknown`, its copy may be there or not, and
`from` says from which offset of the target queue on it would be.

A file of the driver's disk, or a place in an object store; one thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final, Literal, NamedTuple, Self

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.ledgers.line_log import line_log
from skylarkmq.spark.storage import Location

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
        """Return its line, without a line feed."""
        document: dict[str, Any] = {"letter": list(self.key), "event": self.state, "at": self.at}
        if self.target is not None:
            document |= {"to": list(self.target), "from": self.from_offset}
        if self.state == "sent":
            document |= {"status": self.status, "offset": self.queue_offset}
        if self.error:
            document["error"] = self.error
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

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

    Read-only it takes nothing and makes nothing, as a dry run wants it.
    """

    def __init__(
        self,
        place: Location,
        group: str,
        *,
        read_only: bool = False,
        clock: BlockingClock | None = None,
    ) -> None:
        self.place = place
        self.entries: dict[LetterKey, Entry] = {}
        self._group = group
        self._read_only = read_only
        self._log = line_log(place, f"redrive of {group}", clock)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Read what is there, and take the ledger for this process.

        Raises:
            JobError: it is of another group, or damaged.
            InUseError: another process has it.
            StorageError, OSError: it cannot be used.
        """
        if self._read_only:
            self._load(self._log.read())
            return self
        with ExitStack() as stack:
            stack.enter_context(self._log)
            lines = self._log.read()
            self._load(lines)
            if not lines:
                self._log.append([json.dumps({"v": VERSION, "group": self._group}).encode()])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def record(self, entries: Iterable[Entry]) -> None:
        """Add lines; they are durable when it returns. RocketMQError, OSError: they may not be."""
        listed = list(entries)
        if listed:
            self._log.append([entry.line() for entry in listed])
            self.entries.update((entry.key, entry) for entry in listed)

    def _load(self, lines: Iterable[bytes]) -> None:
        for number, line in enumerate(lines, 1):
            try:
                if number == 1:
                    self._check(json.loads(line))
                    continue
                entry = Entry.of_line(line)
            except (ValueError, KeyError, TypeError) as error:
                raise JobError(
                    f"line {number} of the ledger {self.place} is damaged ({error}). Without it "
                    "letters may be sent twice: fix the line, or remove the ledger if that is "
                    "acceptable."
                ) from error
            self.entries[entry.key] = entry

    def _check(self, document: dict[str, Any]) -> None:
        if document.get("v") != VERSION:
            raise ValueError(f"version {document.get('v')!r}, this release knows {VERSION}")
        if document["group"] != self._group:
            raise JobError(
                f"the ledger {self.place} is of group {document['group']}, not {self._group}: "
                "give each group its own --ledger"
            )
