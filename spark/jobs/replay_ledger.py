"""What a replay has done, so that the same command continues where an earlier run ended.

    <ledger>/
      plan.json       what is replayed where; written before the first message is sent
      run             the id of the run at work; gone at its end (`hold`)
      queue-7.json    how far source queue number 7 of the plan is

Each object is replaced whole: {"v":1,"next":120,"sent":118,"size":90112,"run":...,"claim":...}: all
selected messages of the source queue below offset 120 are acknowledged by the target's broker, 118
of them, with bodies of 90,112 bytes. It is written after the acknowledgements, never before. When a
run is killed between the two, the next one sends the messages since the last write again, with the
same unique keys.

A task may outlive its run for a while, as when the driver was killed. It looks for the id of its
run whenever it writes, and stops when there is none or another one. Before it reads how far a queue
is it puts a claim of its own there; a task that had the queue before can then write it no more. So
two runs, or two tries of one task, do not mix.

The plan fixes the target queue of each source queue: a change would lose the order.
The place is a folder that driver and executors see, as the archive is, or in an object store.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple, Self

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.ledgers.hold import Hold, RunEndedError, require_run
from skylarkmq.spark.ledgers.objects import ChangedError, objects_at
from skylarkmq.spark.storage import Location

VERSION: Final = 1
PLAN: Final = "plan.json"
_QUEUE: Final = "queue-"
_NAME_LENGTH: Final = 12


class LedgerError(RocketMQError):
    """A replay's ledger is damaged, or cannot be opened."""


class Done(NamedTuple):
    """How far a source queue is."""

    next_offset: int = 0
    sent: int = 0
    size: int = 0
    """Bytes of bodies."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is replayed: the same selection goes on with its ledger, another has its own."""

    archive: str
    """Absolute path, or URI."""
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
        """Return the text of its object."""
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
    """A ledger at a place. The driver opens it with `with`; tasks claim and record.

    Picklable: tasks get the place and the run.
    """

    def __init__(
        self, place: Location, run_id: str = "", clock: BlockingClock | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            run_id: of the run that a task belongs to; that of an open ledger is its own.
        """
        self.place = place
        self.run_id = run_id
        self._clock = clock
        self._objects = objects_at(place)
        self._hold: Hold | None = None
        self._plan_tag: str | None = None
        self._claims: dict[int, tuple[str, str]] = {}
        """By queue number: a claim of this object's own, and the version that has it."""

    def __reduce__(self) -> tuple[type[Ledger], tuple[Location, str]]:
        return Ledger, (self.place, self.run_id)

    def __enter__(self) -> Self:
        """Take the place for this run.

        Raises:
            InUseError: another run holds it.
            LedgerError, StorageError: the place cannot be used.
        """
        hold = Hold(self.place, "replay", self._clock)
        try:
            hold.__enter__()
        except OSError as error:
            raise LedgerError(f"the ledger {self.place} cannot be opened: {error}") from error
        self._hold, self.run_id = hold, hold.run_id
        return self

    def __exit__(self, *_: object) -> None:
        if self._hold is not None:
            self._hold.__exit__()
            self._hold = None

    def end_run(self) -> None:
        """Let no task write any longer."""
        if self._hold is not None:
            self._hold.end()

    def require_run(self) -> None:
        """Check that the run is still the one at work.

        Raises:
            RunEndedError: it has ended.
        """
        require_run(self._objects, self.run_id)

    def plan(self) -> ReplayPlan | None:
        """Return the plan of an earlier run, None when there was none.

        Raises:
            LedgerError: it cannot be read.
        """
        found = self._objects.read(PLAN)
        self._plan_tag = None if found is None else found.tag
        if found is None:
            return None
        try:
            document = _document(found.data)
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
        """Keep a plan in the place of the one that `plan` read; its queues keep their numbers."""
        self._plan_tag = self._objects.write(PLAN, plan.to_json(), self._plan_tag)

    def forget(self) -> None:
        """Forget what earlier runs did: all is to be sent again."""
        self._objects.remove(PLAN)
        self._plan_tag = None
        self._claims.clear()
        for name in self._objects.names():
            if name.startswith(_QUEUE):
                self._objects.remove(name)

    def done(self, number: int) -> Done:
        """Return how far the plan's source queue `number` is; zeros when nothing is recorded.

        Raises:
            LedgerError: the record cannot be read.
        """
        return self._read(number)[0]

    def all_done(self, plan: ReplayPlan | None) -> dict[MessageQueue, Done]:
        """Return how far each source queue of a plan is; nothing without a plan."""
        sources = plan.targets if plan else ()
        return {queue: self.done(number) for number, queue in enumerate(sources)}

    def claim(self, number: int) -> Done:
        """Return how far a source queue is, and let nobody but this object record it.

        Raises:
            RunEndedError: another one claims it at the same time.
            LedgerError: the record cannot be read.
        """
        done, tag = self._read(number)
        self._write(number, done, uuid.uuid4().hex, tag)
        return done

    def record(self, number: int, done: Done) -> None:
        """Keep how far a source queue is, after `claim`; durable when it returns.

        Raises:
            RunEndedError: another one has claimed it.
        """
        self._write(number, done, *self._claims[number])

    # Inside

    def _write(self, number: int, done: Done, claim: str, tag: str | None) -> None:
        document = {"v": VERSION, "next": done.next_offset, "sent": done.sent, "size": done.size,
                    "run": self.run_id, "claim": claim}  # fmt: skip
        try:
            tag = self._objects.write(_queue_name(number), json.dumps(document).encode(), tag)
        except ChangedError:
            raise RunEndedError("another run or try of this task sends this queue now") from None
        self._claims[number] = claim, tag

    def _read(self, number: int) -> tuple[Done, str | None]:
        name = _queue_name(number)
        found = self._objects.read(name)
        if found is None:
            return Done(), None
        try:
            document = _document(found.data)
            done = Done(int(document["next"]), int(document["sent"]), int(document["size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(name, error) from error
        return done, found.tag

    def _damaged(self, name: str, error: Exception) -> LedgerError:
        return LedgerError(
            f"{self.place.child(name)} cannot be read ({error})",
            hint="Look how far the target is, then use --restart, which sends all again, or "
            "another --ledger",
        )


def _queue_name(number: int) -> str:
    return f"{_QUEUE}{number}.json"


def _document(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(data)
    if not isinstance(document, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("no JSON object")
    if document.get("v") != VERSION:
        raise ValueError(f"version {document.get('v')!r}, this release knows {VERSION}")
    return document
