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

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skylarkmq.broker.replication.failover.coordination import Entry, Snapshot
from skylarkmq.broker.replication.failover.terms import Lineage, LineageError, lineage_of

STATE: Final = "state"
MASTER: Final = "master"
ALIVE: Final = "alive/"
REPLICAS: Final = "replicas/"
SET: Final = "set"

TERMS_KEPT: Final = 8
"""Rows of the master's lineage that `state` shows."""


class CoordinatedStateError(Exception):
    """A key holds what no broker of this release can have written."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Who leads, and whom an acknowledgement waits for."""

    term: int  # from 1
    master: str  # replica id
    in_sync: tuple[str, ...]  # replica ids in order, the master among them
    start: int  # no offset from here on was acknowledged before this term
    lineage: Lineage = ()  # the last terms of the master's log, this one last

    def to_json(self) -> bytes:
        return _json(
            term=self.term,
            master=self.master,
            inSync=list(self.in_sync),
            start=self.start,
            lineage=[list(row) for row in self.lineage],
        )

    @classmethod
    def from_json(cls, value: bytes) -> StateRecord:
        fields = _Fields(STATE, value)
        members = tuple(fields.texts("inSync"))
        master = fields.text("master")
        if list(members) != sorted(set(members)) or master not in members:
            raise fields.error(f"{members} are no members in sync, with master {master!r}")
        term = fields.number("term", least=1)
        try:
            lineage = lineage_of(fields.pairs("lineage"))
        except LineageError as error:
            raise fields.error(str(error)) from error
        if not lineage or lineage[-1].term != term:
            raise fields.error(f"the last of its terms is not {term}")
        return cls(term, master, members, fields.number("start"), lineage)


@dataclass(frozen=True, slots=True)
class MasterRecord:
    """Who holds the lease of a master."""

    replica: str
    term: int

    def to_json(self) -> bytes:
        return _json(replica=self.replica, term=self.term)

    @classmethod
    def from_json(cls, value: bytes) -> MasterRecord:
        fields = _Fields(MASTER, value)
        return cls(fields.text("replica"), fields.number("term", least=1))


@dataclass(frozen=True, slots=True)
class AliveRecord:
    """A replica whose process runs."""

    address: str  # host:port for clients
    ha_address: str  # host:port for other replicas
    durable_end: int  # of its log when this was written: later ones are not, it is a hint
    priority: int = 0  # brokerElectionPriority: the lower one goes first at the same end

    def to_json(self) -> bytes:
        return _json(
            address=self.address,
            haAddress=self.ha_address,
            durableEnd=self.durable_end,
            priority=self.priority,
        )

    @classmethod
    def from_json(cls, key: str, value: bytes) -> AliveRecord:
        fields = _Fields(key, value)
        return cls(
            fields.text("address"),
            fields.text("haAddress"),
            fields.number("durableEnd"),
            fields.number("priority"),
        )


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """A replica as it was made; it never changes."""

    broker_id: int
    log_file_size: int  # bytes; the same on all replicas, or their logs differ
    format: int

    def to_json(self) -> bytes:
        return _json(brokerId=self.broker_id, logFileSize=self.log_file_size, format=self.format)

    @classmethod
    def from_json(cls, key: str, value: bytes) -> ReplicaRecord:
        fields = _Fields(key, value)
        return cls(
            fields.number("brokerId"),
            fields.number("logFileSize", least=1),
            fields.number("format", least=1),
        )


@dataclass(frozen=True, slots=True)
class SetRecord:
    """Which set of replicas this is; terms of two sets have the same numbers."""

    id: str

    def to_json(self) -> bytes:
        return _json(id=self.id)

    @classmethod
    def from_json(cls, value: bytes) -> SetRecord:
        return cls(_Fields(SET, value).text("id"))


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
        None if state is None else StateRecord.from_json(state.value),
        0 if state is None else state.revision,
        None if master is None else MasterRecord.from_json(master.value),
        0 if master is None else master.lease,
        {name: AliveRecord.from_json(entry.key, entry.value) for name, entry in alive.items()},
        {name: entry.lease for name, entry in alive.items()},
        {
            name: ReplicaRecord.from_json(entry.key, entry.value)
            for name, entry in _below(entries, REPLICAS).items()
        },
        "" if of_set is None else SetRecord.from_json(of_set.value).id,
    )


def _below(entries: Mapping[str, Entry], prefix: str) -> dict[str, Entry]:
    return {key[len(prefix) :]: entry for key, entry in entries.items() if key.startswith(prefix)}


def _json(**fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class _Fields:
    """The fields of one value, each checked as it is taken."""

    def __init__(self, key: str, value: bytes) -> None:
        self._key = key
        try:
            found: Any = json.loads(value)
        except ValueError as error:
            raise self.error(f"no JSON: {error}") from error
        if not isinstance(found, dict):
            raise self.error("no JSON object")
        self._found: dict[str, Any] = found  # pyright: ignore[reportUnknownMemberType]

    def error(self, why: str) -> CoordinatedStateError:
        return CoordinatedStateError(
            f"the key {self._key!r} of the coordination engine is not ours: {why}; is the prefix "
            "shared with another program, or written by a later release?"
        )

    def number(self, name: str, least: int = 0) -> int:
        value = self._found.get(name)
        if type(value) is not int or value < least:
            raise self.error(f"{name} is {value!r}, not a whole number from {least}")
        return value

    def text(self, name: str) -> str:
        value = self._found.get(name)
        if not isinstance(value, str) or not value:
            raise self.error(f"{name} is {value!r}, not a text")
        return value

    def texts(self, name: str) -> list[str]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"{name} is {values!r}, not a list of texts")
        return values

    def pairs(self, name: str) -> list[list[Any]]:
        values = self._list(name)
        if not all(isinstance(value, list) for value in values):
            raise self.error(f"{name} is {values!r}, not a list of pairs")
        return values

    def _list(self, name: str) -> list[Any]:
        value: Any = self._found.get(name)
        if not isinstance(value, list):
            raise self.error(f"{name} is {value!r}, not a list")
        return value  # pyright: ignore[reportUnknownVariableType]
