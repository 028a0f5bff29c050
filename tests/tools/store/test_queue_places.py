"""Which units a record should have."""

from __future__ import annotations

from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import RecordStatus, RecordView
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.tools.store.queue_places import QueuePlace, queue_places
from tests.tools.store.support import Sample, run, run_json

LEVELS = DelayLevels()


def record(properties: dict[str, str], sys_flag: int = 0) -> RecordView:
    return RecordView(
        RecordStatus.MESSAGE,
        100,
        queue_id=3,
        queue_offset=7,
        sys_flag=sys_flag,
        topic=b"T",
        properties=encode_properties(properties).encode(),
    )


def test_light_queues_of_rocketmq() -> None:
    """Queues named %LMQ% always have the number 0; other names keep the record's."""
    lmq = {"INNER_MULTI_DISPATCH": "%LMQ%a,other", "INNER_MULTI_QUEUE_OFFSET": "5,9"}
    assert queue_places(record(lmq), LEVELS) == [
        QueuePlace("T", 3, 7, 0),
        QueuePlace("%LMQ%a", 0, 5, 0),
        QueuePlace("other", 3, 9, 0),
    ]
    odd = {**lmq, "INNER_MULTI_QUEUE_OFFSET": "5"}
    assert queue_places(record(odd), LEVELS) == [QueuePlace("T", 3, 7, 0)]


def test_prepared_and_rolled_back_messages_are_in_no_queue() -> None:
    counts = [len(queue_places(record({}, sys_flag), LEVELS)) for sys_flag in (0, 4, 8, 12)]
    assert counts == [1, 0, 1, 0]


def test_the_levels_tell_the_times_of_delayed_messages(pristine: Sample) -> None:
    words = ("verify", pristine.root, "--delay-levels")
    other = run_json(*words, "1s 5s 10s", exit_code=1)
    assert set(other["kinds"]) == {"queue.tags-code"}
    assert run(*words, "soon").exit_code == 2
