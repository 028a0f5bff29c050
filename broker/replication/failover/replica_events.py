"""What a replica's state machine hears and says: messages, events, actions. No I/O.

Between replicas, over one connection each; all carry the term, and one of another term counts for
nothing:

    follower                                master
    Hello  (end, lineage)             ->
                                      <-    Welcome (common point, lineage) or Refused
    Confirm, after its log was cut    ->
                                      <-    Part, Part, ...   from the common point on
    Confirm, as it stores more        ->
                                      <-    Beat
    Promise                           ->
                                      <-    TakeOver, in a planned switch-over
    GoodBye, when it stops            ->

A `durable_end` says how far a log is stored by its flush mode: under ASYNC_FLUSH it is in the log
file, and a power cut may take it. Times are seconds of the replica's own monotonic clock. `session`
tells one connection of a follower from the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from skylarkmq.broker.replication.failover.coordinated_state import AliveRecord, ClusterView
from skylarkmq.broker.replication.failover.coordination import Change, Condition, Swapped
from skylarkmq.broker.replication.failover.terms import CommonPoint, Lineage, TermStart


@dataclass(frozen=True, slots=True)
class FailoverRules:
    """Times in seconds, and how many replicas must have a message."""

    lease_s: float = 10.0  # controllerLeaseTtl
    not_caught_up_s: float = 15.0  # haMaxTimeSlaveNotCatchup
    min_in_sync: int = 1  # minInSyncReplicas
    turn_s: float = 0.5  # that a better candidate is ahead of the next one
    silent_s: float = 4.0  # without a word of the master, a follower connects again
    stall_s: float = 30.0  # without a confirmation that is due, a master lets others try
    hand_over_s: float = 3.0  # for a planned switch-over

    @property
    def counted_lease_s(self) -> float:
        """How much of a lease or promise its holder counts on; the rest is for unequal clocks."""
        return self.lease_s * 0.8

    @property
    def reconnect_s(self) -> float:
        """From one try to follow the same master to the next."""
        return self.lease_s / 64

    @property
    def beat_s(self) -> float:
        """Between two beats, renewals, and readings of the state."""
        return self.lease_s / 8


class State(StrEnum):
    """Where a replica stands; `replica_state.py` says what each one does."""

    STARTING = "starting"
    FOLLOWER = "follower"
    WAITING = "waiting"
    CANDIDATE = "candidate"
    TAKING_OVER = "taking over"
    MASTER = "master"
    HANDING_OVER = "handing over"
    HANDED_OVER = "handed over"
    STEPPING_DOWN = "stepping down"
    HALTED = "halted"


class Sends(Enum):
    """Whether a send is taken."""

    TAKEN = "taken"
    NOT_MASTER = "this replica is not the master"
    TOO_FEW = "fewer replicas are in sync than minInSyncReplicas"


@dataclass(frozen=True, slots=True)
class LocalLog:
    """What a replica finds on its disk when it starts; all of it is durable."""

    end: int
    lineage: Lineage
    begin: int = 0


# Messages


@dataclass(frozen=True, slots=True)
class Hello:
    """A follower asks to be fed."""

    term: int
    session: int
    end: int  # of its log
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Welcome:
    """Where the follower's log agrees with the master's; it cuts the rest off."""

    term: int
    session: int
    point: CommonPoint | None  # None: nowhere, so it begins anew
    begin: int  # of the master's log: bytes below it were removed
    lineage: Lineage  # of the master's log


@dataclass(frozen=True, slots=True)
class Refused:
    """This replica feeds nobody in that term."""

    term: int  # that the answering replica knows
    session: int
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of the master's log, never across the start of a term; `confirmed` may be shown."""

    term: int
    session: int
    offset: int
    data: Sequence[object]
    confirmed: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """The follower's log is that of the master, and stored, up to here."""

    term: int
    session: int
    durable_end: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The master lives, and asks for a promise."""

    term: int
    session: int
    asked_s: float  # by the master's clock
    confirmed: int


@dataclass(frozen=True, slots=True)
class Promise:
    """The follower will not try to lead for one lease from when it got the beat."""

    term: int
    session: int
    asked_s: float  # from the beat
    durable_end: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The follower may lead at once: its master has stopped, and all is confirmed."""

    term: int
    session: int


@dataclass(frozen=True, slots=True)
class GoodBye:
    """The follower stops: nothing more comes of it before its next Hello."""

    term: int
    session: int


