"""What the journal of pop consumption says, and what that adds up to.

    Took      a receive has looked at a queue up to an offset, and these messages are in flight
    Done      one of them is: acknowledged, or moved to a retry topic or to the dead letters
    Left      one of them has a copy among the retries or the dead letters, which the log may lose
    Changed   one of them comes again at another time, has another handle, or was delivered again
    Moved     an administrator has moved the group: nothing is in flight, it goes on there
    Forgot    a topic or a group is no more

`PopState.apply` folds them in their order. In a queue all below `next_offset` was looked at; what
is not in flight of that is done. So a record that is missing in the middle could hide messages, and
none behind such a gap may be folded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

UNKNOWN: Final = -1
ACKNOWLEDGED: Final = -1
"""In place of a time: the message is acknowledged, but one before it in an ordered queue is not."""


class Key(NamedTuple):
    """A queue as one group consumes it for one topic.

    `kind` is 0 for a queue of the topic itself, 1 for the retry topic of pop, 2 for that of 4.x,
    3 for that of pop with a `+` in its name. `topic` is the one that is asked for, also for kinds 1
    and 3; for kind 2, which all topics of a group share, it is empty.
    """

    group: str
    topic: str
    kind: int
    queue_id: int


class Row(NamedTuple):
    """One message in flight."""

    offset: int  # in its queue
    physical_offset: int  # of its record in the log
    serial: int  # of the delivery: what its handle says; 0: nobody has it
    visible_ms: int  # from when on it comes again, ms since the epoch; or ACKNOWLEDGED
    attempt: int  # 1 for the first delivery
    copy_physical: int = UNKNOWN  # where its copy lies, while the log may still lose that


class Took(NamedTuple):
    """What a receive has taken, which may be nothing but an end that was looked at."""

    key: Key
    next_offset: int
    end_physical: int  # physical offset of the unit at next_offset - 1; UNKNOWN: as before
    rows: tuple[Row, ...]
    attempt_id: str = ""  # of an orderly group's open batch


class Done(NamedTuple):
    """A message that is consumed."""

    key: Key
    offset: int


class Left(NamedTuple):
    """A message that is done as soon as its copy is on the disk.

    The log is synced on its own. So after a power cut the copy may be missing: then the message
    itself comes again.
    """

    key: Key
    offset: int
    copy_physical: int


class Changed(NamedTuple):
    """A message in flight, as it is from now on."""

    key: Key
    offset: int
    serial: int
    visible_ms: int
    attempt: int


class Moved(NamedTuple):
    """A group that was moved by hand."""

    key: Key
    next_offset: int
    end_physical: int = UNKNOWN  # as `Took`; UNKNOWN: there is none


class Forgot(NamedTuple):
    """A group or a topic that is gone; None stands for any."""

    group: str | None
    topic: str | None


@dataclass(slots=True)
class KeyState:
    """How far a group is in a queue."""

    next_offset: int = 0
    end_physical: int = UNKNOWN  # of the unit before it
    rows: dict[int, Row] = field(default_factory=dict[int, Row])  # by offset
    attempt_id: str = ""

    @property
    def mark(self) -> int:
        """The group's offset: all below it is done."""
        return min(self.rows, default=self.next_offset)


class State(NamedTuple):
    """The whole of one queue, in place of all that was said of it before."""

    key: Key
    state: KeyState


class Whole(NamedTuple):
    """From the start of this file to here all is said: older files say nothing more."""

    last_serial: int


class Clean(NamedTuple):
    """A broker has stopped here, and had nothing more to say."""


Record: TypeAlias = Took | Done | Left | Changed | Moved | Forgot | State | Whole | Clean


@dataclass(slots=True)
class PopState:
    """How far all groups are.

    Attributes:
        last_serial: no handle has a greater one.
        is_clean: nothing came after a clean stop.
    """

    keys: dict[Key, KeyState] = field(default_factory=dict[Key, KeyState])
    last_serial: int = 0
    is_clean: bool = False

    def apply(self, record: Record) -> None:
        """Go on by one record. What does not speak of a message in flight changes none."""
        self.is_clean = False
        match record:
            case Took():
                self._took(record)
            case Done(key, offset):
                state = self.keys.get(key)
                if state is not None:
                    state.rows.pop(offset, None)
            case Left(key, offset, copy_physical):
                state = self.keys.get(key)
                if state is not None and offset in state.rows:
                    row = state.rows[offset]
                    state.rows[offset] = row._replace(copy_physical=copy_physical)
            case Changed():
                self._changed(record)
            case Moved(key, next_offset, end_physical):
                self.keys[key] = KeyState(next_offset, end_physical)
            case Forgot(group, topic):
                self._forgot(group, topic)
            case State(key, state):
                self.keys[key] = state
                self._note_serials(state.rows.values())
            case Whole(last_serial):
                self.last_serial = max(self.last_serial, last_serial)
            case Clean():
                self.is_clean = True

    def _took(self, took: Took) -> None:
        state = self.keys.get(took.key)
        if state is None:
            state = self.keys[took.key] = KeyState()
        state.next_offset = took.next_offset
        if took.end_physical != UNKNOWN:
            state.end_physical = took.end_physical
        state.attempt_id = took.attempt_id
        state.rows.update((row.offset, row) for row in took.rows)
        self._note_serials(took.rows)

    def _changed(self, changed: Changed) -> None:
        self.last_serial = max(self.last_serial, changed.serial)
        state = self.keys.get(changed.key)
        row = None if state is None else state.rows.get(changed.offset)
        if state is not None and row is not None:
            state.rows[changed.offset] = Row(
                row.offset, row.physical_offset, changed.serial, changed.visible_ms, changed.attempt
            )

    def _forgot(self, group: str | None, topic: str | None) -> None:
        gone = [
            key
            for key in self.keys
            if (group is None or key.group == group) and (topic is None or key.topic == topic)
        ]
        for key in gone:
            del self.keys[key]

    def _note_serials(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.last_serial = max(self.last_serial, row.serial)
