"""What outlives a broker that starts again."""

from __future__ import annotations

import pytest

from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, holds_queues, numbered

pytestmark = pytest.mark.interop

QUEUES = 3


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_messages_topics_and_offsets_outlive_the_broker(
    own_broker: Broker, own_tools: JavaTools, topic: str, group: str, how: str
) -> None:
    own_tools.queues(topic, create=QUEUES)
    own_tools.produce(topic, "sync", 12, prefix="read")
    own_tools.received(topic, group, 12)
    own_tools.produce(topic, "sync", 8, prefix="unread")
    if how == "stopped":
        own_broker.stop()
    else:
        own_broker.kill()
    own_broker.start()

    consumer = own_tools.consume(topic, group)
    unread = {*numbered("unread", 8)}
    consumer.wait_for("the rest", lambda: unread <= {*bodies(consumer.named("message"))})
    consumer.finish()
    again = {*bodies(consumer.named("message"))} - unread
    assert again <= {*numbered("read", 12)}
    assert how == "killed" or not again  # a kill may cost five seconds of offsets
    assert [queue["queue_id"] for queue in own_tools.queues(topic)] == [*range(QUEUES)]


def test_clients_come_back(
    own_broker: Broker, own_tools: JavaTools, topic: str, group: str
) -> None:
    own_tools.queues(topic, create=QUEUES)
    consumer = own_tools.consume(topic, group)
    holds_queues(consumer, QUEUES)
    own_tools.produce(topic, "sync", 6, prefix="before")
    consumer.count("message", 6)
    own_broker.kill()
    own_broker.start()
    own_tools.produce(topic, "sync", 6, prefix="after")
    consumer.wait_for(
        "what came later",
        lambda: {*numbered("after", 6)} <= {*bodies(consumer.named("message"))},
    )
    consumer.finish()
