"""What an archive has of each queue: the sum of its commits, and what each of them says.

The commit info of a Delta table's commits has room for a program's own. An archive's commits say

    "skylarkmq": "{"v": 1, "n": 17, "kind": "append", "run": "5f...", "token": "c0...",
                   "whole": true, "start": {...}, "spans": {...}, "gone": {...}, "ends": {...}}"

    n        counts the archive's own commits from 1; also the version of its Delta transaction
    kind     start    where the archive begins in queues that are new to it
             append   the messages of a batch
             expire   whole dates or topics removed
             erase    single messages removed
    token    of this one commit, so that its writer knows it again after a lost answer
    start    {"v": 1, "o": {"T": {"broker-a": {"0": 17}}}}       the first offset of each queue
    spans    {"T": {"broker-a": {"0": [[17, 100], [120, 130]]}}} offsets that were archived, ever
    gone     as spans: those of them that were expired or erased
    ends     as start, with the messages before: where a batch ended, to know later whether the
             broker still has the same messages; earlier releases neither wrote nor read it
    whole    true: the others are the sum up to n; false: what n alone adds to the sum

The text is JSON; a long one is packed with zlib and begins with "z:". With few queues every commit
is whole, and the newest one tells all. With very many, one in WHOLE_EVERY is.

Pure; imports neither pyspark nor pyarrow nor deltalake.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.archive.spans import OverlapError, Spans
from skylarkmq.spark.offsets import QueueKey, QueueOffsets

VERSION: Final = 1
KINDS: Final = ("start", "append", "expire", "erase")
WHOLE_EVERY: Final = 32
SMALL: Final = 256
"""A sum of so many queues and runs at most stands in every commit."""
NOWHERE: Final = QueueOffsets()
_PLAIN_BYTES_MAX: Final = 4 * 1024
_PACKED: Final = "z:"


class ArchiveError(RocketMQError):
    """An archive is not there, damaged, or would be given what it cannot hold."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit adds to the sum."""

    start: QueueOffsets = field(default_factory=QueueOffsets)
    spans: Spans = field(default_factory=Spans)
    gone: Spans = field(default_factory=Spans)
    ends: QueueOffsets = field(default_factory=QueueOffsets)
    """Of queues whose message before is known."""


class ArchiveState:
    """The sum of commits 1..number. One thread."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.start: dict[QueueKey, int] = {}
        self.spans = Spans()
        # Invariant: whatever is gone is in `spans` too, so no run archives it again.
        self.gone = Spans()
        self.ends = QueueOffsets()
        self.note = ""
        """Set when the sum was not told but found in the table's rows: what is not known then."""

    def check(self, change: Change) -> None:
        """Refuse a change that would archive an offset twice.

        Raises:
            OverlapError: offsets that are there already, or were before they expired.
        """
        self.spans.refuse_overlap(change.spans)

    def apply(self, change: Change) -> None:
        """Take in the next change. Raises what `check` does; then nothing has changed."""
        self.check(change)
        self.number += 1
        self.start |= change.start
        self.spans.add_all(change.spans)
        self.gone.merge_all(change.gone)
        self.spans.merge_all(change.gone)
        self.ends = self.ends.updated(change.ends).knowing(change.ends.before)

    def copy(self) -> ArchiveState:
        """Return a state of its own with the same content."""
        other = ArchiveState(self.number)
        other.start = dict(self.start)
        other.spans, other.gone = self.spans.copy(), self.gone.copy()
        other.ends, other.note = self.ends, self.note
        return other

    def next_offset(self, key: QueueKey) -> int | None:
        """Return where archiving goes on in a queue; None for one that is not known."""
        known = [at for at in (self.start.get(key), self.spans.end(key)) if at is not None]
        return max(known) if known else None

    def present(self) -> Spans:
        """Return the offsets that the table should hold now."""
        return self.spans.without(self.gone)

    def topics(self) -> list[str]:
        """Return the topics that the archive knows, sorted."""
        return sorted({key.topic for key in (*self.start, *self.spans.queues())})

    def queues(self) -> list[QueueKey]:
        """Return the queues that the archive knows, sorted."""
        return sorted({*self.start, *self.spans.queues()})


@dataclass(frozen=True, slots=True)
class Note:
    """What one commit says; see the module."""

    number: int
    kind: str
    run: str
    token: str
    whole: bool
    change: Change
    """The sum where `whole`."""


def write_note(state: ArchiveState, change: Change, *, kind: str, run: str, token: str) -> str:
    """Return what the commit after `state` says that makes this change."""
    number = state.number + 1
    size = len(state.start) + state.spans.run_count() + state.gone.run_count()
    is_whole = number == 1 or number % WHOLE_EVERY == 0 or size <= SMALL
    if is_whole:
        after = state.copy()
        after.apply(change)
        change = Change(QueueOffsets(after.start), after.spans, after.gone, after.ends)
    document = {
        "v": VERSION,
        "n": number,
        "kind": kind,
        "run": run,
        "token": token,
        "whole": is_whole,
        "start": change.start.to_json(),
        "spans": change.spans.to_json(),
        "gone": change.gone.to_json(),
        "ends": change.ends.to_json(),
    }
    text = json.dumps(document, separators=(",", ":"))
    if len(text) <= _PLAIN_BYTES_MAX:
        return text
    return _PACKED + base64.b64encode(zlib.compress(text.encode())).decode("ascii")


def read_note(text: object, where: str) -> Note:
    """Return what a commit says.

    Raises:
        ArchiveError: it is damaged, or of a later release.
    """
    try:
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} is no text")
        if text.startswith(_PACKED):
            packed = base64.b64decode(text.removeprefix(_PACKED), validate=True)
            text = zlib.decompress(packed).decode()
        document: dict[str, Any] = json.loads(text)
        if document["v"] != VERSION:
            raise ArchiveError(
                f"the archive {where} is of version {document['v']!r}, this release knows "
                f"{VERSION}",
                hint="Use the release that wrote it, or a later one",
            )
        if document["kind"] not in KINDS:
            raise ValueError(f"kind {document['kind']!r}")
        return Note(
            int(document["n"]),
            document["kind"],
            str(document["run"]),
            str(document["token"]),
            bool(document["whole"]),
            Change(
                QueueOffsets.from_json(document["start"]),
                Spans.from_json(document["spans"]),
                Spans.from_json(document["gone"]),
                QueueOffsets.from_json(document["ends"]) if "ends" in document else NOWHERE,
            ),
        )
    except ArchiveError:
        raise
    except (ValueError, KeyError, TypeError, zlib.error, binascii.Error, OverlapError) as error:
        raise ArchiveError(
            f"a commit of the archive {where} is damaged: {type(error).__name__}: {error}",
            hint="Restore the table's _delta_log from a backup",
        ) from error


def sum_up(notes: Iterable[Note], newest: int) -> ArchiveState | None:
    """Return the sum of what commits say; None when they do not tell it.

    Args:
        notes: newest first; as many as are needed are taken.
        newest: the number that the newest one has to have.
    """
    changes: list[Change] = []
    number = newest
    for note in notes:
        if note.number != number:
            return None
        changes.append(note.change)
        if note.whole:
            state = ArchiveState(number - 1)
            for change in reversed(changes):
                state.apply(change)
            state.number = newest
            return state
        number -= 1
    return None
