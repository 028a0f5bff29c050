"""The metrics of one scenario to the letter, on a clock that stands while nothing is waited for."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from skylarkmq.client import Message, Producer
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe import metrics as client_metrics
from skylarkmq.client.observe.metrics import OTHER, Families, families_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.client.observed import Observed

COUNTS = {
    ("send_duration", 'outcome="ok",topic="orders"'): 2,
    ("send_duration", 'outcome="MessageIllegal",topic="orders"'): 1,
    ("consume_duration", f'consumer_group="{GROUP}",outcome="ok",topic="orders"'): 2,
    ("consume_duration", f'consumer_group="{GROUP}",outcome="retry",topic="orders"'): 1,
    ("receive_to_process", f'consumer_group="{GROUP}",topic="orders"'): 3,
}


def lines_of(registry: CollectorRegistry, *parts: str) -> list[str]:
    """The exposed series whose name has one of the parts, without the times of their making."""
    text = generate_latest(registry).decode()
    found = [line for line in text.splitlines() if not line.startswith("#")]
    return [line for line in found if any(part in line for part in parts)]


async def test_a_scenario_to_the_letter() -> None:
    registry = CollectorRegistry()
    await Observed(metrics=registry).scenario()
    assert lines_of(registry, "_seconds_count") == [
        f"skylarkmq_client_{name}_seconds_count{{{labels}}} {count:.1f}"
        for (name, labels), count in COUNTS.items()
    ]
    changes = lines_of(registry, "rebalances_total")
    assert changes == [
        f'skylarkmq_client_rebalances_total{{consumer_group="{GROUP}"}} 2.0'  # its retries' topic
    ]
    assert lines_of(registry, "buffered") == [], "a consumer that has left holds nothing"


async def test_what_consumers_hold_is_read_at_the_scrape() -> None:
    registry = CollectorRegistry()
    it = Observed(metrics=registry)
    await it.send(b"one", b"two")
    consumer = await it.consumer()
    await it.pass_time(1)
    _, count = lines_of(registry, "buffered_messages")  # and those of the retry topic
    labels = f'{{consumer_group="{GROUP}",topic="orders"}}'
    assert count == f"skylarkmq_client_buffered_messages{labels} 2.0"
    _, size = lines_of(registry, "buffered_bytes")
    message = await it.wait(consumer.getone())
    assert size == f"skylarkmq_client_buffered_bytes{labels} {2.0 * message.size}"
    await it.wait(consumer.commit())
    assert lines_of(registry, "buffered_messages")[-1].endswith(" 1.0")
    await it.stop(consumer)


async def test_retries_count_by_their_reason() -> None:
    registry = CollectorRegistry()
    it = Observed(metrics=registry)
    async with Producer(client=it.client()) as producer:
        it.broker.refuse(RequestCode.SEND_MESSAGE_V2, *[ResponseCode.SYSTEM_BUSY] * 2)
        await it.wait(producer.send(Message("orders", b"x")))
        [line] = lines_of(registry, "retries_total")
        assert line == 'skylarkmq_client_send_retries_total{reason="SystemBusy"} 2.0'
        stopping = asyncio.create_task(producer.stop())
        await it.wait(stopping)


async def test_clients_of_one_registry_share_the_families() -> None:
    registry = CollectorRegistry()
    assert families_of(registry) is families_of(registry)
    for _ in range(2):
        await Observed(metrics=registry).scenario()
    found = lines_of(registry, "send_duration_seconds_count")
    assert found[0].endswith('outcome="ok",topic="orders"} 4.0')


async def test_without_a_registry_nothing_is_timed() -> None:
    it = Group({"orders": 1})
    client = it.client()
    await it.wait(client.start())
    assert services_of(client).hooks == []
    await it.wait(client.stop())


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "LABELS_MAX", 3)
    registry = CollectorRegistry()
    families = Families(registry)
    for number in range(10):
        families.send_duration.of(f"topic-{number}", "ok").observe(1)
    found = lines_of(registry, "send_duration_seconds_count")
    assert len(found) == 4
    assert f'{{outcome="{OTHER}",topic="{OTHER}"}} 7.0' in found[-1]
