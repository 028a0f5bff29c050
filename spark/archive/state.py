"""What an archive's commits add up to: its files, and which offsets of each queue they hold.

    commits/000000000017.json    {"v": 1, "number": 17, "kind": "append", "run": "...", "at_ms": 1,
                                  "stage": "<run>/<batch>",
                                  "add": [[name, rows, size, first_ms, last_ms], ...],
                                  "remove": [name, ...],
                                  "spans": {...}, "last_ms": {...}, "start": {...}}

    kind      start    `start` alone: where the archive begins in queues that are new to it
              append   `add` holds just the offsets `spans`; last_ms is their latest storeTimestamp
              compact  `add` holds the messages of `remove`, no more and no less

A snapshot is a commit of kind `snapshot` that holds the sum: all files, all spans. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.offsets import QueueKey, QueueOffsets

VERSION: Final = 1
KINDS: Final = ("start", "append", "compact", "snapshot")


class ArchiveError(RocketMQError):
    """An archive is not there, damaged, in use, or would be given what it cannot hold."""


class DataFile(NamedTuple):
    """A file of messages as a commit names it."""

    name: str
    """Its path below the table, parted by slashes."""
    rows: int
    size: int
    """Bytes."""
    first_ms: int
    last_ms: int
    """The least and the greatest storeTimestamp."""

    @property
    def folder(self) -> str:
        """The folder of its partition below the table."""
        return self.name.rpartition("/")[0]

    def value(self, column: str) -> str | None:
        """Return the value of a partition column, None where the table has no such one."""
        for part in self.name.split("/")[:-1]:
            key, _, text = part.partition("=")
            if key == column:
                return unquote(text)
        return None


def partition_folder(topic: str, date: str, hour: str | None = None) -> str:
    """Return the folder of a partition below the table."""
    folder = f"topic={quote(topic, safe='')}/date={date}"
    return folder if hour is None else f"{folder}/hour={hour}"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit; see the module."""

    number: int
    kind: str
    run: str = ""
    at_ms: int = 0
    stage: str = ""
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    spans: Spans = field(default_factory=Spans)
    last_ms: QueueOffsets = field(default_factory=QueueOffsets)
    """Milliseconds by queue, in the form that offsets have."""
    start: QueueOffsets = field(default_factory=QueueOffsets)

    def to_json(self) -> bytes:
        """Return the file's bytes."""
        document = {
            "v": VERSION,
            "number": self.number,
            "kind": self.kind,
            "run": self.run,
            "at_ms": self.at_ms,
            "stage": self.stage,
            "add": [list(file) for file in self.add],
            "remove": list(self.remove),
            "spans": self.spans.to_json(),
            "last_ms": self.last_ms.to_json(),
            "start": self.start.to_json(),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Commit:
        """Return the commit of a file.

        Raises:
            ArchiveError: not such a file, or one of a later release.
        """
        try:
            document: dict[str, Any] = json.loads(data)
            if document["v"] != VERSION:
                raise ArchiveError(
                    f"{where} is of version {document['v']!r}, this release knows {VERSION}",
                    hint="Use the release that wrote it, or a later one",
                )
            if document["kind"] not in KINDS:
                raise ValueError(f"kind {document['kind']!r}")
            return cls(
                number=int(document["number"]),
                kind=document["kind"],
                run=str(document["run"]),
                at_ms=int(document["at_ms"]),
                stage=str(document["stage"]),
                add=tuple(_data_file(entry) for entry in document["add"]),
                remove=tuple(map(str, document["remove"])),
                spans=Spans.from_json(document["spans"]),
                last_ms=QueueOffsets.from_json(document["last_ms"]),
                start=QueueOffsets.from_json(document["start"]),
            )
        except ArchiveError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(
                f"{where} is damaged: {type(error).__name__}: {error}",
                hint="Restore it from a backup: without it nobody knows which files count",
            ) from error


def _data_file(entry: Sequence[Any]) -> DataFile:
    name, rows, size, first_ms, last_ms = entry
    return DataFile(str(name), int(rows), int(size), int(first_ms), int(last_ms))


class TableState:
    """The sum of commits 1..number. One thread."""

    def __init__(self) -> None:
        self.number = 0
        self.files: dict[str, DataFile] = {}
        """By name, oldest commit first."""
        self.spans = Spans()
        self.last_ms: dict[QueueKey, int] = {}
        self.start: dict[QueueKey, int] = {}
        self.last: Commit | None = None
        """The last commit, unless a snapshot told of it."""

    def check(self, commit: Commit) -> None:
        """Refuse a commit that does not follow, or that would break a promise of the table.

        Raises:
            OverlapError: offsets that are there already.
            ArchiveError: files added twice, removed without being there, rows lost by compaction.
        """
        if commit.number != self.number + 1:
            raise ArchiveError(f"commit {commit.number} does not follow commit {self.number}")
        added = [file.name for file in commit.add]
        twice = len(set(added)) != len(added) or any(name in self.files for name in added)
        missing = [name for name in commit.remove if name not in self.files]
        if twice or missing or len(set(commit.remove)) != len(commit.remove):
            raise ArchiveError(
                f"commit {commit.number} adds a file twice, or removes an unknown one"
            )
        rows = sum(file.rows for file in commit.add)
        if commit.kind == "compact":
            before = sum(self.files[name].rows for name in commit.remove)
            if rows != before:
                raise ArchiveError(f"compaction would turn {before} messages into {rows}")
        elif commit.kind == "append":
            if commit.remove or rows != commit.spans.count():
                raise ArchiveError(f"{rows} messages, but {commit.spans.count()} offsets")
            self.spans.refuse_overlap(commit.spans)
        elif commit.add or commit.remove:
            raise ArchiveError(f"a commit of kind {commit.kind} has no files")

    def apply(self, commit: Commit) -> None:
        """Take in the next commit, or a snapshot as the first of all."""
        if commit.kind == "snapshot":
            self.files = {file.name: file for file in commit.add}
            self.last = None
        else:
            self.check(commit)
            for name in commit.remove:
                del self.files[name]
            self.files |= {file.name: file for file in commit.add}
            self.last = commit
        self.number = commit.number
        self.spans.add_all(commit.spans)
        for key, last_ms in commit.last_ms.items():
            self.last_ms[key] = max(last_ms, self.last_ms.get(key, 0))
        self.start |= commit.start

    def snapshot(self) -> Commit:
        """Return the sum as one commit."""
        return Commit(
            self.number,
            "snapshot",
            add=tuple(self.files.values()),
            spans=self.spans,
            last_ms=QueueOffsets(self.last_ms),
            start=QueueOffsets(self.start),
        )

    def next_offset(self, key: QueueKey) -> int | None:
        """Return where archiving goes on in a queue; None for one that the table does not know."""
        known = [at for at in (self.start.get(key), self.spans.end(key)) if at is not None]
        return max(known) if known else None

    def topics(self) -> list[str]:
        """Return the topics that the table knows, sorted."""
        return sorted({key.topic for key in (*self.start, *self.spans.queues())})

    def queues(self, topics: Iterable[str] | None = None) -> list[QueueKey]:
        """Return the queues that the table knows, sorted; of some topics, or of all."""
        wanted = None if topics is None else set(topics)
        known = {*self.start, *self.spans.queues()}
        return sorted(key for key in known if wanted is None or key.topic in wanted)
