"""Topics: letters of permissions, which ones are listed, order topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.client import BrokerError, NotFound, RouteNotFound
from skylarkmq.client.admin.topics import parse_perm, perm_letters
from tests.client.admin.support import site


def test_letters_of_a_permission() -> None:
    for bits in range(8):
        assert parse_perm(perm_letters(bits)) == bits
    assert parse_perm("WR") == 6
    with pytest.raises(ValueError, match="a letter other than"):
        parse_perm("rwz")


async def test_which_topics_are_listed(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        await it.send("orders", 1)
        await it.consume("orders", "billing", 1, dead=1)
        assert await it.admin.list_topics() == ["orders"]
        assert await it.admin.list_topics(cluster="DefaultCluster") == ["orders"]
        with_groups = await it.admin.list_topics(groups=True)
        assert with_groups == ["%DLQ%billing", "%RETRY%billing", "orders"]
        assert {"TBW102", "broker-a", "DefaultCluster"} <= set(
            await it.admin.list_topics(system=True)
        )


async def test_an_order_topic_is_known_to_the_name_server(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=3, order=True)
        await it.admin.update_topic("orders", queues=4)
        table = await it.admin._topic_config((await it.admin._masters())["broker-a"], "orders")
        assert (table.order, table.write_queue_nums, table.read_queue_nums) == (True, 4, 4)


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        with pytest.raises(RouteNotFound, match="topic_missing"):
            await it.admin.update_topic("orders", queues=1)
        await it.admin.create_topic("orders", queues=1)
        with pytest.raises(NotFound, match="broker-z has no topic orders"):
            await it.admin.update_topic("orders", queues=1, brokers=["broker-z"])
        with pytest.raises(BrokerError, match="conflict with system topic"):
            await it.admin.delete_topic("TBW102")
        with pytest.raises(ValueError):
            await it.admin.create_topic("no topic")
