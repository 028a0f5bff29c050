"""What the replicas of one broker name ask of a coordination engine. No I/O: names and shapes.

The engine keeps a few small keys and lets one change through at a time. It counts its changes: the
count after a change is that change's *revision*. A *lease* is a promise to come back: while it
is renewed the keys that are bound to it stay, and when it ends they are deleted.

Rules that every implementation keeps, and that replication builds on:

- `read` and `swap` are linearizable: each sees what any replica was told was done before it began.
- `swap` happens once or not at all. It is never repeated behind the caller's back, so a REFUSED is
  about other people's changes, never about the caller's own.
- An error of `swap` says that nothing changed; when that is not certain, it returns UNKNOWN.
  One that is cancelled is UNKNOWN, too. It may still happen later: read again, and let the
  next swap name the revision that was read. Whichever of the two comes first, the other is refused.
- A lease ends no sooner than its time to live after the last renewal that was *sent*. It may end
  later. So the holder counts from before it asks, and needs no clock that agrees with the engine's.

Loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

NO_LEASE: Final = 0
"""In an entry, a condition or a change: bound to no lease."""
MISSING: Final = 0
"""In a condition: the key must not exist."""


class CoordinationError(Exception):
    """The engine was not reached, refused, or said what it cannot mean; tells cause and cure.

    From `swap`: nothing changed.
    """


class LeaseEndedError(CoordinationError):
    """A change names a lease that has ended, so nothing of its swap happened."""


class CompactedError(CoordinationError):
    """The engine has forgotten the changes that a watch asks for: read, then watch from there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it was read."""

    key: str
    """Below the prefix of this broker name, such as `state` or `alive/<replica id>`."""
    value: bytes
    revision: int
    """Of its last change, 1 or more."""
    lease: int
    """It is deleted when this lease ends; NO_LEASE: bound to none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys below the prefix, at one moment."""

    revision: int
    """Of the engine at that moment; `watch` goes on from here."""
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Event:
    """What one change did to keys below the prefix: all of it, never a part."""

    revision: int
    entries: Mapping[str, Entry | None]
    """Those that changed; None: deleted, by a swap or by the end of a lease."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of a key for a swap to happen."""

    key: str
    revision: int | None = None
    """Its last change must be this one; MISSING: it must not exist; None: whichever."""
    lease: int | None = None
    """It must be bound to this lease; NO_LEASE: to none, as a missing key is; None: whichever."""


@dataclass(frozen=True, slots=True)
class Change:
    """A key to put or, when `value` is None, to delete; deleting a missing key is no error."""

    key: str
    value: bytes | None
    lease: int = NO_LEASE
    """Bind it to this lease; NO_LEASE also frees a key that was bound to one."""


class Swapped(Enum):
    """How a swap ended."""

    DONE = "done"
    REFUSED = "refused"
    """A condition did not hold; nothing changed."""
    UNKNOWN = "unknown"
    """No answer, or none that can be trusted: it happened, did not happen, or will yet."""


class Coordination(Protocol):
    """One broker name's part of a coordination engine."""

    async def read(self) -> Snapshot:
        """Return all keys below the prefix.

        Raises:
            CoordinationError: not reached, or nonsense.
        """
        ...

    async def swap(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Swapped:
        """Make all changes if all conditions hold, else none.

        Raises:
            ValueError: see `check_swap`.
            LeaseEndedError: a change names a lease that has ended; nothing changed.
            CoordinationError: it certainly did not happen.
        """
        ...

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease that lives for `ttl_s` seconds, or longer if the engine says so.

        When the answer is lost a lease may be left over; it ends by itself.

        Raises:
            CoordinationError: not reached, or nonsense.
        """
        ...

    async def renew(self, lease: int) -> bool:
        """Let the lease live for its time again; False only when it has ended.

        Raises:
            CoordinationError: not reached, or nonsense; it may have been renewed.
        """
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease now and delete its keys; one that has ended is no error.

        Raises:
            CoordinationError: not reached, or nonsense; it may have ended.
        """
        ...

    def watch(self, after_revision: int) -> AsyncGenerator[Event]:
        """Yield each event after `after_revision`, once, in order; never ends without an error.

        A watch that says nothing proves nothing: the engine's member that it is connected to may be
        behind. Who must know reads. Close it (`aclosing`) when it is not wanted any more.

        Raises:
            CompactedError: the engine has forgotten those events: read again.
            CoordinationError: lost, or nonsense: read again, then watch from there.
        """
        ...


def check_swap(conditions: Sequence[Condition], changes: Sequence[Change]) -> None:
    """Check that a swap says one thing about each key that it changes.

    Raises:
        ValueError: a key is empty or changed twice, a number is negative, a deletion has a lease.
    """
    changed = [change.key for change in changes]
    if not all(changed) or not all(condition.key for condition in conditions):
        raise ValueError("a key is empty: name the key below the prefix")
    if len(set(changed)) < len(changed):
        raise ValueError(f"a swap changes each key once, not {sorted(changed)}")
    for condition in conditions:
        if (condition.revision or 0) < 0 or (condition.lease or 0) < 0:
            raise ValueError(f"revisions and leases are 0 or more: {condition}")
    for change in changes:
        if change.lease < 0 or (change.value is None and change.lease):
            raise ValueError(f"a lease is 0 or more, and a deletion binds nothing: {change}")
