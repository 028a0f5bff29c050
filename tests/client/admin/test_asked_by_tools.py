"""What the command line asks beside the rest: routes, statistics, all groups, kept texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skylarkmq.client import BrokerError, DeduplicationWindow, NotFound
from skylarkmq.protocol.bodies.stats import ReadConsumeStatsList
from skylarkmq.protocol.bodies.text import decode_body
from tests.client.admin.support import site

OF_APACHE = (
    b'{"brokerAddr":"127.0.0.1:10911","consumeStatsList":[{"billing":[{"consumeTps":0.5,'
    b'"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"orders"}:{"brokerOffset":9,'
    b'"consumerOffset":4,"lastTimestamp":1700000000000}}}]},{"empty":[]}],"totalDiff":5}'
)


def test_all_groups_as_rocketmq_writes_them() -> None:
    """Its JSON has objects for keys, two levels down."""
    body = decode_body(ReadConsumeStatsList, OF_APACHE)
    billing, empty = body.consume_stats_list
    ((queue, row),) = billing["billing"][0].offset_table
    assert (queue.topic, queue.queue_id, row.broker_offset, row.consumer_offset) == (
        "orders", 1, 9, 4,
    )  # fmt: skip
    assert empty == {"empty": []}


async def test_what_the_command_line_asks(tmp_path: Path) -> None:
    async with site(tmp_path) as cluster:
        admin = cluster.admin
        await admin.create_topic("orders", queues=2)
        await cluster.send("orders", 4)
        await cluster.consume("orders", "billing", 4)

        route = await admin.topic_route("orders")
        (broker,), (settings,) = route.brokers, route.settings
        assert (broker.name, settings.write_queues, settings.perm) == ("broker-a", 2, "rw")

        (told,) = [each for each in await admin.broker_progress("broker-a") if each.queues]
        assert (told.group, told.lag, sum(queue.end for queue in told.queues)) == ("billing", 0, 4)

        (puts,) = await admin.statistic("TOPIC_PUT_NUMS", "orders")
        assert (puts.broker, puts.day.total) == ("broker-a", 4)
        assert await admin.statistic("TOPIC_PUT_NUMS", "nobody") == ()

        assert await admin.kept_texts("notes") == {}
        await admin.keep_text("notes", "one", "text")
        assert await admin.kept_texts("notes") == {"one": "text"}
        await admin.keep_text("notes", "one", None)
        assert await admin.kept_texts("notes") == {}
        with pytest.raises(BrokerError, match="take a restart"):
            await admin.set_name_server_config({"orderMessageEnable": "true"})


async def test_brokers_by_address(tmp_path: Path) -> None:
    async with site(tmp_path) as cluster:
        admin = cluster.admin
        address = (await admin.cluster()).brokers[0].addresses[0]
        await admin.create_topic("orders", queues=1, brokers=[address])
        await admin.update_topic("orders", perm="r", brokers=[address])
        assert (await admin.topic_route("orders")).settings[0].perm == "r"
        assert (await admin.broker_config(address))["brokerName"] == "broker-a"
        assert (await admin.broker_runtime(address)).version
        with pytest.raises(NotFound, match=f"address 127.0.0.1:1; known: {address}"):
            await admin.broker_runtime("127.0.0.1:1")


async def test_what_clients_of_rocketmq_5_may_send(tmp_path: Path) -> None:
    def kept() -> str:
        table = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
        return str(table["orders"]["attributes"]["message.type"])

    async with site(tmp_path) as cluster:
        admin, window = cluster.admin, DeduplicationWindow(60, 1000)
        await admin.create_topic("orders", message_type="FIFO", deduplication=window)
        assert kept() == "FIFO"
        await admin.update_topic("orders", message_type="MIXED")
        assert kept() == "MIXED"
        assert await admin.deduplication_windows("orders") == {"broker-a": window}


async def test_all_settings_of_a_group_and_its_end_on_one_broker(tmp_path: Path) -> None:
    async with site(tmp_path) as cluster:
        admin = cluster.admin
        await admin.create_group("billing", from_min_enabled=False, broker_id_when_slow=2)
        await admin.update_group("billing", notify_members=False, broker_id=1)
        (settings,) = (await admin.describe_group("billing")).settings
        assert (settings.from_min_enabled, settings.notify_members) == (False, False)
        assert (settings.broker_id, settings.broker_id_when_slow) == (1, 2)
        assert not settings.orderly
        await admin.update_group("billing", orderly=True)
        (settings,) = (await admin.describe_group("billing")).settings
        assert settings.orderly
        assert not settings.notify_members
        await admin.delete_group("billing", brokers=["broker-a"])
        with pytest.raises(NotFound):
            await admin.describe_group("billing")
