"""A broker is drained while the Java client sends and consumes, then stopped: nobody sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from skylarkmq.tools.drain import drain
from tests.interop.children import Children
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools, bodies, numbered
from tests.support.ports import free_ports

pytestmark = pytest.mark.interop

A_SECOND = 100
AFTERWARDS = 300
"""So many messages more, after the stop."""


@pytest.fixture
def shards(maven: None, children: Children) -> Iterator[tuple[SkylarkBroker, SkylarkBroker, int]]:
    """Two brokers, and the port of the second one's pages."""
    folders = [children.folder / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    (page,) = free_ports()
    with ExitStack() as ends:
        first = SkylarkBroker(Children(folders[0]), folders[0])
        ends.callback(first.end)
        first.start()
        second = SkylarkBroker(
            Children(folders[1]), folders[1], first, metricsPromExporterPort=page
        )
        ends.callback(second.end)
        second.start()
        yield first, second, page


def test_a_producer_gets_no_error_and_a_consumer_no_message_twice(
    shards: tuple[SkylarkBroker, SkylarkBroker, int], children: Children, topic: str, group: str
) -> None:
    first, second, page = shards
    tools = JavaTools(children, first)
    assert Counter(one["broker_name"] for one in tools.queues(topic, create=2)).total() == 4
    consumer = tools.consume(topic, group)
    consumer.event("started")
    producer = tools.start_produce(topic, "steady", A_SECOND)

    def names() -> set[str]:
        return {event["broker_name"] for event in producer.named("sent")}

    producer.wait_for("both brokers", lambda: len(names()) == 2)
    # The clients ask for routes and keep offsets every second.
    done = CliRunner().invoke(
        drain, ["--address", f"127.0.0.1:{page}", "--refresh", "5", "--wait", "300"]
    )
    assert done.exit_code == 0, done.output
    before = len(producer.named("sent"))
    second.stop()
    producer.count("sent", before + AFTERWARDS)
    producer.finish()
    assert producer.named("error") == []
    sent = numbered("m", len(producer.named("sent")))
    after = producer.named("sent")[before:]
    assert {event["broker_name"] for event in after} == {first.name}
    consumer.count("message", len(sent))
    consumer.finish()
    assert bodies(consumer.named("message")) == sent, "each one once"
