"""What consumers by pop were handed and have acknowledged, and so what a broker owes them.

    sent, never acknowledged        comes, after a crash again
    acknowledged, and it is owed    never comes again, as itself or as a retry
    asked, and no answer yet        either

In a group that keeps the order an acknowledgement counts once all before it in its queue are: when
one of those is handed out again, it is as if it was never said.

An answer is owed as in `broker_ledger.py`: after the death of the process at once, after a power
cut when it was kept.

A message may be stored twice after a crash, when it had left for its retry topic and that was not
noted. So what is acknowledged afterwards is followed by its place, and not by its number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.support.invariants import require


class Sent(NamedTuple):
    """A producer was told that a message is stored."""

    number: int


class Consumed(NamedTuple):
    """A consumer was told that a message is consumed."""

    group: str
    number: int


Fact = Sent | Consumed
Place = tuple[int, int, int]  # kind, queue id, offset
TAKEN_BACK: Final = Sent(-1)


@dataclass(slots=True)
class PopLedger:
    """All messages of one topic, and what each group has of them.

    Attributes:
        asked: acknowledgements on their way, and how often.
        attempts: the greatest that was handed out.
        came: what was handed out since the last crash.
        doubtful: in hand at an earlier crash, and so perhaps stored twice since then.
        gone: smaller numbers were in a topic that was deleted, or may have been.
        places: where messages were handed out that come in order.
        forwarded: are dead letters, or were acknowledged before.
    """

    sent: int = 0
    gone: int = 0
    facts: list[Fact] = field(default_factory=list[Fact])
    kept: set[Fact] = field(default_factory=set[Fact])
    asked: Counter[Consumed] = field(default_factory=Counter[Consumed])
    attempts: dict[Consumed, int] = field(default_factory=lambda: defaultdict(int))
    doubtful: set[Consumed] = field(default_factory=set[Consumed])
    came: set[Consumed] = field(default_factory=set[Consumed])
    ended: set[tuple[Consumed, Place]] = field(default_factory=set[tuple[Consumed, Place]])
    power: Counter[str] = field(default_factory=Counter[str])
    places: dict[Consumed, Place] = field(default_factory=dict[Consumed, Place])
    forwarded: set[Consumed] = field(default_factory=set[Consumed])
    _in_order: list[tuple[str, Place]] = field(default_factory=list[tuple[str, Place]])

    def note(self, fact: Fact, *, durable: bool) -> None:
        """Note an answer."""
        self.facts.append(fact)
        if durable:
            self.kept.add(fact)

    def mark(self) -> int:
        """This moment, for `keep`."""
        return len(self.facts)

    def keep(self, mark: int) -> None:
        """What was answered before the mark outlasts a power cut from now on."""
        self.kept.update(self.facts[:mark])

    def begin_life(self, owed: Owed) -> None:
        """A broker starts after a crash; what is not owed was never said."""
        self.facts = [fact for fact in self.facts if owed.is_owed(fact)]
        self.kept = set(self.facts)
        self.doubtful.update(what for what in self.attempts if what not in self.kept)
        self.attempts.clear()
        self.came.clear()
        self.ended.clear()

    def take_back(self, group: str, place: Place) -> None:
        """Let acknowledgements count no more: a message before theirs comes again."""
        void = {
            what
            for what, known in self.places.items()
            if what.group == group and known[:2] == place[:2] and known[2] > place[2]
        }
        if not void:
            return
        self.power["taken back"] += sum(fact in void for fact in self.facts)
        self.facts = [TAKEN_BACK if fact in void else fact for fact in self.facts]
        self.kept -= void
        self.ended = {(what, known) for what, known in self.ended if what not in void}
        for what in void - self.forwarded:
            self.asked.pop(what, None)

    def in_order(self) -> int:
        """This moment, for `is_taken_back`."""
        return len(self._in_order)

    def is_taken_back(self, group: str, place: Place, since: int) -> bool:
        """Return whether a message, or one before it, was handed out in order since a moment."""
        return any(
            of == group and known[:2] == place[:2] and known[2] <= place[2]
            for of, known in self._in_order[since:]
        )

    def handed(
        self, group: str, number: int, place: Place, attempt: int, *, in_order: bool
    ) -> None:
        """Note that a message came, and check that it may."""
        what = Consumed(group, number)
        if in_order:
            self.take_back(group, place)
            self.places[what] = place
            self._in_order.append((group, place))
        require(0 <= number < self.sent, "I3", f"message {number} was never sent")
        require((what, place) not in self.ended, "pop", f"{what} at {place} came after its end")
        require(attempt > (place[0] > 0), "pop", f"{what} came from {place} as {attempt}")
        self.power[f"attempt {min(attempt, 3)}"] += 1
        self.attempts[what] = max(attempt, self.attempts[what])
        self.came.add(what)

    def check_fresh(self, groups: tuple[str, ...], first: int) -> None:
        """Check that all came that was sent since the last crash, from a number on."""
        for fact in self.facts:
            if isinstance(fact, Sent) and fact.number >= first:
                for group in groups:
                    what = Consumed(group, fact.number)
                    require(what in self.came, "pop", f"{what}, sent after the crash, is hidden")

    def consumed(self, group: str, number: int, place: Place, *, durable: bool) -> None:
        """Note that a consumer was told so."""
        what = Consumed(group, number)
        self.ended.add((what, place))
        self.power["consumed"] += 1
        self.note(what, durable=durable)


class Owed(NamedTuple):
    """What a broker owes after a crash, by a ledger of that moment."""

    ledger: PopLedger
    killed: bool  # the process alone died
    keeps_attempts: bool  # by the flush mode

    def is_owed(self, fact: Fact) -> bool:
        """Return whether an answer binds."""
        return fact in (self.ledger.facts if self.killed else self.ledger.kept)

    def check_handed(self, group: str, number: int, attempt: int, *, in_order: bool) -> None:
        """Check a message that came after the crash.

        Args:
            in_order: it comes again in place, and nobody waits until its attempt is written.
        """
        what = Consumed(group, number)
        if number < self.ledger.gone or what in self.ledger.doubtful:
            return
        require(not self.is_owed(what), "pop", f"{what} was acknowledged and came again")
        if (self.killed or self.keeps_attempts) and not in_order:
            before = self.ledger.attempts.get(what, 0)
            require(attempt >= before, "pop", f"{what} came as {attempt}, and had as {before}")

    def check_came(self, groups: tuple[str, ...], came: set[Consumed]) -> int:
        """Check that all came that had to; return how many those were."""
        count = 0
        for number in range(self.ledger.gone, self.ledger.sent):
            if not self.is_owed(Sent(number)):
                continue
            for group in groups:
                what = Consumed(group, number)
                if what not in self.ledger.facts and self.ledger.asked[what] <= 0:
                    require(what in came, "pop", f"{what} was never acknowledged and is lost")
                    count += 1
        return count
