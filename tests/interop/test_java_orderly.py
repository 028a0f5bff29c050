"""RocketMQ's Java consumer with queue locks: one consumer a queue, one message after another."""

from __future__ import annotations

import pytest

from tests.interop.children import Event
from tests.interop.tools import LOCK_SOON, JavaTools, holds_queues

pytestmark = pytest.mark.interop

QUEUES = 4
COUNT = 24


def test_a_failed_message_holds_its_queue(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=QUEUES)
    consumer = tools.consume(topic, group, LOCK_SOON, listener="orderly", fail=1)
    tools.produce(topic, "ordered", COUNT, orders=QUEUES)
    received = consumer.count("message", 2 * COUNT)
    consumer.finish()

    for queue in range(QUEUES):
        rows = rows_of(received, queue)
        assert rows == [row for row in sorted({*rows}) for _ in range(2)]
        assert len(rows) == 2 * COUNT // QUEUES
    assert {event["reconsume_times"] for event in received} == {0, 1}


def test_locks_pass_to_the_consumer_that_stays(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=QUEUES)
    pair = [tools.consume(topic, group, LOCK_SOON, listener="orderly") for _ in range(2)]
    held = [holds_queues(consumer, QUEUES // 2) for consumer in pair]
    assert held[0] | held[1] == set(range(QUEUES))
    tools.produce(topic, "ordered", COUNT, orders=QUEUES)
    for consumer in pair:
        consumer.count("message", COUNT // 2)

    gone, staying = pair
    gone.finish()
    assert holds_queues(staying, QUEUES) == set(range(QUEUES))
    tools.produce(topic, "ordered", COUNT, orders=QUEUES, prefix="late")
    staying.count("message", COUNT // 2 + COUNT)
    staying.finish()

    received = gone.named("message") + staying.named("message")
    assert len(received) == 2 * COUNT
    for queue in range(QUEUES):
        assert rows_of(received, queue) == 2 * [*range(queue, COUNT, QUEUES)]


def rows_of(events: list[Event], queue: int) -> list[int]:
    """The row numbers of a queue's messages as they came."""
    return [int(event["properties"]["row"]) for event in events if event["queue_id"] == queue]
