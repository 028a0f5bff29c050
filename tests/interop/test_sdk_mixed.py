"""Our SDK and its Admin over a broker and a name server of each kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from skylarkmq.client import (
    Admin,
    BrokerError,
    Client,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    RocketMQError,
    SendResult,
    StartFrom,
)
from tests.interop.mixed_cluster import OURS, THEIRS, MixedCluster
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.interop

BOTH = {OURS, THEIRS}
PAUSE_S = 0.02


@pytest.fixture
async def client(mixed: MixedCluster) -> AsyncIterator[Client]:
    async with Client(mixed.namesrv, heartbeat_interval=1.0, route_refresh=1.0) as client:
        yield client


@pytest.fixture
async def admin(client: Client) -> AsyncIterator[Admin]:
    async with Admin(client=client) as admin:
        yield admin


async def send(client: Client, topic: str, count: int) -> list[SendResult]:
    async with Producer(client=client) as producer:
        return [await producer.send(Message(topic, f"m-{n}")) for n in range(count)]


async def test_a_topic_over_both(admin: Admin, client: Client, topic: str, group: str) -> None:
    cluster = await admin.cluster()
    assert cluster.clusters == {"DefaultCluster": sorted(BOTH)}
    assert len(cluster.name_servers) == 2
    await admin.create_topic(topic, queues=3)
    acks = await send(client, topic, 12)
    assert Counter(ack.queue.broker_name for ack in acks) == dict.fromkeys(BOTH, 6)
    found = await admin.describe_topic(topic)
    assert {each.broker: (each.write_queues, each.perm) for each in found.settings} == (
        dict.fromkeys(BOTH, (3, "rw"))
    )
    assert (len(found.queues), found.message_count) == (6, 12)

    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        got = [await consumer.getone() for _ in range(12)]
        await consumer.commit()
    assert {each.body.decode() for each in got} == {f"m-{n}" for n in range(12)}
    progress = await admin.progress(group, topic)
    assert {queue.queue.broker_name for queue in progress.queues} == BOTH
    assert progress.lag == 0
    await send(client, topic, 6)
    assert (await admin.progress(group, topic)).lag == 6
    for name in BOTH:
        await until(lambda name=name: says_its_version(admin, name), f"version of {name}")


async def says_its_version(admin: Admin, broker: str) -> bool:
    """Ask for it; RocketMQ's broker throws in its first second."""
    try:
        return (await admin.broker_runtime(broker)).version.startswith("V4_9_")
    except BrokerError:
        return False


async def test_writing_to_one_ends_and_begins_again(
    admin: Admin, client: Client, topic: str
) -> None:
    await admin.create_topic(topic, queues=2)
    for wiped in sorted(BOTH):
        (left,) = BOTH - {wiped}
        assert await admin.stop_writes(wiped) > 0
        await until(lambda left=left: to_alone(client, topic, left), f"sends to {left} alone")
        assert await admin.allow_writes(wiped) > 0
        await until(lambda: to_both(client, topic), "sends to both")


async def to_alone(client: Client, topic: str, name: str) -> bool:
    return {ack.queue.broker_name for ack in await send(client, topic, 4)} == {name}


async def to_both(client: Client, topic: str) -> bool:
    return {ack.queue.broker_name for ack in await send(client, topic, 4)} == BOTH


async def test_an_ordered_topic_keeps_its_queues_while_a_broker_is_away(
    mixed: MixedCluster, admin: Admin, client: Client, topic: str
) -> None:
    await admin.create_topic(topic, queues=2, order=True)
    keys = [str(number) for number in range(24)]
    async with Producer(client=client) as producer:
        place = {key: (await producer.send(Message(topic, key), key=key)).queue for key in keys}
    assert {queue.broker_name for queue in place.values()} == BOTH
    await asyncio.to_thread(mixed.brokers[OURS].kill)
    try:
        await until(lambda: all_know(mixed, {THEIRS}), "its end")
        async with (
            Client(mixed.namesrv) as newcomer,
            Producer(client=newcomer, send_timeout=2.0) as producer,
        ):
            for key, queue in place.items():
                if queue.broker_name == THEIRS:
                    ack = await producer.send(Message(topic, "away"), key=key)
                    assert ack.queue == queue, "the key goes to no other queue meanwhile"
            lost = next(key for key, queue in place.items() if queue.broker_name == OURS)
            with pytest.raises(RocketMQError):
                await producer.send(Message(topic, "away"), key=lost)
    finally:
        await asyncio.to_thread(mixed.brokers[OURS].start)
    await until(lambda: all_know(mixed, BOTH), "both brokers")
    await admin.delete_topic(topic)


async def all_know(mixed: MixedCluster, names: set[str]) -> bool:
    """Return whether these brokers, and no others, are known to both name servers."""
    for namesrv in mixed.namesrv.split(";"):
        async with Admin(namesrv_addr=namesrv) as admin:
            if {broker.name for broker in (await admin.cluster()).brokers} != names:
                return False
    return True


@pytest.mark.parametrize("killed", sorted(BOTH))
async def test_no_acknowledged_message_is_missing(
    mixed: MixedCluster, admin: Admin, client: Client, topic: str, group: str, killed: str
) -> None:
    (left,) = BOTH - {killed}
    await admin.create_topic(topic, queues=2)
    acked: dict[str, str] = {}
    got: set[str] = set()
    ended = asyncio.Event()

    async def produce() -> None:
        async with Producer(client=client, send_timeout=LIMIT_S) as producer:
            number = 0
            while not ended.is_set():
                body = f"m-{number}"
                acked[body] = (await producer.send(Message(topic, body))).queue.broker_name
                number += 1
                await asyncio.sleep(PAUSE_S)

    async def receive(message: ReceivedMessage) -> None:
        got.add(message.body.decode())

    async def goes_on(*names: str) -> None:
        before = Counter(acked.values())
        await until(
            lambda: all((Counter(acked.values()) - before)[name] >= 20 for name in names),
            f"sends to {names}",
        )

    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        consuming = asyncio.create_task(consumer.run(receive))
        producing = asyncio.create_task(produce())
        await goes_on(OURS, THEIRS)
        await asyncio.to_thread(mixed.brokers[killed].kill)
        await goes_on(left)
        await asyncio.to_thread(mixed.brokers[killed].start)
        await goes_on(OURS, THEIRS)
        ended.set()
        await producing
        await until(lambda: acked.keys() <= got, "all that was acknowledged")
    await consuming
