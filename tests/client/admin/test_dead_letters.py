"""Dead letters and their redrive, letter by letter: copies, failures, and where copies are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Admin, Consumer, Message, NotFound, Producer, RouteNotFound
from skylarkmq.client.admin import CopyPlace
from skylarkmq.protocol.message import MessageQueue
from tests.client.admin.support import Site, site
from tests.client.consumer.support import Group


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
        (outcome,) = await it.redrive("billing")
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
        (outcome,) = await it.redrive("billing")
        assert (outcome.status, outcome.target) == ("sent", "%RETRY%billing")
        async with Consumer("orders", client=it.client, group="billing") as member:
            assert (await member.getone(30)).msg_id == ids[0]
        assert [one.msg_id async for one in it.admin.dead_letters("billing")] == ids


async def test_to_the_topic_all_groups_get_it(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 2)
        await it.consume("orders", "other", 2)
        for outcome in await it.redrive("billing", "topic"):
            assert (outcome.status, outcome.target) == ("sent", "orders")
        async with Consumer("orders", client=it.client, group="other") as member:
            again = [await member.getone(30) for _ in ids]
        assert {message.msg_id for message in again} == set(ids)
        assert {message.properties["own"] for message in again} == {"yes"}
        assert {(message.tags, message.keys) for message in again} == {("T", "k")}
        assert "RETRY_TOPIC" not in again[0].properties


async def test_a_copy_with_a_priority_is_found_where_its_level_is(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("urgent", queues=4, message_type="PRIORITY")
        async with Producer(client=it.client) as producer:
            await producer.send(Message("urgent", b"m", priority=9))
        await it.consume("urgent", "helpers", 1, dead=1)
        letter = await anext(it.admin.dead_letters("helpers"))
        place = await it.admin.plan_copy(letter, "helpers", to="topic")
        assert place == CopyPlace(MessageQueue("urgent", "broker-a", 3), 1)
        sent = await it.admin.redrive_dead_letter(letter, "helpers", to="topic", place=place)
        assert await it.admin.find_copy(letter, place) == sent.place == place


@pytest.mark.parametrize(
    ("given", "level"), [({}, 0), ({"sharding_key": "s"}, 0), ({"priority": 2}, 2)]
)
async def test_a_topic_with_priorities_gets_every_copy_where_it_was_planned(
    tmp_path: Path, given: dict[str, Any], level: int
) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("urgent", queues=4, message_type="PRIORITY")
        async with Producer(client=it.client) as producer:
            for _ in range(4):
                await producer.send(Message("urgent", b"m", **given))
        await it.consume("urgent", "helpers", 4, dead=4)
        placed: list[CopyPlace] = []
        async for letter in it.admin.dead_letters("helpers"):
            place = await it.admin.plan_copy(letter, "helpers", to="topic")
            sent = await it.admin.redrive_dead_letter(letter, "helpers", to="topic", place=place)
            assert await it.admin.find_copy(letter, place, taken=placed) == sent.place == place
            placed.append(place)
        assert {place.queue.queue_id for place in placed} == {level}


async def test_the_place_of_a_copy_is_where_the_broker_stored_it(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("urgent", queues=4, message_type="PRIORITY")
        async with Producer(client=it.client) as producer:
            await producer.send(Message("urgent", b"m", priority=2))
        await it.consume("urgent", "helpers", 1, dead=1)
        letter = await anext(it.admin.dead_letters("helpers"))
        elsewhere = CopyPlace(MessageQueue("urgent", "broker-a", 0), 0)
        sent = await it.admin.redrive_dead_letter(letter, "helpers", to="topic", place=elsewhere)
        assert sent.place == CopyPlace(MessageQueue("urgent", "broker-a", 2), 1)


async def test_a_failure_is_an_outcome(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 3)
        await it.admin.delete_topic("orders")
        outcomes = await it.redrive("billing", "topic")
        assert {one.msg_id for one in outcomes} == set(ids)
        assert {one.status for one in outcomes} == {"failed"}
        assert all("no queue to write to" in one.error for one in outcomes)
        letter = await anext(it.admin.dead_letters("billing"))
        with pytest.raises(ValueError, match="group or topic"):
            await it.admin.plan_copy(letter, "billing", to="all")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no dead letter of other"):
            await it.admin.redrive_dead_letter(letter, "other")


async def test_a_copy_is_found_from_where_its_queue_ended(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await with_letters(it, 2)
        first, second = [letter async for letter in it.admin.dead_letters("billing")]
        place = await it.admin.plan_copy(first, "billing")
        assert place == CopyPlace(MessageQueue("%RETRY%billing", "broker-a", 0), 0)
        assert await it.admin.find_copy(first, place) is None, "the topic is not even there"
        for letter in (second, first):
            sent = await it.admin.redrive_dead_letter(letter, "billing", place=place)
        assert await it.admin.find_copy(first, place) == sent.place == replace(place, offset=1)
        assert await it.admin.find_copy(first, place, taken={sent.place}) is None
        await it.consume("orders", "billing", 2, dead=1)
        assert await it.admin.find_copy(first, replace(place, offset=2)) is None
        with pytest.raises(NotFound, match="has no offset 3 any more"):
            await it.admin.find_copy(first, replace(place, offset=3))


async def test_a_copy_that_failed_again_is_not_the_first(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await with_letters(it, 1)
        letter = await anext(it.admin.dead_letters("billing"))
        sent = await it.admin.redrive_dead_letter(letter, "billing")
        place = sent.place
        assert place is not None
        async with Consumer("orders", client=it.client, group="billing") as member:
            await (await member.getone(30)).nack(1)
            again = await member.getone(30)
        assert again.reconsume_times == 1
        assert await it.admin.find_copy(letter, place) == place
        assert await it.admin.find_copy(letter, replace(place, offset=1)) is None


async def test_where_a_scan_goes_on(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        ids = await with_letters(it, 40)  # more than a page
        taken: list[str] = []
        positions = None
        for _ in range(4):
            part = it.admin.dead_letters("billing", after=positions)
            async for letter in part:
                taken.append(letter.msg_id)
                if len(taken) % 10 == 0:
                    break
            positions = part.progress.positions
        assert taken == ids
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
