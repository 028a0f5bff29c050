"""Administration: the same calls over every kind of cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from skylarkmq.client import (
    Admin,
    AlreadyExists,
    Client,
    Message,
    NotFound,
    NotSupported,
    Producer,
    RouteNotFound,
    SendResult,
    StartFrom,
)
from tests.behaviour.cluster import APACHE_4, APACHE_5, Cluster, eventually
from tests.behaviour.support import Inbox, bodies, consuming, numbered, received, send_numbered


@pytest.fixture
async def admin(client: Client) -> AsyncIterator[Admin]:
    """An Admin on the test's client."""
    async with Admin(client) as admin:
        yield admin


async def one_by_one(producer: Producer, topic: str, count: int) -> list[SendResult]:
    """Send `m-<n>`, each stored at another millisecond."""
    results: list[SendResult] = []
    for number in range(count):
        results.append(await producer.send(Message(topic, f"m-{number}", keys=f"k-{number} all")))
        await asyncio.sleep(0.003)
    return results


async def test_life_of_a_topic(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    name = cluster.unique("T")
    await admin.create_topic(name, queues=2)
    with pytest.raises(AlreadyExists):
        await admin.create_topic(name)
    await admin.create_topic(name, queues=9, exist_ok=True)
    await producer.send(Message(name, "x"))
    assert name in await admin.list_topics()
    assert "TBW102" not in await admin.list_topics()
    about = await admin.describe_topic(name)
    (settings,) = about.settings
    assert (settings.write_queues, settings.read_queues, settings.perm) == (2, 2, "rw")
    assert (len(about.queues), about.message_count) == (2, 1)
    await admin.update_topic(name, queues=3, perm="r")

    async def changed() -> bool:
        (settings,) = (await admin.describe_topic(name)).settings
        return (settings.write_queues, settings.read_queues, settings.perm) == (3, 3, "r")

    await eventually(changed, "the new settings")
    await admin.delete_topic(name)
    await admin.delete_topic(name)

    async def gone() -> bool:
        return name not in await admin.list_topics()

    await eventually(gone, "the end of the topic")
    with pytest.raises(RouteNotFound):
        await admin.describe_topic(name)


async def test_life_of_a_group(cluster: Cluster, admin: Admin, group: str) -> None:
    await admin.create_group(group, max_retries=3)
    with pytest.raises(AlreadyExists):
        await admin.create_group(group)
    await admin.update_group(group, consume_enabled=False)
    about = await admin.describe_group(group)
    (settings,) = about.settings
    assert (settings.max_retries, settings.consume_enabled) == (3, False)
    assert about.members.members == ()
    assert group in await admin.list_groups()
    await admin.delete_group(group)
    assert group not in await admin.list_groups()
    with pytest.raises(NotFound):
        await admin.describe_group(group)
    with pytest.raises(NotFound):
        await admin.update_group(group, max_retries=1)


async def test_the_cluster(cluster: Cluster, admin: Admin) -> None:
    summary = await admin.cluster()
    assert summary.clusters == {"DefaultCluster": ["broker-a"]}
    assert summary.brokers[0].addresses == {0: cluster.address}
    assert (await admin.broker_runtime("broker-a")).version.startswith("V")
    await admin.set_broker_config("broker-a", {"defaultQueryMaxNum": "33"})
    assert (await admin.broker_config("broker-a"))["defaultQueryMaxNum"] == "33"
    await admin.set_broker_config("broker-a", {"defaultQueryMaxNum": "32"})
    with pytest.raises(NotFound, match="no broker broker-z"):
        await admin.broker_config("broker-z")


async def test_queries(admin: Admin, producer: Producer, topic: str) -> None:
    sent = await one_by_one(producer, topic, 8)

    async def indexed() -> bool:
        return len(await admin.query(topic, key="all")) == 8

    await eventually(indexed, "the index")
    (found,) = await admin.query(topic, key="k-3")
    assert (found.body, found.msg_id) == (b"m-3", sent[3].msg_id)
    assert (found.queue, found.queue_offset) == (sent[3].queue, sent[3].queue_offset)
    (found,) = await admin.query(topic, msg_id=sent[4].msg_id)
    assert found.offset_msg_id == sent[4].offset_msg_id
    at_place = await admin.message(sent[5].offset_msg_id)
    assert at_place is not None
    assert at_place.body == b"m-5"
    assert at_place.queue == sent[5].queue
    newest = await admin.query(topic, key="all", limit=2)
    assert [message.body for message in newest] == [b"m-6", b"m-7"]
    assert await admin.query(topic, key="none") == []


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


async def test_members_and_progress(
    admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 12)
    async with consuming(client, topic, group) as inbox:
        await inbox.count(12)
        members = await admin.consumers(group)
        assert [member.client_id for member in members.members] == [client.client_id]
        assert (members.model, members.members[0].language) == ("CLUSTERING", "PYTHON")
        assert {data.topic for data in members.subscriptions} == {topic, f"%RETRY%{group}"}
        assert inbox.consumer is not None
        await inbox.consumer.commit()

        async def done() -> bool:
            progress = await admin.progress(group, topic)
            return (progress.lag, sum(row.end for row in progress.queues)) == (0, 12)

        await eventually(done, "the commits")
        assert group in await admin.topic_groups(topic)
    await send_numbered(producer, topic, "n", 3)
    assert (await admin.progress(group)).lag == 3

    async def producing() -> bool:
        return client.client_id in {
            one.client_id for one in await admin.producers("DEFAULT_PRODUCER")
        }

    await eventually(producing, "the producer's heartbeat")
    assert (await admin.consumers(group)).members == ()
    assert await admin.producers(group) == []


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
    await admin.skip_accumulated(group, topic)
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
        else:
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


async def test_dead_letters_and_their_replay(
    admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    sent = {await_result.msg_id for await_result in await one_by_one(producer, topic, 5)}
    assert [letter async for letter in admin.dead_letters(group)] == []
    async with consuming(client, topic, group, Inbox(fail=1), max_reconsume=0) as inbox:
        await inbox.count(5)

        async def dead() -> bool:
            return len([letter async for letter in admin.dead_letters(group)]) == 5

        await eventually(dead, "five dead letters")
    letters = [letter async for letter in admin.dead_letters(group)]
    assert {letter.msg_id for letter in letters} == sent
    assert {letter.origin_topic for letter in letters} == {topic}
    dry = [outcome async for outcome in admin.replay_dead_letters(group, dry_run=True)]
    assert {outcome.status for outcome in dry} == {"would_replay"}
    first = admin.replay_dead_letters(group)
    done = [await anext(first), await anext(first)]
    rest = admin.replay_dead_letters(group, after=first.progress.positions)
    done += [outcome async for outcome in rest]
    assert [outcome.msg_id for outcome in done] == [letter.msg_id for letter in letters]
    assert {outcome.status for outcome in done} == {"replayed"}
    again = await received(client, topic, group, 5, start_from=StartFrom.LAST)
    assert {message.msg_id for message in again} == sent
    assert {message.topic for message in again} == {topic}
    assert {message.keys.split()[1] for message in again} == {"all"}


async def test_what_a_member_is_doing(
    admin: Admin, client: Client, producer: Producer, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 4)
    async with consuming(client, topic, group) as inbox:
        await inbox.count(4)
        info = await admin.member_info(group, client.client_id)
        assert {row.queue.topic for row in info.queues} >= {topic}
        assert {data.topic for data in info.subscriptions} >= {topic}
        with pytest.raises(NotFound, match="no member nobody"):
            await admin.member_info(group, "nobody")
        assert inbox.consumer is not None
        again = inbox.messages[0]
        result = await admin.consume_directly(group, client.client_id, again.offset_msg_id)
        assert result.outcome == "CR_SUCCESS"
        assert inbox.bodies.count(again.body.decode()) == 2


async def test_a_trace_is_found(
    cluster: Cluster, admin: Admin, client: Client, topic: str, group: str
) -> None:
    traces = cluster.unique("T")
    await admin.create_topic(traces, queues=1)
    async with Producer(client, trace=traces) as producer:
        result = await producer.send(Message(topic, "traced", tags="A"))

    async def found() -> bool:
        return len((await admin.trace(result.msg_id, topic=traces)).sends) == 1

    await eventually(found, "the trace")
    (send,) = (await admin.trace(result.msg_id, topic=traces)).sends
    assert (send.topic, send.tags, send.success, send.kind) == (topic, "A", True, "normal")
    assert send.offset_msg_id == result.offset_msg_id
