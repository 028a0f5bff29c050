"""RocketMQ 5's names on /metrics, those that need a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.broker_metrics import registry_of
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.broker.metrics.rocketmq5 import version_name
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import LanguageCode
from tests.broker.group_rig import FakeConnection
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

DATA = ConsumerData(
    consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
    group_name="billing", message_model="CLUSTERING",
)  # fmt: skip


def registry(broker: BrokerController) -> CollectorRegistry:
    checks = HealthChecks(ready={}, live={})
    return registry_of(broker.parts, checks, "asyncio", dict, lambda: 1)


def samples(found: CollectorRegistry) -> dict[str, list[tuple[dict[str, str], float]]]:
    """All series by the names that are exposed."""
    rows: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in found.collect():
        for each in family.samples:
            rows.setdefault(each.name, []).append((each.labels, each.value))
    return rows


async def a_group_of_one(broker: BrokerController) -> RawClient:
    """Three messages in a topic, of which a group confirmed the first and was handed all."""
    client = await RawClient.open(broker.listen_address)
    for _ in range(3):
        assert (await client.call(310, send_fields("orders"), b"x")).code == 0
    parts = broker.parts
    peer = FakeConnection()
    parts.consumers.register(peer, "one", LanguageCode.JAVA, 409, DATA)  # type: ignore[arg-type]
    fields = {**pull_fields("orders"), "consumerGroup": "billing"}
    for path in ("slow", "fast"):
        parts.stats.pulled_by("orders", "billing").clear()
        assert (await client.call(11, fields)).code == 0
        assert parts.stats.pulled_by("orders", "billing") == {0: 3}, path
    parts.offsets.keep("x", "billing", "orders", 0, 1)
    await parts.measure()
    return client


async def test_messages_in_flight_and_ready(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await a_group_of_one(broker)
        (row,) = broker.parts.lag.rows
        assert row[:3] == Lag("orders", "billing", 2)[:3]
        assert (row.in_flight, row.ready, row.queueing_ms, row.offset) == (2, 0, 0, 1)
        assert (await client.call(310, send_fields("orders"), b"x")).code == 0
        await broker.parts.measure()
        (row,) = broker.parts.lag.rows
        assert (row.messages, row.in_flight, row.ready) == (3, 2, 1)
        broker.parts.consumers.connection_closed(*broker.parts.consumers.clients("billing"))
        await broker.parts.measure()
        (row,) = broker.parts.lag.rows
        assert (row.in_flight, row.ready) == (0, 3), "nobody is left who could have them"
        await client.close()


async def test_what_is_deleted_disappears(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await a_group_of_one(broker)
        found = registry(broker)
        broker.parts.stats.dead_letter("orders", "billing").count = 1
        broker.parts.stats.transactions_of("orders").committed = 1

        def names_of(word: str) -> set[str]:
            return {
                name
                for name, rows in samples(found).items()
                if any(word in labels.values() for labels, _ in rows)
            }

        assert {
            "rocketmq_consumer_inflight_messages",
            "rocketmq_commit_messages_total",
            "rocketmq_send_to_dlq_messages_total",
        } <= names_of("orders")
        assert (await client.call(215, {"topic": "orders"})).code == 0
        broker.parts.consumers.connection_closed(*broker.parts.consumers.clients("billing"))
        await broker.parts.measure()
        assert names_of("orders") == set()
        assert names_of("billing") == set()
        await client.close()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (409, "v4_9_8"),
        (408, "v4_9_8_snapshot"),
        (313, "v4_5_0"),
        (213, "v4_0_0"),
        (413, "v5_0_0"),
        (121, "v3_4_9"),
        (1, "lower_version"),
        (-5, "lower_version"),
        (10**9, "higher_version"),
    ],
)
def test_version_names(version: int, name: str) -> None:
    assert version_name(version) == name
