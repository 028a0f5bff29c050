"""Messages that come later: by level everywhere, by time where the broker has timers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from skylarkmq.client import Client, Message, NotSupported, Producer
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import bodies, received

SECOND = timedelta(seconds=1)


async def test_delayed(
    cluster: Cluster, producer: Producer, client: Client, topic: str, group: str
) -> None:
    """None comes early, and none is missing."""
    born = datetime.now(UTC)
    due = {"level-1": born + SECOND, "level-2": born + 2 * SECOND, "now": born}
    messages = [
        Message(topic, "now"),
        Message(topic, "level-1", delay_level=1),
        Message(topic, "level-2", delay_level=2),
    ]
    if cluster.has("timers"):
        due["by-delay"] = born + 1.3 * SECOND
        due["by-time"] = born + 1.7 * SECOND
        messages.append(Message(topic, "by-delay", delay=1.3 * SECOND))
        messages.append(Message(topic, "by-time", deliver_at=due["by-time"]))
    await asyncio.gather(*map(producer.send, messages))
    got = await received(client, topic, group, len(messages))
    assert bodies(got) == sorted(due)
    for message in got:
        assert message.topic == topic
        assert message.stored_at >= due[message.body.decode()] - timedelta(milliseconds=1)


async def test_a_delay_that_the_broker_would_drop_is_refused(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    if cluster.has("timers"):
        pytest.skip(f"{cluster.kind} has timers")
    with pytest.raises(NotSupported, match="delay_level"):
        await producer.send(Message(topic, "never", delay=SECOND))
    with pytest.raises(NotSupported, match="delay_level"):
        await producer.send_oneway(Message(topic, "never", deliver_at=datetime.now(UTC) + SECOND))
