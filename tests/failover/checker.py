"""What must hold of a history, whoever served it. Nothing of a broker is known here.

    lost         an acknowledged message is at its offset when all is over
    changed      and it is that message
    acked-twice  no two sends are acknowledged at one place
    differs      two reads of a place give the same message, whenever, by whomever, from whichever
                 replica
    vanished     what any reader saw is there when all is over
    read-twice   the last reading finds one message at an offset
    hole         and no offset without one, from the first to the last
    too-often    a send is there at most once per try
    invented     what is read was sent
    early        and not read before it was sent
    disorder     of two sends to a queue, the one that began after the answer to the other is
                 behind it
    passed over  a consumer that was let finish got all that was acknowledged; it has gone on
                 behind one that it never got
    undelivered  the same; it has not come as far
    late         after a fault of a bounded kind sends are acknowledged again within the bound

`unavailability` says how long nothing was acknowledged around each fault.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.failover.history import Operation
from tests.support.delivery_history import DeliveryHistory

Place = tuple[str, int]  # queue, offset

EXAMPLES_MAX = 10
"""Violations of a rule that are kept; all are counted."""


@dataclass(slots=True)
class Verdict:
    """What a history came to."""

    acked: int = 0
    unknown: int = 0
    read: int = 0
    kept: int = 0  # messages that are there when all is over
    unknown_kept: int = 0  # of these, sends that were not acknowledged
    counts: Counter[str] = field(default_factory=Counter[str])  # violations by rule
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    gaps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By kind of fault, s."""

    @property
    def is_good(self) -> bool:
        return not self.counts

    def violation(self, rule: str, text: str) -> None:
        """Note that a rule does not hold."""
        self.counts[rule] += 1
        found = self.examples.setdefault(rule, [])
        if len(found) < EXAMPLES_MAX:
            found.append(text)

    def __str__(self) -> str:
        lines = [f"{rule}: {count}" for rule, count in self.counts.items()]
        return "\n".join(
            [*lines, *(f"  {text}" for each in self.examples.values() for text in each)]
        )


def check(
    history: Iterable[Operation],
    *,
    consumers: Collection[str] = (),
    bounds: Mapping[str, float] | None = None,
    is_over: bool = True,
) -> Verdict:
    """Hold a history against the rules.

    Args:
        consumers: readers that were let finish.
        bounds: by kind of fault, how long nothing may be acknowledged around one, s.
        is_over: everything was read once more; else what is there at the end is not judged.
    """
    told = _Told()
    for operation in history:
        told.take(operation)
    verdict = Verdict(
        acked=len(told.acked), unknown=len(told.sends) - len(told.acked), read=told.reads
    )
    told.check_sends(verdict)
    told.check_reads(verdict)
    if is_over:
        told.check_end(verdict)
    told.check_deliveries(verdict, consumers)
    for fault, gap in unavailability(told.faults, told.ack_times):
        verdict.gaps.setdefault(fault.who, []).append(gap)
        bound = (bounds or {}).get(fault.who)
        if bound is not None and gap > bound:
            verdict.violation(
                "late", f"{gap:.2f} s without an acknowledgement at {fault.start:.2f}: {fault.who}"
            )
    return verdict


def unavailability(
    faults: Iterable[Operation], ack_times: Iterable[float]
) -> Iterator[tuple[Operation, float]]:
    """Yield for each fault the longest time without an acknowledgement that touches it, s.

    A gap touches a fault when a part of it lies between the fault's start and its end. What never
    ended in an acknowledgement lasts until the end of the fault.
    """
    times = sorted(ack_times)
    for fault in faults:
        first, beyond = bisect_left(times, fault.start), bisect_right(times, fault.end)
        before = times[first - 1] if first else fault.start
        after = times[beyond] if beyond < len(times) else fault.end
        points = [before, *times[first:beyond], after]
        yield fault, max(right - left for left, right in pairwise(points))


