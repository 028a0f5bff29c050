"""The commits of an archive: what one says, what all of them add up to, and making one more.

    commits/000000000017.json    {"v": 1, "number": 17, "kind": "append", "run": "...", "at_ms": 1,
                                  "stage": "<run>/<batch>",
                                  "add": [[name, rows, size, first_ms, last_ms], ...],
                                  "remove": [name, ...],
                                  "spans": {...}, "last_ms": {...}, "start": {...}}

    kind      start    `start` alone: where the archive begins in queues that are new to it
              append   `add` holds just the offsets `spans`; last_ms is their latest storeTimestamp
              compact  `add` holds the messages of `remove`, no more and no less

A snapshot is a commit of kind `snapshot` that holds the sum: all files, all spans.

`load` is for readers and changes nothing. `ArchiveWriter` is for the one job that writes; it first
ends what a killed job has left half done. The steps, and what a reader sees between them, stand in
archive_table. Driver process, one thread.
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, unquote

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.durable_folder import DurableFolder, take_lock
from skylarkmq.spark.offsets import QueueKey, QueueOffsets

FORMAT: Final = 1
META: Final = "_skylarkmq"
LOCK: Final = f"{META}/lock"
TABLE: Final = f"{META}/table.json"
COMMITS: Final = f"{META}/commits"
SNAPSHOTS: Final = f"{META}/snapshots"
STAGING: Final = f"{META}/staging"
RUNS: Final = f"{META}/runs"
"""What a run keeps for itself, as Spark's checkpoint; gone with it."""
STAGED: Final = ".staged"
SNAPSHOT_EVERY: Final = 64
TRIES: Final = 5
"""How often a reader starts anew while a writer moves what it looks at."""
_NUMBERED: Final = re.compile(r"[0-9]{12}\.json", re.ASCII)
_GLOB: Final = re.compile(r"[*?\[\]{}\n\r]")
COMMIT_VERSION: Final = 1
KINDS: Final = ("start", "append", "compact", "snapshot")


class ArchiveError(RocketMQError):
    """An archive is not there, damaged, in use, or would be given what it cannot hold."""


