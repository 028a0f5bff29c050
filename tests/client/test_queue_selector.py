"""Which queue a message goes to."""

from __future__ import annotations

import pytest

from skylarkmq.client import (
    IllegalState,
    Message,
    MessageQueue,
)
from skylarkmq.client.producer.lanes import by_hash
from tests.client.support import Setting


async def test_equal_keys_share_a_queue() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 8})
        by_key: dict[str, set[int]] = {}
        for number in range(40):
            key = f"customer-{number % 10}"
            result = await it.producer.send(Message("orders", b"x"), key=key)
            by_key.setdefault(key, set()).add(result.queue.queue_id)
            again = await it.producer.send(Message("orders", b"x", sharding_key=key))
            by_key[key].add(again.queue.queue_id)
        assert all(len(queue_ids) == 1 for queue_ids in by_key.values())
        assert len(set.union(*by_key.values())) > 1


def test_the_hash_selector_takes_java_s_queue() -> None:
    queues = [MessageQueue("t", "b", n) for n in range(10)]
    # "polygenelubricants".hashCode() is the least 32-bit integer; Java: abs(hash % 10) = 8.
    assert by_hash(queues, "polygenelubricants").queue_id == 8
    assert by_hash(queues, "a").queue_id == 97 % 10


async def test_a_queue_or_a_selector_decides() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 4})
        queues = await it.producer.queues("orders")
        assert queues == [MessageQueue("orders", "broker-a", n) for n in range(4)]
        result = await it.producer.send(Message("orders", b"x"), queue=queues[2])
        assert result.queue == queues[2]
        result = await it.producer.send(Message("orders", b"x"), selector=lambda all, _: all[-1])
        assert result.queue == queues[3]
        for selector in (lambda *_: MessageQueue("orders", "broker-z", 0), lambda *_: 1 // 0):
            with pytest.raises(IllegalState, match="selector"):
                await it.producer.send(Message("orders", b"x"), selector=selector)
        with pytest.raises(IllegalState, match="no queue of topic"):
            await it.producer.send(Message("other", b"x"), queue=queues[0])
        assert it.producer.in_flight_count == 0