class _Told:
    """A history, sorted by what the rules ask for."""

    def __init__(self) -> None:
        self.sends: dict[str, Operation] = {}  # by body
        self.acked: dict[str, Operation] = {}
        self.faults: list[Operation] = []
        self.reads = 0
        self.read_first: dict[Place, Operation] = {}
        self.others: list[tuple[Operation, Operation]] = []  # reads of one place that differ
        self.first_read: dict[str, Operation] = {}  # the earliest of each body
        self.bodies_of: defaultdict[str, set[str]] = defaultdict(set)
        self.end: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self.read_again: list[Operation] = []  # offsets that the last reading found twice
        self.sent_twice: list[Operation] = []

    @property
    def ack_times(self) -> list[float]:
        return [send.end for send in self.acked.values()]

    def take(self, operation: Operation) -> None:
        if operation.op == "fault":
            self.faults.append(operation)
        elif operation.op == "send":
            if operation.body in self.sends:
                self.sent_twice.append(operation)
            self.sends[operation.body] = operation
            if operation.result == "acked":
                self.acked[operation.body] = operation
        else:
            self._take_read(operation)

    def _take_read(self, read: Operation) -> None:
        self.reads += 1
        self.bodies_of[read.who].add(read.body)
        if read.queue:
            known = self.read_first.setdefault((read.queue, read.offset), read)
            if known.body != read.body:
                self.others.append((known, read))
        earliest = self.first_read.setdefault(read.body, read)
        if read.end < earliest.end:
            self.first_read[read.body] = read
        if read.final:
            if read.offset in self.end[read.queue]:
                self.read_again.append(read)
            self.end[read.queue][read.offset] = read.body

    def check_sends(self, verdict: Verdict) -> None:
        """acked-twice and disorder; a body that two calls sent is a fault of the load."""
        for send in self.sent_twice:
            raise ValueError(f"two sends have one body, so nothing can be told of it: {send}")
        places: dict[Place, Operation] = {}
        by_queue: defaultdict[str, list[Operation]] = defaultdict(list)
        for send in self.acked.values():
            other = places.setdefault((send.queue, send.offset), send)
            if other is not send:
                verdict.violation("acked-twice", f"{_shown(other)} and {_shown(send)}")
            by_queue[send.queue].append(send)
        for sends in by_queue.values():
            self._check_order(sends, verdict)

    @staticmethod
    def _check_order(sends: list[Operation], verdict: Verdict) -> None:
        earliest: Operation | None = None  # answer among those behind
        for send in sorted(sends, key=lambda send: send.offset, reverse=True):
            if earliest is not None and send.start > earliest.end:
                verdict.violation(
                    "disorder", f"{_shown(send)} began after the answer to {_shown(earliest)}"
                )
            if earliest is None or send.end < earliest.end:
                earliest = send

    def check_reads(self, verdict: Verdict) -> None:
        """differs, invented and early."""
        for known, read in self.others:
            verdict.violation("differs", f"{_shown(known)} and {_shown(read)}")
        for body, read in self.first_read.items():
            send = self.sends.get(body)
            if send is None:
                verdict.violation("invented", f"nobody sent {_shown(read)}")
            elif read.end < send.start:
                verdict.violation("early", f"{_shown(read)} before {_shown(send)}")

    def check_deliveries(self, verdict: Verdict, consumers: Collection[str]) -> None:
        """passed over and undelivered; each consumer is to get everything."""
        deliveries = DeliveryHistory()
        for who in consumers:
            deliveries.joins(who, who)
        for body in self.sends:
            deliveries.sent(body)
        for body, send in self.acked.items():
            topic, _, queue_id = send.queue.rpartition("/")
            deliveries.acked(body, (topic, int(queue_id)), send.offset)
        for who in consumers:
            for body in self.bodies_of[who]:
                deliveries.delivered(who, who, body)
        for missed in deliveries.missed():
            rule = "passed over" if missed.is_passed else "undelivered"
            send = self.acked[missed.acked.message]
            verdict.violation(rule, f"{missed.group} never got {_shown(send)}")

    def check_end(self, verdict: Verdict) -> None:
        """lost, changed, vanished, read-twice, hole and too-often."""
        for read in self.read_again:
            verdict.violation("read-twice", _shown(read))
        for send in self.acked.values():
            found = self.end[send.queue].get(send.offset)
            if found is None:
                verdict.violation("lost", _shown(send))
            elif found != send.body:
                verdict.violation("changed", f"{_shown(send)}, where {found} is now")
        for (queue, offset), read in self.read_first.items():
            if offset not in self.end[queue]:
                verdict.violation("vanished", _shown(read))
        copies: Counter[str] = Counter()
        for queue, there in self.end.items():
            copies.update(there.values())
            for offset in sorted(set(range(max(there, default=-1) + 1)) - set(there)):
                verdict.violation("hole", f"{queue} has nothing at {offset}")
        for body, count in copies.items():
            sent = self.sends.get(body)
            if sent is not None and count > sent.tries:
                verdict.violation("too-often", f"{count} copies of {_shown(sent)}")
            verdict.unknown_kept += body not in self.acked
        verdict.kept = copies.total()


def _shown(operation: Operation) -> str:
    place = f" at {operation.queue}:{operation.offset}" if operation.queue else ""
    when = f"{operation.start:.3f}..{operation.end:.3f}"
    extra = f" ({operation.detail})" if operation.detail else ""
    return f"{operation.body}{place}, {operation.op} by {operation.who} {when}{extra}"
