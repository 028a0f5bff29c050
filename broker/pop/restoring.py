"""From the journal back into memory, and what the journal asks of the store and of memory."""

from __future__ import annotations

from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.pop.consumption import pop_retry_topic
from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.handles import MAIN, OLD_RETRY
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.protocol.flags import retry_topic
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.pop.journal_records import ACKNOWLEDGED as NEVER_VISIBLE
from skylarkmq.store.pop.journal_records import UNKNOWN, Key, KeyState, PopState, Row


def source_topic(key: Key) -> str:
    """Return the topic of the store that a key's queue belongs to."""
    if key.kind == MAIN:
        return key.topic
    if key.kind == OLD_RETRY:
        return retry_topic(key.group)
    return pop_retry_topic(key.group, key.topic, key.kind)


class StoredQueues:
    """The queues as the store has them (`journal_check.Queues`). Blocks; before serving."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager) -> None:
        self._store = store
        self._offsets = offsets

    def bounds(self, key: Key) -> tuple[int, int]:
        """Return the smallest offset, and the next one to be stored; (0, 0) without a queue."""
        topic = source_topic(key)
        return (
            self._store.min_offset(topic, key.queue_id),
            self._store.max_offset(topic, key.queue_id),
        )

    def physical_offset(self, key: Key, offset: int) -> int | None:
        """Return where the record of an offset lies in the log; None when there is no unit."""
        try:
            units = self._store.queue_units(source_topic(key), key.queue_id, offset, 1)
        except FileNotFoundError:
            return None
        return units[0].commit_offset if units else None

    def committed(self, key: Key) -> int:
        """Return the group's offset in the table; NO_OFFSET when there is none to go by."""
        return self._offsets.query(key.group, source_topic(key), key.queue_id)


class LiveState:
    """What is in memory, for a new file of the journal (`journal.Live`). Loop thread."""

    def __init__(self, registry: PopRegistry, in_flight: InFlight, store: MessageStore) -> None:
        self._registry = registry
        self._in_flight = in_flight
        self._store = store

    @property
    def last_serial(self) -> int:
        """The greatest serial that a delivery ever had."""
        return self._in_flight.last_serial

    def keys(self) -> list[Key]:
        """Return the queues that there are."""
        return [queue.key for queue in self._registry.queues()]

    def state_of(self, key: Key) -> KeyState | None:
        """Return the state of a queue as it is now; None when it is gone."""
        queue = self._registry.queue_of(key)
        if queue is None:
            return None
        rows = {
            delivery.offset: delivery.row(self._in_flight.visible_ms(delivery))
            for delivery in queue.in_flight.values()
        }
        end_physical = end_of(self._store, queue) if queue.next_offset > 0 else UNKNOWN
        return KeyState(queue.next_offset, end_physical, rows, queue.attempt_id)


def end_of(store: MessageStore, queue: PopQueue) -> int:
    """Return where the last message that was looked at lies in the log."""
    units = store.queue_units(queue.source.topic, queue.queue_id, queue.next_offset - 1, 1)
    return units[0].commit_offset if units else UNKNOWN


def restore(state: PopState, registry: PopRegistry, in_flight: InFlight) -> PopState:
    """Put what the journal says into memory; return that without what is no more.

    Handles from before go on to say what they said. What has no topic or group any more is left
    out.
    """
    in_flight.last_serial = max(in_flight.last_serial, state.last_serial)
    kept = PopState({}, state.last_serial, state.is_clean)
    for key, found in state.keys.items():
        queue = registry.revive(key)
        if queue is not None:
            kept.keys[key] = found
            _fill(queue, found, registry, in_flight)
    return kept


def _fill(queue: PopQueue, found: KeyState, registry: PopRegistry, in_flight: InFlight) -> None:
    group = queue.source.group
    queue.reset(found.next_offset)
    queue.is_fifo = bool(found.attempt_id) or registry.is_ordered(group.name)
    queue.attempt_id = found.attempt_id
    _end_acknowledged(found.rows, is_fifo=queue.is_fifo)
    consumption = group.consumptions.get(queue.source.asked_topic)
    if found.attempt_id and consumption is not None:
        consumption.attempts.setdefault(found.attempt_id, []).append(queue)
    for row in found.rows.values():
        delivery = Delivery(
            queue, queue.source.asked_topic, row.offset, row.physical_offset, row.attempt
        )
        queue.add(delivery)
        in_flight.revive(delivery, row.serial, row.visible_ms)
    in_flight.publish_mark(queue)


def _end_acknowledged(rows: dict[int, Row], *, is_fifo: bool) -> None:
    """Take out what is acknowledged and need not wait for a message before it any more."""
    for offset, row in sorted(rows.items()):
        if row.visible_ms == NEVER_VISIBLE and row.serial:
            del rows[offset]
        elif is_fifo:
            break
