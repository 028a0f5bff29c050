"""A test's broker as its users see it: clients, what it holds, restarts, settings."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from skylarkmq.client import Consumer, Message, Producer, RocketMQError, SendStatus, StartFrom
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.protocol.message import MessageExt
from skylarkmq.testing import RunningBroker, VirtualClock, run_broker
from tests.support.amounts import slow
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

TOPIC = "orders"
GROUP = "billing"


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


async def take(broker: RunningBroker, count: int) -> list[bytes]:
    """What a member of GROUP gets."""
    got: list[bytes] = []
    async with (
        asyncio.timeout(LIMIT_S),
        broker.client() as client,
        Consumer(
            TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST, commit_interval=0.05
        ) as consumer,
    ):
        while len(got) < count:
            message = await consumer.getone()
            got.append(message.body)
            await message.ack()
    return got


async def test_what_is_sent_is_there_and_is_consumed() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        await broker.create_topic(TOPIC, queues=2)
        assert len(await producer.queues(TOPIC)) == 2
        for number in range(5):
            await producer.send(Message(TOPIC, b"%d" % number))
        big = b"large " * 10_000
        result = await producer.send(Message(TOPIC, big))
        assert bodies(await broker.messages(TOPIC)) == [b"0", b"1", b"2", b"3", b"4", big]
        in_queue = await broker.messages(TOPIC, queue_id=result.queue.queue_id)
        assert {message.queue_id for message in in_queue} == {result.queue.queue_id}
        assert await broker.messages("nothing") == []
        assert await broker.lag(GROUP) is None
        assert sorted(await take(broker, 6)) == sorted([b"0", b"1", b"2", b"3", b"4", big])
        assert await broker.lag(GROUP) == 0
        await producer.send(Message(TOPIC, b"one more"))
        assert await broker.lag(GROUP) == 1
        await broker.wait_lag(GROUP, lag=1)
        with pytest.raises(TimeoutError, match=r"orders \d: at \d of \d, lag 1"):
            await broker.wait_lag(GROUP, timeout=0.01)
        with pytest.raises(TimeoutError, match="it is unknown"):
            await broker.wait_lag("nobody", timeout=0)


async def test_the_dump_tells_what_it_holds() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        await broker.create_topic(TOPIC, queues=1)
        for number in range(30):
            await producer.send(Message(TOPIC, b"number %d" % number, keys="k"))
        await producer.send(Message(TOPIC, b"later", delay_level=18))
        await take(broker, 1)
        text = await broker.dump()
        assert "topic orders: 0: 0..30" in text
        assert "(the last 20 of 30)" in text
        assert "0@29 b'number 29' {'" in text
        assert "number 9'" not in text
        assert f"group {GROUP}: no members\n" in text
        assert "\n  orders 0: at 1 of 30, lag 29\n" in text
        assert "waiting: 1 delayed, 0 timed" in text
        assert "TBW102" not in text


async def test_it_comes_back_as_it_was() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        address = broker.namesrv_addr
        await producer.send(Message(TOPIC, b"before"))
        await take(broker, 1)
        await broker.restart()
        assert broker.namesrv_addr == address
        assert await broker.lag(GROUP) == 0
        assert (await producer.send(Message(TOPIC, b"after"))).status is SendStatus.SEND_OK
        assert bodies(await broker.messages(TOPIC)) == [b"before", b"after"]


async def test_a_kill_keeps_what_was_acknowledged_and_loses_what_was_in_memory() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"before"))
        await take(broker, 1)
        assert await broker.lag(GROUP) == 0
        await broker.restart(kill=True)
        assert broker.controller.parts.store.stats.recovery_mode == "abnormal"
        assert bodies(await broker.messages(TOPIC)) == [b"before"]
        assert await broker.lag(GROUP) is None, "offsets are written every 5 s, or at a clean stop"
        await producer.send(Message(TOPIC, b"after"))
        assert sorted(await take(broker, 2)) == [b"after", b"before"]


@pytest.mark.parametrize("flush", [slow("ASYNC_FLUSH"), "SYNC_FLUSH"])  # waits for real flushes
async def test_nothing_of_a_killed_broker_goes_on(flush: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with run_broker(settings={"flushDiskType": flush}) as broker:
        async with Producer(
            namesrv_addr=broker.namesrv_addr, retries=0, send_timeout=LIMIT_S
        ) as producer:
            await producer.send(Message(TOPIC, b"before", delay_level=1))
            with broker.faults.pause_flush():
                log = broker.controller.parts.store.commit_log
                end = log.wrote_offset
                waiting = asyncio.ensure_future(producer.send(Message(TOPIC, b"cut")))
                await until(lambda: log.wrote_offset > end)
                await broker.restart(kill=True)
                if flush == "SYNC_FLUSH":  # it waited for the disk
                    with pytest.raises(RocketMQError):
                        await waiting
                else:
                    await waiting
            await broker.restart(kill=True)
            await broker.advance(5)
            assert b"before" in bodies(await broker.messages(TOPIC))
        mine = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() == {mine})

    def only_old_ones() -> bool:
        names = {thread.name for thread in threading.enumerate()} - before
        return all(name.startswith("asyncio_") for name in names)

    await until(only_old_ones)


async def test_a_folder_of_the_test_s_own_stays(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with (
        run_broker(store=root) as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"kept"))
    assert (root / "commitlog").is_dir()
    async with run_broker(store=root) as broker:
        assert bodies(await broker.messages(TOPIC)) == [b"kept"]


async def test_its_own_folder_goes_with_it() -> None:
    async with run_broker() as broker:
        root = broker.root
        assert root.is_dir()
    assert not root.parent.exists()
    with pytest.raises(RuntimeError, match="does not run"):
        await broker.create_topic(TOPIC)
    assert await broker.dump() == "not running"


async def test_brokers_side_by_side_know_nothing_of_each_other() -> None:
    async with run_broker() as one, run_broker() as two:
        assert one.namesrv_addr != two.namesrv_addr
        async with Producer(namesrv_addr=one.namesrv_addr, send_timeout=LIMIT_S) as producer:
            await producer.send(Message(TOPIC, b"one"))
        assert bodies(await one.messages(TOPIC)) == [b"one"]
        assert await two.messages(TOPIC) == []


async def test_settings_are_those_of_a_broker_conf() -> None:
    with pytest.raises(ConfigError, match="flushDiskType"):
        async with run_broker(settings={"flushDiskTipe": "SYNC_FLUSH"}):
            pass
    with pytest.raises(ValueError, match="profile is one of test, dev, prod"):
        async with run_broker("tiny"):  # type: ignore[arg-type]
            pass
    settings = {"autoCreateTopicEnable": False, "defaultTopicQueueNums": 3}
    async with run_broker(settings=settings) as broker:
        config = broker.controller.config
        assert (config.auto_create_topic_enable, config.default_topic_queue_nums) == (False, 3)
        async with Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer:
            with pytest.raises(RocketMQError):
                await producer.send(Message(TOPIC, b"no such topic"))


async def test_a_larger_profile_syncs_what_it_acknowledges(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 8 << 20, "flushDiskType": "SYNC_FLUSH"}
    async with run_broker("dev", tmp_path, settings=settings) as broker:
        assert broker.disk().syncs
        async with Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer:
            await producer.send(Message(TOPIC, b"durable"))
        log = broker.controller.parts.store.commit_log
        assert log.flushed_offset == log.max_offset > 0


async def test_a_name_server_s_port_may_be_chosen_and_be_taken() -> None:
    async with run_broker() as broker:
        port = int(broker.namesrv_addr.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with run_broker(port=port):
                pass
    async with run_broker(port=port) as broker:
        assert broker.namesrv_addr == f"127.0.0.1:{port}"


async def test_two_clocks_may_be_shared_or_handed_in() -> None:
    clock = VirtualClock()
    clock.advance(1_000_000)
    async with (
        run_broker(clock=clock) as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"in the future"))
        (message,) = await broker.messages(TOPIC)
        assert message.store_timestamp - message.born_timestamp > 999_000_000
        assert abs(broker.now().timestamp() * 1000 - message.store_timestamp) < 60_000
