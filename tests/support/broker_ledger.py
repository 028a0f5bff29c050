"""What a simulated broker was asked, what it acknowledged, and so what it owes.

An acknowledgement is owed after the death of the process. After a power cut it is owed when it was
`kept`: under SYNC_FLUSH at once, else once the intervals of flushing have passed. Offsets of
consumers live in memory and are owed once their table was written.

    plain             there once
    delayed, timed    there at least once, never before its time
    cancelled         not there, when the cancel was owed
    half              there when committed, once after a kill; not there when rolled back or open
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message import MessageExt
from tests.support.invariants import require
from tests.support.pop_ledger import PopLedger

LEVEL_MS = (0, 1000, 2000, 4000, 8000)


class Decision(Enum):
    """What a producer made of its transaction; the values of the wire."""

    NONE = 0
    COMMIT = 8
    ROLLBACK = 12


class Fact(Enum):
    """What was acknowledged of a message."""

    SENT = "sent"
    CANCELLED = "cancelled"
    ENDED = "ended"


@dataclass(slots=True)
class Entry:
    """One message."""

    number: int
    kind: str
    sent_ms: int
    properties: dict[str, str]
    acked: bool = False
    cancelled: bool = False  # a cancel was sent
    cancel_acked: bool = False
    decision: Decision = Decision.NONE
    end_acked: bool = False
    half_at: tuple[int, int] = (-1, -1)  # queue offset in the half topic, physical offset
    checks: int = 0  # times that the broker asked
    noted: set[Fact] = field(default_factory=set[Fact])

    @property
    def body(self) -> bytes:
        return f"{self.kind}-{self.number}-".encode() + b"x" * (self.number * 37 % 300)

    @property
    def facts(self) -> set[Fact]:
        facts = {Fact.SENT} if self.acked else set[Fact]()
        facts |= {Fact.CANCELLED} if self.cancel_acked else set()
        return facts | ({Fact.ENDED} if self.end_acked else set())

    def due_ms(self) -> int:
        """Before this time it must not be there."""
        properties = self.properties
        if "DELAY" in properties:
            return self.sent_ms + LEVEL_MS[int(properties["DELAY"])]
        if "TIMER_DELAY_SEC" in properties:
            return self.sent_ms + int(properties["TIMER_DELAY_SEC"]) * 1000
        if "TIMER_DELAY_MS" in properties:
            return self.sent_ms + int(properties["TIMER_DELAY_MS"])
        return int(properties.get("TIMER_DELIVER_MS", 0))


class Ledger:
    """All of it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.groups: dict[str, bool] = {}
        self.topics: dict[str, bool] = {}
        self.offsets: dict[tuple[str, int], list[int]] = {}
        self.power: Counter[str] = Counter()
        self.pops = PopLedger()
        self._facts: list[tuple[int, Fact]] = []  # in the order of the acknowledgements
        self._kept: set[tuple[int, Fact]] = set()
        self._asked: Counter[tuple[str, int]] = Counter()  # the last commit of each
        self._offsets_kept: dict[tuple[str, int], int] = {}  # how many of the commits
        self._committed: list[tuple[str, int]] = []

    def add(self, kind: str, now_ms: int, properties: dict[str, str]) -> Entry:
        """A message that is sent now."""
        entry = Entry(len(self.entries), kind, now_ms, properties)
        self.entries.append(entry)
        return entry

    def touch(self, entry: Entry, *, durable: bool) -> None:
        """Note what is newly acknowledged of a message."""
        for fact in entry.facts - entry.noted:
            entry.noted.add(fact)
            self._facts.append((entry.number, fact))
            if durable:
                self._kept.add((entry.number, fact))
            self.power[f"{entry.kind} {fact.value}"] += 1

    def mark(self) -> tuple[int, int, int]:
        """This moment, for `keep`."""
        return len(self._facts), len(self._committed), self.pops.mark()

    def keep(self, mark: tuple[int, int, int], *, offsets: bool = True) -> None:
        """What was acknowledged before the mark outlasts a power cut from now on."""
        self._kept.update(self._facts[: mark[0]])
        self.pops.keep(mark[2])
        if offsets:
            counts = Counter(self._committed[: mark[1]])
            self._offsets_kept.update(counts)
            self.power["offsets kept"] += len(counts)

    def cancellable(self, before_ms: int) -> list[Entry]:
        """Messages with an absolute time that is still far away."""
        return [
            entry
            for entry in self.entries
            if entry.acked
            and not entry.cancelled
            and "TIMER_DELIVER_MS" in entry.properties
            and entry.due_ms() > before_ms
        ]

    def undecided(self) -> list[Entry]:
        """Transactions whose producer has not made up its mind."""
        return [
            entry
            for entry in self.entries
            if entry.kind == "half" and entry.acked and entry.decision is Decision.NONE
        ]

    def offset_asked(self, group: str, queue_id: int, offset: int) -> None:
        """A consumer commits an offset."""
        self._asked[group, queue_id] = offset

    def offset_committed(self, group: str, queue_id: int, offset: int) -> None:
        """It was acknowledged."""
        self.offsets.setdefault((group, queue_id), []).append(offset)
        self._committed.append((group, queue_id))

    def made(self, table: dict[str, bool], name: str, answer: RemotingCommand) -> None:
        """A group or a topic was acknowledged."""
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        table[name] = True
        self.power["tables acked"] += 1

    def owes(self, entry: Entry, fact: Fact, *, killed: bool) -> bool:
        """Whether an acknowledgement binds after this kind of crash."""
        return fact in entry.facts if killed else (entry.number, fact) in self._kept

    # Checking

    def check_messages(self, found: Sequence[MessageExt], *, killed: bool) -> Counter[str]:
        """Hold what is there against what is owed; all that was to come has come.

        Returns:
            How often each rule had something to say.
        """
        copies: dict[int, list[MessageExt]] = {entry.number: [] for entry in self.entries}
        for message in found:
            number = int(message.properties["N"])
            require(number in copies, "I3", f"message {number} was never sent")
            entry = self.entries[number]
            require(message.body == entry.body, "I1", f"message {number} has another body")
            late_ms = message.store_timestamp - entry.due_ms()
            require(late_ms >= 0, "time", f"{entry} came {-late_ms} ms early")
            copies[number].append(message)
        seen: Counter[str] = Counter()
        for entry in self.entries:
            count = len(copies[entry.number])
            seen[self._check(entry, count, killed=killed)] += 1
            seen["repeats"] += count > 1
        return seen

    def _check(self, entry: Entry, count: int, *, killed: bool) -> str:
        owed = self.owes(entry, Fact.SENT, killed=killed)
        if entry.kind == "half":
            return self._check_half(entry, count, owed=owed, killed=killed)
        if entry.kind == "plain":
            require(count <= 1, "I3", f"{entry} is there {count} times")
            require(count == 1 or not owed, "I1", f"{entry} is lost")
            return "plain"
        if self.owes(entry, Fact.CANCELLED, killed=killed):
            require(count == 0, "cancel", f"{entry} was cancelled and came {count} times")
            return "cancelled"
        require(count >= 1 or not owed or entry.cancelled, "I1", f"{entry} never came")
        return entry.kind

    def _check_half(self, entry: Entry, count: int, *, owed: bool, killed: bool) -> str:
        if entry.decision is not Decision.COMMIT:
            require(count == 0, "I9", f"{entry} is there {count} times")
            return entry.decision.name.lower()
        require(count <= 1 or not killed, "I9", f"{entry} is there {count} times")
        owed = owed or self.owes(entry, Fact.ENDED, killed=killed)
        require(count >= 1 or not owed, "I9", f"{entry} was committed and is lost")
        return "commit"

    @staticmethod
    def check_written_offsets(
        written: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]
    ) -> None:
        """I7: what the disk says of a queue does not go beyond what the disk has of it.

        Args:
            written: the greatest offset of each queue that a table on the disk had after a crash.
            ends: of the recovered queues.
        """
        for queue, offset in written.items():
            end = ends[queue]
            require(offset <= end, "I7", f"{offset} of {queue} was written, which ends at {end}")

    def check_offsets(self, query: dict[tuple[str, int], int]) -> None:
        """I7: each group stands where it stood once, not before what was written.

        Args:
            query: what the broker says, -1 for nothing.
        """
        for key, history in self.offsets.items():
            kept = max(history[: self._offsets_kept.get(key, 0)], default=0)
            place = query[key]
            last = self._asked[key]
            require(place <= last, "I7", f"{key} stands at {place}, behind {last}")
            require(place >= kept, "I7", f"{key} stands at {place}, {kept} was written")
