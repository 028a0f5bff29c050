"""Held pulls: a pull that finds nothing waits at its queue for the next message.

A new message wakes its queue's pulls in the loop turn that publishes it; what a pull's filter does
not want leaves it asleep, and is looked at once: by the hash of its tag, or by its properties, then
for all pulls that filter alike. Every 5 s a pull whose queue moved on is answered whatever its
filter says, which carries a consumer over messages that it does not want; an expired one is
answered "nothing new". Waking runs the pull again, from after what was looked at, and it is not
held a second time.

A held pull belongs to its connection and goes with it. Their number is bounded, and addresses share
it (`net/places.py`). A pull that gives way is answered; one without a place is answered at once,
and comes again at once.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../longpolling/PullRequestHoldService.java
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.places import PLACES_MAX, Places
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.host_address import network_of
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.read.message_reader import Filter
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageStatus

HELD_MAX = PLACES_MAX
HELD_OF_CONNECTION_MAX = 20_000  # a consumer holds one pull a queue
SWEEP_INTERVAL_S = 5.0
SHORT_SWEEP_INTERVAL_S = 1.0
SWEEP_COST_MAX = 20_000  # of one turn of a sweep, a look at a pull being 1
WAKE_COST = 50
MATCH_UNITS_MAX = 800  # so many new units at once wake a pull without a look
LOOK_COST_MAX = 4096  # what filters by properties may spend in one turn; the rest wait for the next
LOOK_COST = 16  # of one look, beside the filter's own cost

QueueKey = tuple[str, int]


class _Looks:
    """What was read for the pulls of one queue in one turn.

    units: by queue offset, up to MATCH_UNITS_MAX from there on.
    found: (filter by properties, queue offset) -> where it goes on after what it does not want,
        -1 at what it wants.
    """

    __slots__ = ("cost_left", "found", "units")

    def __init__(self) -> None:
        self.units: dict[int, list[ConsumeQueueUnit]] = {}
        self.found: dict[tuple[object, int], int] = {}
        self.cost_left = LOOK_COST_MAX


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits."""

    connection: Connection
    topic: str
    queue_id: int
    offset: int  # queue offset that it wants to read
    matches: Filter | None
    deadline_s: float  # on the monotonic clock
    wake: Callable[[int], None]  # runs the pull again from there on, answers it; never raises
    seen_offset: int = field(init=False)  # its filter wants nothing below this queue offset

    def __post_init__(self) -> None:
        self.seen_offset = self.offset