class DataFile(NamedTuple):
    """A file of messages as a commit names it."""

    name: str
    """Its path below the table, separated by slashes."""
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
            "v": COMMIT_VERSION,
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
            if document["v"] != COMMIT_VERSION:
                raise ArchiveError(
                    f"{where} is of version {document['v']!r}, this release knows {COMMIT_VERSION}",
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
                hint="Restore it from a backup: without it, which files count is not known",
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


def open_files(path: str | Path) -> DurableFolder:
    """Return the disk of a table's folder, which need not exist.

    Raises:
        ArchiveError: a path that is no folder of a mounted disk, or that Spark takes for a pattern.
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ArchiveError(
            f"an archive lies on a disk that is mounted here, not at {text[:80]}",
            hint="Mount it on driver and executors at the same path",
        )
    if not text or _GLOB.search(text):
        raise ArchiveError(f"the path {text[:80]!r} is empty or has one of *?[]{{}}")
    return DurableFolder(Path(text).absolute())


def staged_name(stage: str, name: str) -> str:
    """Return where a file lies before it is in place, below the table."""
    return f"{STAGING}/{stage}/{name}{STAGED}"


def load(files: DurableFolder) -> TableState:
    """Return what the commits add up to; waits for no writer.

    Raises:
        ArchiveError: no archive, a damaged one, one of a later release.
    """
    table_hourly(files)
    for _ in range(TRIES):
        try:
            return _load(files)
        except FileNotFoundError:  # a writer has just put a snapshot in the place of commits
            continue
    raise _damaged(files, f"commits vanish from {COMMITS} while they are read")


def table_hourly(files: DurableFolder) -> bool:
    """Return whether the table is divided by hour too.

    Raises:
        ArchiveError: no archive, or one of a later release.
    """
    try:
        document = json.loads(files.read(TABLE))
        version, partition = document["v"], document["partition"]
    except (FileNotFoundError, NotADirectoryError):
        raise ArchiveError(
            f"there is no archive in {files.root}", hint="The job archive makes one"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(files, f"{TABLE} cannot be read: {error}") from error
    if version != FORMAT or partition not in (["topic", "date"], ["topic", "date", "hour"]):
        raise ArchiveError(
            f"the archive {files.root} is of version {version!r}, this release knows {FORMAT}",
            hint="Use the release that wrote it, or a later one",
        )
    return len(partition) == 3


def _load(files: DurableFolder) -> TableState:
    commits, snapshots = _numbers(files, COMMITS), _numbers(files, SNAPSHOTS)
    state = TableState()
    if snapshots:
        name = _file_name(SNAPSHOTS, snapshots[-1])
        state.apply(Commit.from_json(files.read(name), str(files.root / name)))
    for number in commits:
        if number <= state.number:
            continue
        name = _file_name(COMMITS, number)
        if number != state.number + 1:
            raise _damaged(files, f"{_file_name(COMMITS, state.number + 1)} is not there")
        state.apply(Commit.from_json(files.read(name), str(files.root / name)))
    return state


def _numbers(files: DurableFolder, folder: str) -> list[int]:
    return [int(name[:12]) for name in files.names(folder) if _NUMBERED.fullmatch(name)]


def _file_name(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}.json"


def _damaged(files: DurableFolder, why: str) -> ArchiveError:
    return ArchiveError(
        f"the archive {files.root} is damaged: {why}", hint="Restore what is missing from a backup"
    )


def lock_table(folder: DurableFolder, who: str) -> int:
    """Lock the folder of a table for this process; return a descriptor that holds the lock.

    Args:
        who: what the next one who wants the lock is shown, beside this process and its host.

    Raises:
        ArchiveError: another job has it.
    """
    descriptor = take_lock(folder.root / LOCK)
    if descriptor is None:
        other = folder.read(LOCK)[:200].decode("utf-8", "replace").strip()
        raise ArchiveError(
            f"another job writes into {folder.root}: {other or 'unknown'}",
            hint="Wait for it, or stop it; readers need not wait",
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, {who}\n".encode(), 0)
    return descriptor


class ArchiveWriter:
    """The one writer of a table; a context manager. Makes the table where there is none.

    Args:
        hourly: divide a new table by hour too; None takes it as it is.
        now_ms: the time of day, for the record alone.
    """

    def __init__(
        self, files: DurableFolder, *, hourly: bool | None = None, now_ms: Callable[[], int]
    ) -> None:
        self.files = files
        self.run = uuid.uuid4().hex[:12]
        self.state = TableState()
        self.hourly = bool(hourly)
        self._asked_hourly = hourly
        self._now_ms = now_ms
        self._lock = -1
        # A commit that failed on its way may count or not: the next run's `load` tells.
        self._broken = False

    def __enter__(self) -> Self:
        """Lock the table and end what a killed writer left half done.

        Raises:
            ArchiveError: it is in use or damaged, or not divided as asked for.
        """
        files = self.files
        if files.size(TABLE) is None and set(files.names("")) - {META}:
            raise ArchiveError(
                f"{files.root} is not empty, and no archive", hint="Name another folder"
            )
        for folder in (COMMITS, SNAPSHOTS, STAGING):
            files.make_folder(folder)
        self._lock = lock_table(files, f"run {self.run}")
        try:
            self._open_table()
            self.state = load(files)
            self._finish()
            for folder in (STAGING, RUNS):
                for run in files.names(folder):
                    files.remove_folder(f"{folder}/{run}")
            for folder in (META, COMMITS, SNAPSHOTS):
                for name in files.names(folder):
                    if name.endswith(".new"):
                        files.remove(f"{folder}/{name}")
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._broken:
                self.files.remove_folder(f"{STAGING}/{self.run}")
            self.files.remove_folder(f"{RUNS}/{self.run}")
        finally:
            os.close(self._lock)

    def stage(self, batch: str) -> str:
        """Return the name of a new batch's staging folder; tasks make it."""
        return f"{self.run}/{batch}"

    def begin(self, start: Mapping[QueueKey, int]) -> None:
        """Note where the archive begins in queues that are new to it.

        Without this, a queue that is empty now would begin at `latest` again with the next run, and
        what came between the two runs would be missing.
        """
        new = {key: at for key, at in start.items() if self.state.next_offset(key) is None}
        if new:
            self._commit("start", start=QueueOffsets(new))

    def append(self, batch: str, reports: Iterable[Mapping[str, Any]]) -> int:
        """Commit what tasks have staged for a batch; return the number of messages.

        Args:
            reports: what `StagedWriter.close` gave, one for each task that counts.

        Raises:
            OverlapError: an offset would be there twice.
            ArchiveError: staged files that the driver does not see.
        """
        added: list[DataFile] = []
        spans = Spans()
        last_ms: dict[QueueKey, int] = {}
        for report in reports:
            added += [DataFile(*entry) for entry in report["files"]]
            spans.add_all(Spans.from_json(report["spans"]))
            for key, at_ms in QueueOffsets.from_json(report["last_ms"]).items():
                last_ms[key] = max(at_ms, last_ms.get(key, 0))
        if added:
            self._commit(
                "append", self.stage(batch), added, spans=spans, last_ms=QueueOffsets(last_ms)
            )
        self.files.remove_folder(f"{STAGING}/{self.stage(batch)}")
        return sum(file.rows for file in added)

    def replace(self, batch: str, added: Sequence[DataFile], removed: Sequence[str]) -> None:
        """Commit staged files in the place of others that hold the same messages.

        Raises:
            ArchiveError: they hold fewer or more.
        """
        self._commit("compact", self.stage(batch), added, removed=removed)
        self.files.remove_folder(f"{STAGING}/{self.stage(batch)}")

    def _commit(
        self,
        kind: str,
        stage: str = "",
        added: Sequence[DataFile] = (),
        *,
        removed: Sequence[str] = (),
        spans: Spans | None = None,
        last_ms: QueueOffsets | None = None,
        start: QueueOffsets | None = None,
    ) -> None:
        commit = Commit(
            number=self.state.number + 1,
            kind=kind,
            run=self.run,
            at_ms=self._now_ms(),
            stage=stage,
            add=tuple(added),
            remove=tuple(removed),
            spans=spans or Spans(),
            last_ms=last_ms or QueueOffsets(),
            start=start or QueueOffsets(),
        )
        if self._broken:
            raise ArchiveError("the commit before this one failed", hint="Run the job again")
        self.state.check(commit)
        self._check_staged(commit)
        self._broken = True
        try:
            self.files.write_new(_file_name(COMMITS, commit.number), commit.to_json())
        except FileExistsError:
            raise ArchiveError(
                f"another job has written commit {commit.number} of the archive {self.files.root}",
                hint="One job at a time: is the folder shared in a way that knows no locks?",
            ) from None
        self.state.apply(commit)
        self._finish()
        self._broken = False
        self._snapshot_if_due()

    def _check_staged(self, commit: Commit) -> None:
        for file in commit.add:
            name = staged_name(commit.stage, file.name)
            size = self.files.size(name)
            if size != file.size:
                raise ArchiveError(
                    f"a task wrote {self.files.root / name} ({file.size} bytes), and the driver "
                    + ("does not see it" if size is None else f"sees {size} bytes"),
                    hint="Put the archive on a disk that driver and executors mount at one path",
                )
        # Tasks have synced the files' content; their names must be as durable before they count.
        folders = {STAGING}
        for file in commit.add:
            parts = f"{commit.stage}/{file.folder}".split("/")
            folders |= {"/".join([STAGING, *parts[:count]]) for count in range(1, len(parts) + 1)}
        for folder in sorted(folders) if commit.add else ():
            self.files.sync_folder(folder)

    def _finish(self) -> None:
        """Put the last commit's files into place; done already, it changes nothing."""
        commit = self.state.last
        if commit is None:
            return
        changed: set[str] = set()
        for name in commit.remove:
            if self.files.size(name) is not None:
                self.files.remove(name)
                changed.add(name.rpartition("/")[0])
        for file in commit.add:
            if self.files.size(file.name) is not None:
                continue
            staged = staged_name(commit.stage, file.name)
            if self.files.size(staged) is None:
                raise _damaged(self.files, f"{file.name} is gone")
            self.files.make_folder(file.folder)
            self.files.rename(staged, file.name)
            changed.add(file.folder)
        for folder in sorted(changed):
            self.files.sync_folder(folder)

    def _snapshot_if_due(self) -> None:
        """Sum up, and drop what the snapshot before the new one holds already."""
        number = self.state.number
        if number % SNAPSHOT_EVERY:
            return
        self.files.write_new(_file_name(SNAPSHOTS, number), self.state.snapshot().to_json())
        earlier = [old for old in _numbers(self.files, SNAPSHOTS) if old < number]
        for old in earlier[:-1]:
            self.files.remove(_file_name(SNAPSHOTS, old))
        for old in _numbers(self.files, COMMITS):
            if earlier and old <= earlier[-1]:
                self.files.remove(_file_name(COMMITS, old))

    def _open_table(self) -> None:
        if self.files.size(TABLE) is None:
            partition = ["topic", "date", "hour"] if self._asked_hourly else ["topic", "date"]
            document = {"v": FORMAT, "partition": partition}
            self.files.write_new(TABLE, json.dumps(document).encode())
        self.hourly = table_hourly(self.files)
        if self._asked_hourly is not None and self.hourly != self._asked_hourly:
            raise ArchiveError(
                f"the archive {self.files.root} is divided by {'hour' if self.hourly else 'date'}",
                hint="Leave the choice out, or archive into another folder",
            )
