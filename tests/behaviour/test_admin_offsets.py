"""Moving groups, reading by time, dead letters, members and traces, over every kind of cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Message,
    NotFound,
    NotSupported,
    Producer,
    SendResult,
    StartFrom,
)
from tests.behaviour.cluster import APACHE_4, APACHE_5, Cluster
from tests.behaviour.support import Inbox, bodies, consuming, numbered, received, send_numbered
from tests.support.patience import until


@pytest.fixture
async def admin(client: Client) -> AsyncIterator[Admin]:
    """An Admin on the test's client."""
    async with Admin(client=client) as admin:
        yield admin


async def one_by_one(producer: Producer, topic: str, count: int) -> list[SendResult]:
    """Send `m-<n>`, each stored at another millisecond."""
    results: list[SendResult] = []
    for number in range(count):
        results.append(await producer.send(Message(topic, f"m-{number}", keys=f"k-{number} all")))
        await asyncio.sleep(0.003)
    return results


async def test_queries_by_time(admin: Admin, producer: Producer, topic: str) -> None:
    await one_by_one(producer, topic, 10)
    everything = [message async for message in admin.scan(topic)]
    times = {message.body: message.stored_at for message in everything}
    assert len(times) == 10
    start, stop = times[b"m-3"], times[b"m-7"]
    found = await admin.query(topic, start=start, stop=stop)
    assert [message.body.decode() for message in found] == ["m-3", "m-4", "m-5", "m-6"]
    assert len(await admin.query(topic, start=start)) == 7
    assert len(await admin.query(topic, stop=stop)) == 7
    assert await admin.query(topic, start=datetime.now(UTC) + timedelta(hours=1)) == []


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_group_without_members_moves(
    admin: Admin, client: Client, producer: Producer, topic: str, group: str, dry_run: bool
) -> None:
    await one_by_one(producer, topic, 12)
    await received(client, topic, group, 12)
    times = {message.body: message.stored_at async for message in admin.scan(topic)}
    reset = await admin.reset_offset(group, topic, when=times[b"m-8"], dry_run=dry_run)
    assert sum(row.before or 0 for row in reset.queues) == 12
    assert sum(row.after for row in reset.queues) == 8, "what is older stays done, exactly"
    assert sum(row.moved for row in reset.queues) == -4
    expected = 0 if dry_run else 4
    assert (await admin.progress(group, topic)).lag == expected
    if not dry_run:
        again = await received(client, topic, group, 4)
        assert bodies(again) == ["m-10", "m-11", "m-8", "m-9"]


async def test_to_an_exact_offset_and_to_the_ends(
    cluster: Cluster, admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 8)
    queues = sorted(await producer.queues(topic))
    await received(client, topic, group, 8)
    back = await admin.reset_offset(group, topic, when="begin")
    assert {row.after for row in back.queues} == {0}
    one = await admin.reset_offset(group, topic, offset={queues[0]: 1, queues[1]: 10**9})
    ends = {stats.queue: stats.end for stats in (await admin.describe_topic(topic)).queues}
    assert {row.queue: row.after for row in one.queues} == {
        queues[0]: 1,
        queues[1]: ends[queues[1]],
    }
    lag = {row.queue: row.lag for row in (await admin.progress(group, topic)).queues}
    assert lag[queues[0]] == ends[queues[0]] - 1
    assert lag[queues[1]] == 0
    assert lag[queues[2]] == ends[queues[2]]
    await admin.reset_offset(group, topic, when="end")
    assert (await admin.progress(group, topic)).lag == 0


