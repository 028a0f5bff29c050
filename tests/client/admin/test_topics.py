"""Topics: letters of permissions, which ones are listed, order topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import BrokerError, NotFound, RouteNotFound
from skylarkmq.client.admin.topics import parse_perm, perm_letters
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.headers.route import GetKVConfigRequestHeader
from tests.client.admin.support import Site, site, two_brokers


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


async def test_fewer_queues_to_write_leave_those_to_read(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=8)

        async def queues(**changes: int) -> tuple[int, int]:
            await it.admin.update_topic("orders", **changes)
            (one,) = (await it.admin.describe_topic("orders")).settings
            return one.write_queues, one.read_queues

        assert await queues(queues=4) == (4, 8)
        assert await queues(queues=6) == (6, 8)
        assert await queues(read_queues=6) == (6, 6)
        assert await queues(queues=7) == (7, 7)


@pytest.mark.parametrize(
    ("count", "error"),
    [("3", "is a whole number, not '3'"), (True, "is a whole number"), (0, "is 1 or more, not 0")],
)
async def test_what_is_no_number_of_queues_is_told(tmp_path: Path, count: Any, error: str) -> None:
    async with site(tmp_path) as it:
        for change in (it.admin.create_topic, it.admin.update_topic):
            with pytest.raises((TypeError, ValueError), match=f"^queues {error}"):
                await change("orders", queues=count)
            with pytest.raises((TypeError, ValueError), match=f"^read_queues {error}"):
                await change("orders", read_queues=count)


async def order_of(it: Site, topic: str) -> str | None:
    """What the name server keeps of an order topic."""
    header = GetKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key=topic)
    accepted = frozenset({0, 22})
    answer = await it.admin._api.call(
        it.namesrv, RequestCode.GET_KV_CONFIG, header, accepted=accepted
    )
    return answer.ext_fields.get("value")


async def test_the_queues_of_an_order_topic_change_where_they_are_changed(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as it:
        await it.admin.create_topic("orders", queues=2, order=True, brokers=["broker-b"])
        await it.admin.create_topic("orders", queues=3, order=True, exist_ok=True)
        assert await order_of(it, "orders") == "broker-a:3;broker-b:2"
        await it.admin.update_topic("orders", queues=8, brokers=["broker-a"])
        assert await order_of(it, "orders") == "broker-a:8;broker-b:2"
        await it.admin.update_topic("orders", order=False, brokers=["broker-b"])
        assert await order_of(it, "orders") == "broker-a:8"
        await it.admin.update_topic("orders", order=False)
        assert await order_of(it, "orders") is None
        await it.admin.update_topic("orders", order=True)
        assert await order_of(it, "orders") == "broker-a:8;broker-b:2"
        await it.admin.delete_topic("orders")
        assert await order_of(it, "orders") is None


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