class PullRequestHoldService:
    """The pulls that wait, by queue. Loop thread."""

    def __init__(self, store: MessageStore, clock: Clock, *, long_polling: bool) -> None:
        self._store = store
        self._clock = clock
        self._held: dict[QueueKey, dict[HeldPull, None]] = {}
        self._places: Places[HeldPull] = Places(HELD_MAX, lambda oldest: self._release([oldest]))
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self._late: set[QueueKey] = set()  # queues with pulls that were not looked at yet
        interval_s = SWEEP_INTERVAL_S if long_polling else SHORT_SWEEP_INTERVAL_S
        self._sweep_timer = IntervalTimer(clock, interval_s, self.sweep)
        if long_polling:
            store.add_arrival_listener(self._arrived)

    @property
    def count(self) -> int:
        """How many pulls wait."""
        return self._places.count

    def start(self) -> None:
        self._sweep_timer.start()

    def stop(self) -> None:
        """Answer everything that waits."""
        self._sweep_timer.stop()
        for key in list(self._held):
            self._release(list(self._held[key]))

    def hold(self, held: HeldPull) -> bool:
        """Keep a pull until a message comes; False when the peer is gone, or too many wait."""
        connection = held.connection
        if connection.closed:
            return False
        of_connection = self._by_connection.get(connection)
        if of_connection is None:
            of_connection = self._by_connection[connection] = set()
            connection.add_close_listener(self._closed)
        if len(of_connection) >= HELD_OF_CONNECTION_MAX:
            return False
        if not self._places.take(network_of(connection.host_bytes), held):
            return False
        of_connection.add(held)
        self._held.setdefault((held.topic, held.queue_id), {})[held] = None
        return True

    def _arrived(self, topic: str, queue_id: int, max_offset: int) -> None:
        key = (topic, queue_id)
        waiting = self._held.get(key)
        if waiting is None:
            return
        looks = _Looks()
        woken: list[HeldPull] = []
        for held in waiting:
            if looks.cost_left <= 0 and isinstance(held.matches, RecordFilter):
                self._look_later(key)
            elif held.offset < max_offset and self._wants(held, max_offset, looks):
                woken.append(held)
        if woken:
            self._release(woken)

    def _look_later(self, key: QueueKey) -> None:
        """Go on with a queue's pulls in a turn of their own: this may be a sender's."""
        if key not in self._late:
            self._late.add(key)
            self._clock.call_at(self._clock.monotonic(), self._go_on, key)

    def _go_on(self, key: QueueKey) -> None:
        self._late.discard(key)
        self._arrived(*key, self._store.max_offset(*key))

    def _wants(self, held: HeldPull, max_offset: int, looks: _Looks) -> bool:
        matches = held.matches
        if matches is None or max_offset - held.seen_offset >= MATCH_UNITS_MAX:
            return True
        while held.seen_offset < max_offset:  # more than once where a queue file ends in between
            try:
                if isinstance(matches, RecordFilter):
                    following = self._skip_unwanted(held, matches, looks)
                    if following <= held.seen_offset:
                        return True
                    held.seen_offset = following
                    continue
                units = looks.units.get(held.seen_offset)
                if units is None:
                    units = looks.units[held.seen_offset] = self._store.queue_units(
                        held.topic, held.queue_id, held.seen_offset, MATCH_UNITS_MAX
                    )
            except OSError:
                return True  # the pull meets the same and answers it; this may be a sender's turn
            if not units or any(matches(unit.tags_code) for unit in units):
                return True
            held.seen_offset += len(units)
        return False

    def _skip_unwanted(self, held: HeldPull, by_record: RecordFilter, looks: _Looks) -> int:
        """Return where a filter by properties goes on when it wants nothing from there; else -1."""
        begin = held.seen_offset
        key = by_record.key or by_record, begin
        following = looks.found.get(key)
        if following is None:
            looks.cost_left -= LOOK_COST + by_record.cost
            result = self._store.get_message(held.topic, held.queue_id, begin, 1, matches=by_record)
            is_over = result.status is GetMessageStatus.NO_MATCHED_MESSAGE
            following = looks.found[key] = result.next_begin_offset if is_over else -1
        return following

    def sweep(self) -> None:
        """Look at every held pull again; very many are woken in several turns of the loop."""
        self._sweep_some(list(self._held)[::-1])

    def _sweep_some(self, keys: list[QueueKey]) -> None:
        now = self._clock.monotonic()
        left = SWEEP_COST_MAX
        while keys and left > 0:
            key = keys.pop()
            waiting = self._held.get(key)
            if waiting is None:
                continue  # woken or gone since the sweep began
            max_offset = self._store.max_offset(*key)
            ready = [held for held in waiting if held.offset < max_offset or held.deadline_s <= now]
            left -= len(waiting) + WAKE_COST * len(ready)
            if ready:
                self._release(ready)
        if keys:
            self._clock.call_at(now, self._sweep_some, keys)

    def topics(self) -> set[str]:
        """Return the topics whose messages are waited for."""
        return {topic for topic, _ in self._held}

    def wake_topic(self, topic: str) -> None:
        """Answer the pulls that wait at a topic's queues."""
        for key in [key for key in self._held if key[0] == topic]:
            self._release(list(self._held[key]))

    def _release(self, woken: list[HeldPull]) -> None:
        for held in woken:
            self._forget(held)
        for held in woken:
            held.wake(held.seen_offset)

    def _closed(self, connection: Connection) -> None:
        for held in self._by_connection.pop(connection, ()):
            self._forget(held)

    def _forget(self, held: HeldPull) -> None:
        self._places.leave(network_of(held.connection.host_bytes), held)
        key = held.topic, held.queue_id
        pulls = self._held[key]
        del pulls[held]
        if not pulls:
            del self._held[key]
        of_connection = self._by_connection.get(held.connection)
        if of_connection is not None:
            of_connection.discard(held)
