"""What was acknowledged to producers, what each consumer saw, and which messages all passed over.

    history = DeliveryHistory()
    history.joins("billing", "member-1")        # before what it has to see is sent
    history.acked("M1", ("orders", 0), 0)
    history.delivered("billing", "member-1", "M1")
    history.log_became(ends)                    # a crash, a restore, an empty start
    history.passed_over()                       # acknowledged, to be kept, and nobody saw it

A group has seen a message when one of its members has. A broadcasting member is a group of its own
here. A message that its log lost is owed to nobody, if it was lost by something that may take it;
else it is a violation of its own. Nothing of a broker is known here: a message is a text that no
other has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Queue = tuple[str, int]  # topic, queue id


@dataclass(slots=True, eq=False)
class Acked:
    """An acknowledged message."""

    message: str
    queue: Queue
    offset: int
    life: int
    """Of the log, in which it was acknowledged."""
    is_durable: bool = True
    lost_in: int | None = None
    """The life that began without it."""

    def __str__(self) -> str:
        topic, queue_id = self.queue
        return f"{self.message} at {topic}/{queue_id}:{self.offset}, life {self.life}"


@dataclass(slots=True)
class Group:
    """Those who share messages; a broadcasting member alone."""

    members: set[str] = field(default_factory=set[str])
    seen: Counter[str] = field(default_factory=Counter[str])
    since: int = 0
    """How many messages were acknowledged before it was there; those are not owed."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A message that no member of a group ever saw."""

    group: str
    acked: Acked
    is_passed: bool
    """The group has seen a later one of its queue, or has committed a position behind it."""

    def __str__(self) -> str:
        how = "passed over" if self.is_passed else "not seen yet"
        return f"{self.group}: {how}: {self.acked}"


class DeliveryHistory:
    """All that was acknowledged, delivered and committed through the lives of a log."""

    def __init__(self) -> None:
        self.life = 0
        self.violations: list[str] = []
        self._acked: list[Acked] = []
        self._groups: dict[str, Group] = {}
        self._committed: dict[tuple[str, Queue], tuple[int, int]] = {}  # in which life, and where
        self._sent: set[str] = set()

    # What happens

    def joins(self, group: str, member: str, *, broadcasting: bool = False) -> None:
        """A member is there, and its positions are known: what comes from now on is its group's."""
        name = _name(group, member, broadcasting)
        known = self._groups.setdefault(name, Group(since=len(self._acked)))
        known.members.add(member)

    def sent(self, message: str) -> None:
        """A message is about to be sent; it may be stored without an acknowledgement."""
        self._sent.add(message)

    def acked(self, message: str, queue: Queue, offset: int, *, durable: bool = True) -> None:
        """A message was acknowledged at its place.

        Args:
            durable: a power cut may not take it; a later `synced` says so of all before.
        """
        self.sent(message)
        self._acked.append(Acked(message, queue, offset, self.life, durable))

    def synced(self) -> None:
        """All that was acknowledged so far is durable."""
        for acked in self._acked:
            acked.is_durable = True

    def delivered(
        self, group: str, member: str, message: str, *, broadcasting: bool = False
    ) -> None:
        """A member was given a message."""
        name = _name(group, member, broadcasting)
        if name not in self._groups:
            raise ValueError(f"{member} never joined {group}")
        if message not in self._sent:
            self.violations.append(f"invented: {name} got {message}, which nobody sent")
        self._groups[name].seen[message] += 1

    def commits(self, group: str, queue: Queue, offset: int) -> None:
        """A group's position stands at the broker: the offset of the next message that it wants."""
        self._committed[group, queue] = self.life, offset

    def log_became(self, ends: Mapping[Queue, int], *, keeps: str = "durable") -> list[Acked]:
        """A new life of the log begins, with these ends of its queues.

        Args:
            ends: the offset after the last message, of each queue; one that is left out is empty.
            keeps: "all" acknowledged messages have to be there, or the "durable" ones, or those
                of an older copy, "nothing" else: no loss is a violation then.

        Returns:
            The acknowledged messages that are gone.
        """
        self.life += 1
        gone: list[Acked] = []
        for acked in self._acked:
            if acked.lost_in is not None or acked.offset < ends.get(acked.queue, 0):
                continue
            acked.lost_in = self.life
            gone.append(acked)
            if keeps == "all" or (keeps == "durable" and acked.is_durable):
                self.violations.append(f"lost: {acked}")
        return gone

    # What is to be said

    def owed(self) -> list[Acked]:
        """Return the acknowledged messages that their log has kept."""
        return [acked for acked in self._acked if acked.lost_in is None]

    def missed(self) -> list[Missed]:
        """Return which messages that are owed no member of a group ever saw."""
        found: list[Missed] = []
        for name, group in self._groups.items():
            reached = self._reached(name, group)
            for number, acked in enumerate(self._acked):
                if acked.lost_in is not None or number < group.since or group.seen[acked.message]:
                    continue
                is_passed = acked.offset < reached.get(acked.queue, 0)
                found.append(Missed(name, acked, is_passed))
        return found

    def passed_over(self) -> list[Missed]:
        """Return those of them that the group's position has left behind.

        Waiting may bring the others; these it does not bring.
        """
        return [missed for missed in self.missed() if missed.is_passed]

    def seen(self, group: str, member: str = "") -> Counter[str]:
        """Return how often each message was seen by a group, or by a broadcasting member."""
        return self._groups[_name(group, member, bool(member))].seen

    def check(self) -> None:
        """Raise unless everything that is owed was seen by each group, and nothing else is wrong.

        Raises:
            AssertionError: with a line for each message.
        """
        wrong = [*self.violations, *(str(each) for each in self.missed())]
        if wrong:
            raise MissedError("\n".join(wrong))

    def _reached(self, name: str, group: Group) -> dict[Queue, int]:
        """By queue, the offset below which nothing will come to a group any more."""
        reached = {
            queue: offset
            for (committed_by, queue), (life, offset) in self._committed.items()
            if committed_by == name and life == self.life
        }
        for acked in self.owed():
            if group.seen[acked.message]:
                reached[acked.queue] = max(reached.get(acked.queue, 0), acked.offset)
        return reached


class MissedError(AssertionError):
    """Messages that were acknowledged, and that a group never saw; or worse."""


def _name(group: str, member: str, broadcasting: bool) -> str:
    return f"{group}/{member}" if broadcasting else group
