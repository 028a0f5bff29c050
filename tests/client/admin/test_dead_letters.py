"""Dead letters and their replay, letter by letter: copies, failures, going on, cancellation."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.client import Admin, Consumer, Message, Producer, RouteNotFound
from tests.client.admin.support import Site, site
from tests.client.consumer.support import Group
from tests.client.test_cancellation import cancelled_after


async def with_letters(it: Site, count: int) -> list[str]:
    """A topic of one queue, all of whose messages were given up."""
    await it.admin.create_topic("orders", queues=1)
    ids = await it.send("orders", count, keys="k", tags="T", properties={"own": "yes"})
    await it.consume("orders", "billing", count, dead=count)
    return ids


async def test_a_copy_is_like_the_message(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        async with Producer(client=it.client, compress_over=100) as packing:
            sent = await packing.send(Message("orders", b"x" * 5000, flag=7, sharding_key="s"))
        await it.consume("orders", "billing", 1, dead=1)
        (outcome,) = [one async for one in it.admin.replay_dead_letters("billing")]
        assert outcome.msg_id == sent.msg_id
        async with Consumer("orders", client=it.client, group="billing") as member:
            again = await member.getone(30)
        assert (again.body, again.flag, again.msg_id) == (b"x" * 5000, 7, sent.msg_id)
        assert (again.topic, again.sharding_key, again.reconsume_times) == ("orders", "s", 0)


async def test_a_group_without_retries_gets_its_letter_again(tmp_path: Path) -> None:
    """By the group's own number, 0, the copy would be a dead letter before anybody saw it."""
    async with site(tmp_path) as it:
        await it.admin.create_group("billing", max_retries=0)
        ids = await with_letters(it, 1)
        (outcome,) = [one async for one in it.admin.replay_dead_letters("billing")]
        assert (outcome.status, outcome.target) == ("replayed", "%RETRY%billing")
        async with Consumer("orders", client=it.client, group="billing") as member:
            assert (await member.getone(30)).msg_id == ids[0]
        assert [one.msg_id async for one in it.admin.dead_letters("billing")] == ids


async def test_to_the_topic_all_groups_get_it(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 2)
        await it.consume("orders", "other", 2)
        async for outcome in it.admin.replay_dead_letters("billing", to="topic"):
            assert (outcome.status, outcome.target) == ("replayed", "orders")
        async with Consumer("orders", client=it.client, group="other") as member:
            again = [await member.getone(30) for _ in ids]
        assert {message.msg_id for message in again} == set(ids)
        assert {message.properties["own"] for message in again} == {"yes"}
        assert {(message.tags, message.keys) for message in again} == {("T", "k")}
        assert "RETRY_TOPIC" not in again[0].properties


async def test_a_failure_is_an_outcome_and_the_next_one_follows(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 3)
        await it.admin.delete_topic("orders")
        replay = it.admin.replay_dead_letters("billing", to="topic")
        outcomes = [one async for one in replay]
        assert {one.msg_id for one in outcomes} == set(ids)
        assert {one.status for one in outcomes} == {"failed"}
        assert all("no queue to write to" in one.error for one in outcomes)
        assert (replay.progress.scanned, replay.progress.positions) == (3, {})
        with pytest.raises(ValueError, match="group or topic"):
            it.admin.replay_dead_letters("billing", to="all")  # type: ignore[arg-type]


async def test_cancelled_it_goes_on_with_the_same_letter(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 2)
        turns, doubled = 0, 0
        while True:
            replay = it.admin.replay_dead_letters("billing")
            ended = await cancelled_after(turns, anext(replay))  # type: ignore[arg-type]
            if ended:
                break
            outcomes = [one async for one in replay]
            assert [one.msg_id for one in outcomes] == ids, "none is passed over"
            turns, doubled = turns + 1 + turns // 4, doubled + 1
        assert doubled > 3


async def test_where_it_goes_on(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 40)  # more than a page
        taken: list[str] = []
        positions = None
        for _ in range(4):
            part = it.admin.replay_dead_letters("billing", after=positions, dry_run=True)
            async for outcome in part:
                taken.append(outcome.msg_id)
                if len(taken) % 10 == 0:
                    break
            positions = part.progress.positions
        assert taken == ids
        assert positions is not None
        rest = it.admin.dead_letters("billing", after=positions)
        assert [letter async for letter in rest] == []


async def test_the_first_page_is_all_that_is_held(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await with_letters(it, 100)
        scan = it.admin.dead_letters("billing")
        assert scan.progress.positions is None
        await anext(scan)
        assert len(scan._page) < 32
        assert (scan.progress.scanned, scan.progress.total) == (1, 100)
        assert len([letter async for letter in scan]) == 99


async def test_a_name_server_without_brokers_is_no_group_without_letters() -> None:
    it = Group()
    client, broker = it.client(), it.cluster.brokers.pop()
    async with client, Admin(client=client) as admin:
        with pytest.raises(RouteNotFound, match=r"No broker is registered with namesrv:9876"):
            await it.wait(anext(admin.dead_letters("billing")))
        it.cluster.brokers.append(broker)
        with pytest.raises(StopAsyncIteration):
            await it.wait(anext(admin.dead_letters("billing")))
