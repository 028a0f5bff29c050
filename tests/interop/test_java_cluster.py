"""A cluster of both kinds of brokers: each registers with the other's name server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = pytest.mark.interop

ORDERS = {"our name server": (SkylarkBroker, ApacheBroker), "theirs": (ApacheBroker, SkylarkBroker)}


@pytest.fixture(params=ORDERS)
def cluster(
    maven: None, request: pytest.FixtureRequest, children: Children
) -> Iterator[tuple[Broker, Broker]]:
    kinds = ORDERS[request.param]
    folders = [children.folder / kind.kind for kind in kinds]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as ends:
        first = kinds[0](Children(folders[0]), folders[0])
        ends.callback(first.end)
        first.start()  # only now it has its port
        second = kinds[1](Children(folders[1]), folders[1], first)
        ends.callback(second.end)
        second.start()
        yield first, second


def test_clients_use_both_brokers(
    cluster: tuple[Broker, Broker], children: Children, topic: str, group: str
) -> None:
    first, second = cluster
    tools = JavaTools(children, first)
    queues = tools.queues(topic, create=2)
    assert Counter(queue["broker_name"] for queue in queues) == {"broker-a": 2, "broker-b": 2}

    sent = tools.produce(topic, "sync", 16)
    received = tools.received(topic, group, 16)
    assert bodies(received) == numbered("m", 16)
    assert Counter(ack["broker_name"] for ack in sent) == {"broker-a": 8, "broker-b": 8}
    by_body = {event["body"]: event for event in received}
    for ack in sent:
        assert by_body[f"m-{ack['index']}"]["broker_name"] == ack["broker_name"]

    second.stop()  # it takes its leave of the name server
    assert {queue["broker_name"] for queue in tools.queues(topic)} == {"broker-a"}
    assert {ack["broker_name"] for ack in tools.produce(topic, "sync", 4)} == {"broker-a"}
