"""How many timed messages of a stopped store are not delivered: what its checkpoint says of those
that were read, and the rest of the timer topic's queue.
"""

from __future__ import annotations

from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.record import RecordStatus
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.store.timer.checkpoint import BACKUP, CHECKPOINT_NAME, TimerState, read_checkpoint
from skylarkmq.store.timer.rules import TIMER_QUEUE_ID, cancelled_key, due_of
from skylarkmq.store.timer.run_file import ENTRY


def waiting_timers(store: StoppedStore) -> int:
    """Messages of the timer topic that wait; all that are there without a checkpoint."""
    queue = store.queues.get((RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID))
    if queue is None:
        return 0
    state = TimerState()
    newest = store.paths.timer / CHECKPOINT_NAME
    content = read_checkpoint(store.files, newest)
    if content is not None:
        state.take_over(content)
    else:
        content = read_checkpoint(store.files, newest.with_name(CHECKPOINT_NAME + BACKUP))
        if content is not None:
            state.take_over(content)
            state.rebuild()  # as the broker will: the runs may be newer
    count = state.messages.waiting_count
    first, end = store.bounds(queue)
    for queue_offset, unit in store.units(queue, max(first, state.queue_offset), end):
        record = store.record_at(unit.commit_offset, check_crc=False)
        if record is None or record.status is not RecordStatus.MESSAGE:
            continue
        text = record.properties
        due_ms = max(0, due_of(text) or 0)
        entry = ENTRY.pack(due_ms, queue_offset, unit.commit_offset, unit.record_size)
        if cancelled_key(text) is None:
            known = state.knows(entry, queue_offset, unit.commit_offset, is_cancel=False)
            count += not known
    return count