async def test_a_group_with_members_moves(
    cluster: Cluster, admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    await one_by_one(producer, topic, 8)
    async with consuming(client, topic, group) as inbox:
        await inbox.count(8)
        assert inbox.consumer is not None
        await inbox.consumer.commit()
        times = {message.body: message.stored_at async for message in admin.scan(topic)}
        reset = await admin.reset_offset(group, topic, when=times[b"m-4"])
        assert {row.how for row in reset.queues} == {
            "broker" if cluster.kind == APACHE_5 else "members"
        }
        await inbox.wait(lambda: set(numbered("m", 8)[4:]) <= set(inbox.bodies[8:]))
        assert len(inbox.bodies) <= 8 + 4 + 4, "at most one more of each queue"
        if cluster.kind == APACHE_4:
            with pytest.raises(NotSupported, match="by time alone"):
                await admin.reset_offset(group, topic, offset=0)
        elif cluster.is_ours:  # 5.3's way by time is that by offset, and its held pulls are slow
            before = len(inbox.bodies)
            await admin.reset_offset(group, topic, offset=0)
            await inbox.wait(lambda: set(numbered("m", 8)) <= set(inbox.bodies[before:]))


async def test_offsets_are_cloned(
    cluster: Cluster, admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 8)
    await received(client, topic, group, 8)
    other = cluster.unique("G")
    await admin.create_group(other)
    await admin.clone_offsets(group, other, topic)
    assert (await admin.progress(other, topic)).lag == 0
    await send_numbered(producer, topic, "n", 4)
    assert bodies(await received(client, topic, other, 4)) == numbered("n", 4)


async def test_dead_letters_and_their_redrive(
    admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    sent = {await_result.msg_id for await_result in await one_by_one(producer, topic, 5)}
    assert [letter async for letter in admin.dead_letters(group)] == []
    async with consuming(client, topic, group, Inbox(fail=1), max_reconsume=0) as inbox:
        await inbox.count(5)

        async def dead() -> bool:
            return len([letter async for letter in admin.dead_letters(group)]) == 5

        await until(dead, "five dead letters")
    letters = [letter async for letter in admin.dead_letters(group)]
    assert {letter.msg_id for letter in letters} == sent
    assert {letter.origin_topic for letter in letters} == {topic}
    places = [await admin.plan_copy(letter, group) for letter in letters]
    assert [
        await admin.find_copy(letter, place) for letter, place in zip(letters, places, strict=True)
    ] == [None] * 5
    done = [await admin.redrive_dead_letter(letter, group) for letter in letters]
    assert {outcome.status for outcome in done} == {"sent"}
    assert [
        await admin.find_copy(letter, place) for letter, place in zip(letters, places, strict=True)
    ] == [outcome.place for outcome in done]
    again = await received(client, topic, group, 5, start_from=StartFrom.LAST)
    assert {message.msg_id for message in again} == sent
    assert {message.topic for message in again} == {topic}
    assert {message.reconsume_times for message in again} == {0}
    assert {message.keys.split()[1] for message in again} == {"all"}


async def test_a_trace_is_found(
    cluster: Cluster, admin: Admin, client: Client, topic: str, group: str
) -> None:
    traces = cluster.unique("T")
    await admin.create_topic(traces, queues=1)
    async with Producer(client=client, trace=traces) as producer:
        result = await producer.send(Message(topic, "traced", tags="A"))

    async def found() -> bool:
        return len((await admin.trace(result.msg_id, topic=traces)).sends) == 1

    await until(found, "the trace")
    (send,) = (await admin.trace(result.msg_id, topic=traces)).sends
    assert (send.topic, send.tags, send.success, send.kind) == (topic, "A", True, "normal")
    assert send.offset_msg_id == result.offset_msg_id


async def test_a_group_that_nobody_has_is_named(
    admin: Admin, producer: Producer, topic: str
) -> None:
    await one_by_one(producer, topic, 1)
    with pytest.raises(NotFound, match="no group mistyped"):
        await admin.progress("mistyped")
    with pytest.raises(NotFound, match="no group mistyped"):
        await admin.reset_offset("mistyped", topic, when="begin", dry_run=True)
    with pytest.raises(NotFound, match="no group mistyped"):
        await admin.clone_offsets("mistyped", "other", topic)
    assert "mistyped" not in await admin.list_groups()
