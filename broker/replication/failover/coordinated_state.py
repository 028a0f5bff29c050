"""What the replicas of one broker name keep in the coordination engine, as JSON.

    key                 value                                               ends with its lease
    state               term, master, members in sync, start, last terms    no
    master              replica id, term                                    yes
    alive/<replica>     addresses, durable end, priority                    yes
    replicas/<replica>  broker id, log file size, format                    no
    set                 an id made with the first replica                   no

`state` alone decides who leads. It changes by compare-and-swap on its own revision, and `master` in
the same swap, so no reader sees one without the other. Whatever is read is checked first: nonsense
is an error that says which key, and nothing is taken from it.

A *replica id* names a log that keeps what it confirmed. It lies beside the store, so it goes with
the disk. Where ASYNC_FLUSH lost a tail (the machine started anew without an orderly stop), the
replica takes a new id: it is a new one, and a member of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Self

import msgspec

from skylarkmq.broker.replication.failover.coordination import Entry, Snapshot
from skylarkmq.broker.replication.failover.terms import (
    Lineage,
    LineageError,
    last_term,
    lineage_of,
)

STATE: Final = "state"
MASTER: Final = "master"
ALIVE: Final = "alive/"
REPLICAS: Final = "replicas/"
SET: Final = "set"

TERMS_KEPT: Final = 8
"""Rows of the master's lineage that `state` shows."""

_Number = Annotated[int, msgspec.Meta(ge=0)]
_FromOne = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class CoordinatedStateError(Exception):
    """A key holds what no broker of this release can have written."""


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """The value of one key; the fields that a later release adds are passed over."""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, key: str, value: bytes) -> Self:
        """Return the record that a key holds.

        Raises:
            CoordinatedStateError: it is none.
        """
        try:
            record = msgspec.json.decode(value, type=cls)
            record.check()
        except (msgspec.MsgspecError, ValueError, RecursionError, LineageError) as error:
            raise CoordinatedStateError(
                f"the key {key!r} of the coordination engine is not ours: {error}; is the prefix "
                "shared with another program, or written by a later release?"
            ) from error
        return record

    def check(self) -> None:
        """Raise ValueError or LineageError where the fields do not fit together."""


class StateRecord(_Record, frozen=True):
    """Who leads, and whom an acknowledgement waits for."""

    term: _FromOne
    master: _Text  # replica id
    in_sync: tuple[str, ...]  # replica ids in order, the master among them
    start: _Number  # no offset from here on was acknowledged before this term
    lineage: Lineage = ()  # the last terms of the master's log, this one last

    def check(self) -> None:
        if list(self.in_sync) != sorted(set(self.in_sync)) or self.master not in self.in_sync:
            raise ValueError(f"{self.in_sync} are no members in sync, with master {self.master!r}")
        if last_term(lineage_of(self.lineage)) != self.term:
            raise ValueError(f"the last of its terms is not {self.term}")


class MasterRecord(_Record, frozen=True):
    """Who holds the lease of a master."""

    replica: _Text
    term: _FromOne


class AliveRecord(_Record, frozen=True):
    """A replica whose process runs."""

    address: _Text  # host:port for clients
    ha_address: _Text  # host:port for other replicas
    durable_end: _Number  # of its log when this was written: later ones are not, it is a hint
    priority: _Number = 0  # brokerElectionPriority: the lower one goes first at the same end


class ReplicaRecord(_Record, frozen=True):
    """A replica as it was made; it never changes."""

    broker_id: _Number
    log_file_size: _FromOne  # bytes; the same on all replicas, or their logs differ
    format: _FromOne


class SetRecord(_Record, frozen=True):
    """Which set of replicas this is; terms of two sets have the same numbers."""

    id: _Text


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All keys at one moment, checked. Later views have higher revisions."""

    revision: int
    state: StateRecord | None = None
    state_revision: int = 0  # of the last change of `state`, 0 while there is none
    master: MasterRecord | None = None  # None: its lease has ended, or it gave it back
    master_lease: int = 0
    alive: Mapping[str, AliveRecord] = field(default_factory=dict[str, AliveRecord])
    leases: Mapping[str, int] = field(default_factory=dict[str, int])
    replicas: Mapping[str, ReplicaRecord] = field(default_factory=dict[str, ReplicaRecord])
    set_id: str = ""  # empty before the first replica


def view_of(snapshot: Snapshot) -> ClusterView:
    """Return what a snapshot says. Keys that are not ours are passed over.

    Raises:
        CoordinatedStateError: a key of ours holds nonsense.
    """
    entries = snapshot.entries
    state, master, of_set = entries.get(STATE), entries.get(MASTER), entries.get(SET)
    alive = _below(entries, ALIVE)
    return ClusterView(
        snapshot.revision,
        None if state is None else StateRecord.from_json(STATE, state.value),
        0 if state is None else state.revision,
        None if master is None else MasterRecord.from_json(MASTER, master.value),
        0 if master is None else master.lease,
        {name: AliveRecord.from_json(entry.key, entry.value) for name, entry in alive.items()},
        {name: entry.lease for name, entry in alive.items()},
        {
            name: ReplicaRecord.from_json(entry.key, entry.value)
            for name, entry in _below(entries, REPLICAS).items()
        },
        "" if of_set is None else SetRecord.from_json(SET, of_set.value).id,
    )


def _below(entries: Mapping[str, Entry], prefix: str) -> dict[str, Entry]:
    return {key[len(prefix) :]: entry for key, entry in entries.items() if key.startswith(prefix)}