Message = Hello | Welcome | Refused | Part | Confirm | Beat | Promise | TakeOver | GoodBye


# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; comes several times in a beat."""


@dataclass(frozen=True, slots=True)
class Registered:
    """`alive/<me>` is bound to a new lease, asked for at `asked_s`."""

    lease: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class NotRegistered:
    """No lease was got, or it is not known whether `alive/<me>` is bound to it."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease lives again, from `asked_s` on."""

    lease: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The engine says that the lease has ended."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What the engine holds: the answer to `Read` number `read`, or a watch's word, read 0."""

    view: ClusterView
    read: int


@dataclass(frozen=True, slots=True)
class SwapEnded:
    """The answer to `Swap` number `swap`. LeaseEndedError counts as REFUSED."""

    swap: int
    outcome: Swapped


@dataclass(frozen=True, slots=True)
class LogMoved:
    """This replica's log has grown, more of it is stored, or old files went."""

    end: int
    durable_end: int
    begin: int | None = None  # None: where it was


@dataclass(frozen=True, slots=True)
class Frozen:
    """The answer to `Freeze`: nothing is appended any more, and all up to `end` is durable."""

    end: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """The answer to `CutBack`: the log ends at `end`, and its rows are `lineage`."""

    session: int
    end: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class TermBegun:
    """The answer to `BeginTerm`: the row is on the disk."""

    lineage: Lineage


@dataclass(frozen=True, slots=True)
class LeadingStopped:
    """The answer to `StopLeading`: everything that only a master runs has stopped."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to the master has ended, and with it a record that came in part.

    It comes after every `Append` of that connection was carried out.
    """

    session: int
    end: int  # of what was taken


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another replica."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Leave:
    """This replica stops, and hears nothing more."""


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """An operator wants another member to lead."""

    target: str


@dataclass(frozen=True, slots=True)
class ForceFailover:
    """An operator accepts the loss: this replica leads, though it may lack messages."""


Event = (
    Tick | Registered | NotRegistered | Renewed | LeaseEnded | Observed | SwapEnded | LogMoved
    | Frozen | LogCut | TermBegun | LeadingStopped | Disconnected | Received | Leave | SwitchOver
    | ForceFailover
)  # fmt: skip


# Actions


@dataclass(frozen=True, slots=True)
class Register:
    """Grant a lease and bind `alive/<me>` to it. Answer: Registered, or NotRegistered.

    Each try takes a lease of its own, and puts the key once. A put whose outcome is unknown may
    land later, even after a crash; it must then not make an old swap of this replica possible.
    """

    record: AliveRecord


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease. Answer: Renewed, LeaseEnded, or none."""

    lease: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the engine. Answer: Observed with this number, or none."""

    read: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Swap once. Answer: SwapEnded with this number; an error without an outcome is UNKNOWN."""

    swap: int
    conditions: tuple[Condition, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send to another replica, if it is connected. A Hello connects first, to `address`."""

    to: str
    message: Message
    address: str = ""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Feed a follower from `offset` on, by `Part`s of this term and session."""

    to: str
    term: int
    session: int
    offset: int


@dataclass(frozen=True, slots=True)
class CloseStreams:
    """Feed nobody any more."""


@dataclass(frozen=True, slots=True)
class CutBack:
    """Cut the log, queues and index to `offset`, durably; then write `lineage`. Answer: LogCut."""

    session: int
    offset: int
    lineage: Lineage
    anew: bool  # drop everything and let the log begin there


@dataclass(frozen=True, slots=True)
class Append:
    """Write these rows to the terms file, durably; then take the bytes. Answer: LogMoved."""

    rows: Lineage
    offset: int
    data: Sequence[object]


@dataclass(frozen=True, slots=True)
class Freeze:
    """Take nothing any more, make all that was taken durable. Answer: Frozen."""


@dataclass(frozen=True, slots=True)
class BeginTerm:
    """Write the row to the terms file, durably. Answer: TermBegun."""

    row: TermStart


@dataclass(frozen=True, slots=True)
class Lead:
    """Start everything that only a master runs; register with the term."""

    term: int


@dataclass(frozen=True, slots=True)
class StopLeading:
    """Refuse sends, offsets and administration; stop what a master runs. Answer: LeadingStopped."""

    why: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop this replica, and tell the operator."""

    why: str


Action = (
    Register | Renew | Read | Swap | Send | OpenStream | CloseStreams | CutBack | Append | Freeze
    | BeginTerm | Lead | StopLeading | Halt
)  # fmt: skip
