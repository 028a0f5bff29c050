"""What a replay has done, so that the same command continues where an earlier run ended.

    <ledger>/
      plan.json       what is replayed where; written before the first message is sent
      lock            held (flock) by the run at work
      run             that run's id; gone at its end
      queue-7.json    how far source queue number 7 of the plan is

Each file is replaced whole and synced: {"v":1,"next":120,"sent":118,"size":90112}: all selected
messages of the source queue below offset 120 are acknowledged by the target's broker, 118 of them,
with bodies of 90,112 bytes. It is written after the acknowledgements, never before. When a run is
killed between the two, the next one sends the messages since the last write again, with the same
unique keys.

A task may outlive its run for a while, as when the driver was killed. It looks for the id of its
run whenever it writes, and stops when there is none or another one, so that two runs do not mix.

The plan fixes the target queue of each source queue: a change would lose the order.
The folder lies where driver and executors see it, as the archive does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.durable_folder import DurableFolder, take_lock

VERSION: Final = 1
PLAN: Final = "plan.json"
LOCK: Final = "lock"
RUN: Final = "run"
_NAME_LENGTH: Final = 12


class LedgerError(RocketMQError):
    """A replay's ledger is damaged, in use, or of another replay."""


class RunEndedError(LedgerError):
    """The run that a task belongs to has ended; seen by the task alone."""


class Done(NamedTuple):
    """How far a source queue is."""

    next_offset: int = 0
    sent: int = 0
    size: int = 0
    """Bytes of bodies."""

    def to_json(self) -> bytes:
        """Return the text of its file."""
        document = {"v": VERSION, "next": self.next_offset, "sent": self.sent, "size": self.size}
        return json.dumps(document).encode()


@dataclass(frozen=True, slots=True)
class Selection:
    """What is replayed: the same selection goes on with its ledger, another has its own."""

    archive: str
    """Absolute path."""
    topics: tuple[str, ...]
    target: str
    start_ms: int | None = None
    end_ms: int | None = None
    where: str = ""
    keep_ids: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Selection:
        """Return the selection of a parsed JSON object; KeyError where a part is missing."""
        parts: dict[str, Any] = {each.name: document[each.name] for each in fields(cls)}
        parts["topics"] = tuple(parts["topics"])
        return cls(**parts)

    @property
    def name(self) -> str:
        """A short name of its own, for a folder."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_NAME_LENGTH]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A selection, and where each of its source queues goes."""

    selection: Selection
    targets: Mapping[MessageQueue, MessageQueue] = field(
        default_factory=dict[MessageQueue, MessageQueue]
    )
    """Source queue to target queue, in the order of their numbers."""

    def to_json(self) -> bytes:
        """Return the text of its file."""
        queues = [[*source, *target[1:]] for source, target in self.targets.items()]
        document = {"v": VERSION, "selection": self.selection.to_json(), "queues": queues}
        return json.dumps(document, indent=1).encode()


def assign(
    sources: Sequence[MessageQueue], targets: Sequence[MessageQueue]
) -> dict[MessageQueue, MessageQueue]:
    """Return a target queue for each source queue: all of one source queue go to one queue.

    The queue of the same broker and number where there is one; else the targets in turn.
    """
    by_place = {(target.broker_name, target.queue_id): target for target in targets}
    found: dict[MessageQueue, MessageQueue] = {}
    for place, source in enumerate(sorted(sources)):
        same = by_place.get((source.broker_name, source.queue_id))
        found[source] = same or targets[place % len(targets)]
    return found


class Ledger:
    """A ledger's folder. The driver opens it with `with`; tasks read and record without the lock.

    Picklable before it is opened: it holds the path alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = DurableFolder(folder)
        self._lock: int | None = None

    def __reduce__(self) -> tuple[type[Ledger], tuple[Path]]:
        return Ledger, (self.folder,)

    def __enter__(self) -> Self:
        """Make the folder and take its lock.

        Raises:
            LedgerError: another run holds it, or the folder cannot be made.
        """
        lock = self.folder / LOCK
        try:
            self._files.make_folder("")
            self._lock = take_lock(lock)
        except OSError as error:
            raise LedgerError(f"the ledger {self.folder} cannot be opened: {error}") from error
        if self._lock is None:
            raise LedgerError(
                f"another run of this replay is at work: it holds {lock}",
                hint="Wait for its end, or end it",
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self.end_run()
            os.close(self._lock)
            self._lock = None

    def begin_run(self, run_id: str) -> None:
        """Let tasks of this run write, and tasks of earlier runs no longer."""
        self._files.replace(RUN, run_id.encode())

    def end_run(self) -> None:
        """Let no task write any longer."""
        self._files.remove(RUN)

    def require_run(self, run_id: str) -> None:
        """Check that a run is still the one at work.

        Raises:
            RunEndedError: it has ended.
        """
        found = self._read(RUN)
        if found != run_id.encode():
            raise RunEndedError("the replay that this task belongs to has ended")

    def plan(self) -> ReplayPlan | None:
        """Return the plan of an earlier run, None when there was none.

        Raises:
            LedgerError: it cannot be read.
        """
        data = self._read(PLAN)
        if data is None:
            return None
        try:
            document = _document(data)
            selection = Selection.from_json(document["selection"])
            targets = {
                MessageQueue(topic, broker, queue_id): MessageQueue(
                    selection.target, to_broker, to_id
                )
                for topic, broker, queue_id, to_broker, to_id in document["queues"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(PLAN, error) from error
        return ReplayPlan(selection, targets)

    def begin(self, plan: ReplayPlan) -> None:
        """Keep a plan; the queues of an earlier one keep their numbers in it."""
        self._files.replace(PLAN, plan.to_json())

    def forget(self) -> None:
        """Forget what earlier runs did: all is to be sent again."""
        self._files.remove(PLAN)
        for path in self.folder.glob("queue-*.json"):
            path.unlink()
        self._files.sync_folder("")

    def done(self, number: int) -> Done:
        """Return how far the plan's source queue `number` is; zeros when nothing is recorded.

        Raises:
            LedgerError: the record cannot be read.
        """
        name = _queue_file(number)
        data = self._read(name)
        if data is None:
            return Done()
        try:
            document = _document(data)
            return Done(int(document["next"]), int(document["sent"]), int(document["size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(name, error) from error

    def all_done(self, plan: ReplayPlan | None) -> dict[MessageQueue, Done]:
        """Return how far each source queue of a plan is; nothing without a plan."""
        sources = plan.targets if plan else ()
        return {queue: self.done(number) for number, queue in enumerate(sources)}

    def record(self, number: int, done: Done) -> None:
        """Keep how far a source queue is; durable when it returns. One task per queue."""
        self._files.replace(_queue_file(number), done.to_json())

    # Inside

    def _read(self, name: str) -> bytes | None:
        try:
            return self._files.read(name)
        except FileNotFoundError:
            return None

    def _damaged(self, name: str, error: Exception) -> LedgerError:
        return LedgerError(
            f"{self.folder / name} cannot be read ({error})",
            hint="Look how far the target is, then use --restart, which sends all again, or "
            "another --ledger",
        )


def _queue_file(number: int) -> str:
    return f"queue-{number}.json"


def _document(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(data)
    if not isinstance(document, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("no JSON object")
    if document.get("v") != VERSION:
        raise ValueError(f"version {document.get('v')!r}, this release knows {VERSION}")
    return document
