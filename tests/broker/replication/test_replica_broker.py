"""Brokers that elect their master, in one process: what is acknowledged outlives each of them."""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import weakref
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from skylarkmq.broker import replica_broker
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.replica_broker import ReplicaBroker
from skylarkmq.broker.replica_lives import Stage
from skylarkmq.broker.replication.failover.replica_events import FailoverRules, State
from skylarkmq.broker.replication.failover.replica_id import ReplicaFile
from skylarkmq.client import (
    Admin,
    Consumer,
    DeduplicationWindow,
    Message,
    NotConfirmed,
    Producer,
    ReceivedMessage,
    RocketMQError,
    SendResult,
    SendStatus,
    StartFrom,
    TransactionState,
)
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.broker.replication.replica_rig import producing, replica_set
from tests.support.failing_files import ALWAYS, FailingFiles
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing


def bodies_of(replica: ReplicaBroker) -> list[bytes]:
    """Return the bodies of the messages of T, in the order of the log."""
    store = replica.life.parts.store
    found: list[bytes] = []
    for topic, queue_id in sorted(store.queues.queues):
        if topic == "T":
            offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < end:
                for unit in store.queue_units(topic, queue_id, offset, end - offset):
                    message = store.look_message(unit.commit_offset)
                    assert message is not None
                    found.append(message.body)
                    offset += 1
    return found


async def test_one_alone_leads_and_serves(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        await replicas.start(1)
        await replicas.led()
        async with Admin(namesrv_addr=replicas.namesrv_addr) as admin, producing(replicas) as sends:
            await admin.create_topic("T", queues=1)
            results = [await sends.send(Message("T", b"%d" % n)) for n in range(10)]
            assert [result.queue_offset for result in results] == list(range(10))


async def test_followers_have_the_same_log(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        for number in (1, 2, 3):
            await replicas.start(number)
        await replicas.led()
        await replicas.in_sync(1, 2, 3)
        async with producing(replicas) as sends:
            for n in range(50):
                await sends.send(Message("T", b"%d" % n))
        await replicas.same_logs()


async def test_a_successor_has_what_was_acknowledged(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        first = await replicas.three()
        async with Admin(namesrv_addr=replicas.namesrv_addr) as admin, producing(replicas) as sends:
            await admin.create_topic("T", deduplication=DeduplicationWindow(600))
            messages = [Message("T", b"%d" % n, unique_key=f"k{n}") for n in range(20)]
            before = [await sends.send(message) for message in messages]
            await replicas.kill(first)
            second = await replicas.led()
            assert second != first
            again = [await sends.send(message) for message in messages]
            assert [(each.queue, each.queue_offset) for each in again] == [
                (each.queue, each.queue_offset) for each in before
            ]
            after = [await sends.send(Message("T", b"%d" % n)) for n in range(20, 40)]
            places = {(each.queue.queue_id, each.queue_offset) for each in before + after}
            assert len(places) == 40
            await replicas.start(first)
            await replicas.in_sync(1, 2, 3)
            await replicas.same_logs()


@pytest.mark.slow
@pytest.mark.parametrize("leads", [False, True])
async def test_a_clean_stop_holds_up_no_send_until_a_silence_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """Silence alone takes longer here than any test: the member that stops says good-bye."""

    def deaf(**named: Any) -> FailoverRules:
        return FailoverRules(**{**named, "silent_s": 3600.0})

    monkeypatch.setattr(replica_broker, "FailoverRules", deaf)
    async with replica_set(tmp_path) as replicas:
        first = await replicas.three()
        number = first if leads else next(each for each in (1, 2, 3) if each != first)
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"before"))
            sending = asyncio.ensure_future(_send_many(sends, 200))
            await replicas.stop(number)
            assert len(await sending) == 200
            await sends.send(Message("T", b"after"))
        await replicas.led()
        await replicas.in_sync(*replicas.replicas)


@pytest.mark.slow
async def test_a_returning_master_cuts_off_what_nobody_else_has(tmp_path: Path) -> None:
    async with replica_set(tmp_path, slave_timeout=100) as replicas:
        first = await replicas.three()
        old = replicas.replicas[first]
        async with producing(replicas) as sends:
            acked = await sends.send(Message("T", b"acknowledged"))
            old.links.close_streams()
            store = old.life.parts.store
            queue = store.max_offset("T", acked.queue.queue_id)
            async with Producer(namesrv_addr=replicas.namesrv_addr, retries=0) as other:
                with pytest.raises(NotConfirmed) as lost:
                    await other.send(Message("T", b"nobody else has it"), queue=acked.queue)
            assert lost.value.retryable
            assert store.max_offset("T", acked.queue.queue_id) == queue, "it is not shown"
            await replicas.kill(first)
            await replicas.led()
            await sends.send(Message("T", b"after"))
            files = FailingFiles()  # the disk is full for a moment
            files.fail("pwrite", path=".broken", times=2, error=errno.ENOSPC)
            again = await replicas.start(first, files=files)
            await replicas.in_sync(1, 2, 3)
            await replicas.same_logs()
        assert files.has_failed
        bodies = {body for replica in replicas.replicas.values() for body in bodies_of(replica)}
        assert bodies == {b"acknowledged", b"after"}
        assert list(again.life.parts.store.paths.own.glob("*.broken"))


@pytest.mark.slow
async def test_a_planned_switch_over_costs_no_send(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        first = await replicas.three()
        life = replicas.replicas[first].life
        since_ms = life.since_ms
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"0"))
            sending = asyncio.ensure_future(_send_many(sends, 200))
            await replicas.replicas[first].admin.switch_over("")
            results = await sending
            assert await replicas.led() != first
        places = {(each.queue.queue_id, each.queue_offset) for each in results}
        assert len(places) == 200
        await replicas.in_sync(1, 2, 3)
        await replicas.same_logs()
        old = replicas.replicas[first]
        await until(lambda: len(bodies_of(old)) == 201, "a follower shows what is confirmed")
        assert old.life is not life
        assert old.life.since_ms == since_ms, "no restart of the process, which alerts count"


@pytest.mark.slow
async def test_a_life_that_ended_is_let_go_while_there_is_no_master(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        replica = replicas.replicas[first]
        old = weakref.ref(replica.life)
        replicas.ways[first].sends = False
        await replicas.kill(3 - first)

        def has_next() -> bool:
            return replica.life is not old() and replica.lives.stage is Stage.OPENED

        await until(has_next, "the next life")

        def is_let_go() -> bool:
            gc.collect()
            return old() is None

        await until(is_let_go, "the tables and the store of the one before are gone")


async def _send_many(sends: Producer, count: int) -> list[SendResult]:
    return [await sends.send(Message("T", b"%d" % number)) for number in range(count)]


@pytest.mark.slow
async def test_the_engine_may_be_away_while_the_set_stays(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        first = await replicas.three()
        for way in replicas.ways.values():
            way.sends = False
        leader = replicas.replicas[first].driver
        await until(lambda: not leader.engine.is_reachable, "the engine is missed")
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"without the engine"))
        assert replicas.leader() == first
        for way in replicas.ways.values():
            way.sends = True
        await until(lambda: leader.engine.is_reachable, "the engine is back")
        assert replicas.leader() == first


@pytest.mark.slow
async def test_too_few_in_sync_refuse_sends_with_the_cause(tmp_path: Path) -> None:
    config = {"min_in_sync_replicas": 2, "ha_max_time_slave_not_catchup": 500}
    async with replica_set(tmp_path, **config) as replicas:
        await replicas.start(1)
        await replicas.led()
        async with Producer(namesrv_addr=replicas.namesrv_addr, send_timeout=2) as other:
            with pytest.raises(RocketMQError, match="minInSyncReplicas=2"):
                await other.send(Message("TBW102", b"refused"))
        await replicas.start(2)
        await replicas.in_sync(1, 2)
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"taken"))


@pytest.mark.slow
async def test_a_store_of_another_set_is_refused(tmp_path: Path) -> None:
    async with replica_set(tmp_path / "one") as replicas:
        await replicas.start(1)
        await replicas.led()
    async with replica_set(tmp_path / "two") as replicas:
        await replicas.start(1)
        await replicas.led()
        shutil.move(tmp_path / "one" / "store-1", tmp_path / "two" / "store-2")
        stranger = await replicas.start(2)
        assert stranger.ended is not None
        assert await asyncio.wait_for(stranger.ended, LIMIT_S) == 1
        assert stranger.driver.engine.view is None, "it takes no part"


@pytest.mark.slow
async def test_the_store_of_a_broker_that_was_no_replica_is_put_aside(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        await replicas.start(1)
        await replicas.led()
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"of this set"))
        config = replicas.config(2, controller_endpoints=None, broker_id=0, namesrv_listen_port=0)
        alone = BrokerController(replace(config, namesrv_addr=None), with_namesrv=True)
        await alone.start()
        assert alone.namesrv_address is not None
        async with Producer(namesrv_addr=f"127.0.0.1:{alone.namesrv_address[1]}") as sends:
            await sends.send(Message("T", b"of another broker"))
        await alone.stop()
        stranger = await replicas.start(2)
        await replicas.in_sync(1, 2)
        await replicas.same_logs()
        assert bodies_of(stranger) == [b"of this set"]
    assert list((tmp_path / "store-2" / "set-aside" / "1" / "commitlog").iterdir())


@pytest.mark.slow
async def test_the_store_of_a_broker_that_was_no_replica_is_the_first_of_a_set(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path) as replicas:
        alone = BrokerController(replicas.config(1, controller_endpoints=None, broker_id=0))
        await alone.start()
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"before there were replicas"))
        await alone.stop()
        await replicas.start(1)
        await replicas.led()
        other = await replicas.start(2)
        await replicas.in_sync(1, 2)
        await replicas.same_logs()
        assert bodies_of(other) == [b"before there were replicas"]


async def test_another_file_size_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        await replicas.start(1)
        await replicas.led()
        other = await replicas.start(2, mapped_file_size_commit_log=2 << 20)
        assert other.ended is not None
        assert await asyncio.wait_for(other.ended, LIMIT_S) == 1
        assert replicas.leader() == 1


async def test_two_of_one_broker_id_wait_for_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(tmp_path) as replicas:
        await replicas.start(1)
        await replicas.led()
        other = await replicas.start(2, broker_id=1)
        await until(lambda: "brokerId=1 of broker-a is that of" in caplog.text, "it is told")
        assert other.driver.engine.view is None, "it takes no part"


@pytest.mark.slow
async def test_one_that_cannot_catch_up_does_not_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_set(tmp_path) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        leader, other = replicas.replicas[first], replicas.replicas[3 - first]
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"before"))
            # Its disk takes nothing, so it confirms nothing.
            monkeypatch.setattr(other.home, "append", Mock(side_effect=StoreError("no room")))
            end = leader.admin.status().end
            waiting = asyncio.ensure_future(sends.send(Message("T", b"waits")))
            await until(lambda: leader.admin.status().end > end, "what it lacks")
            with pytest.raises(RemoteProtocolError, match="did not catch up"):
                await leader.admin.switch_over("")
            assert replicas.leader() == first
            monkeypatch.undo()
            await waiting
            # What only a master runs goes on.
            await sends.send(Message("T", b"delayed", delay_level=1))
            await until(lambda: b"delayed" in bodies_of(leader), "the delayed message")


@pytest.mark.slow
async def test_a_master_that_stops_offers_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is closed then: a follower that connects once more must keep what it has."""
    async with replica_set(tmp_path) as replicas:
        await replicas.start(1)
        await replicas.led()
        follower = await replicas.start(2)
        await replicas.in_sync(1, 2)
        async with producing(replicas) as sends:
            for n in range(20):
                await sends.send(Message("T", b"%d" % n))
        await replicas.same_logs()
        end = follower.admin.status().end
        master = replicas.replicas.pop(1)
        monkeypatch.setattr(master.admin, "switch_over", Mock(side_effect=_nobody()))
        close, is_closed = master.life.close, asyncio.Event()

        async def slow_close() -> None:
            await close()
            is_closed.set()
            if follower.links.master is not None:
                follower.links.master.abort("as the test wants it")
            await asyncio.sleep(0.3)

        monkeypatch.setattr(master.life, "close", slow_close)
        await master.stop()
        assert is_closed.is_set()
        assert await replicas.led() == 2
        assert follower.admin.status().end >= end
        assert not list(follower.life.parts.store.paths.own.glob("*.broken"))
        assert len(bodies_of(follower)) == 20


def _nobody() -> RemoteProtocolError:
    return RemoteProtocolError(1, "nobody takes over")


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_followers_of_a_new_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_set(tmp_path, slave_timeout=500) as replicas:
        first = await replicas.three()
        others = [number for number in (1, 2, 3) if number != first]
        for number in others:  # nobody tells the next one that all have everything
            monkeypatch.setattr(replicas.replicas[number].home, "looked", Mock())
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"others have it, and do not know that all have"))
            await replicas.kill(first)

        def begins() -> int:
            for number in others:
                if replicas.replicas[number].driver.state.state is State.MASTER:
                    return number
            return 0

        number = await until(begins, "a master that waits for the others")
        assert not replicas.replicas[number].lives.serves
        await asyncio.wait_for(replicas.stop(number), LIMIT_S)


@pytest.mark.slow
async def test_one_switch_over_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replica_set(tmp_path) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        leader, other = replicas.replicas[first], replicas.replicas[3 - first]
        starts = Mock(wraps=leader.life.parts.start_master_services)
        monkeypatch.setattr(leader.life.parts, "start_master_services", starts)
        async with producing(replicas) as sends:
            monkeypatch.setattr(other.home, "append", Mock(side_effect=StoreError("no room")))
            end = leader.admin.status().end
            waiting = asyncio.ensure_future(sends.send(Message("T", b"waits")))
            await until(lambda: leader.admin.status().end > end, "what it lacks")
            both = await asyncio.gather(
                leader.admin.switch_over(""), leader.admin.switch_over(""), return_exceptions=True
            )
            assert all(isinstance(each, RemoteProtocolError) for each in both)
            assert starts.call_count == 1
            monkeypatch.undo()
            await waiting


@pytest.mark.slow
async def test_a_failed_disk_lets_another_one_lead_at_once(tmp_path: Path) -> None:
    async with replica_set(tmp_path, store_failure_exit=False) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        broken = replicas.replicas[first]
        broken.life.parts.store.fail(OSError(5, "input/output error"))
        del replicas.replicas[first]
        assert await replicas.led() == 3 - first
        assert broken.ended is not None
        assert await asyncio.wait_for(broken.ended, LIMIT_S) == 74
        await broken.stop()


async def test_a_disk_that_fails_while_it_joins_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplicaFile, "join", Mock(side_effect=OSError(5, "input/output error")))
    async with replica_set(tmp_path) as replicas:
        alone = await replicas.start(1)
        assert alone.ended is not None
        assert await asyncio.wait_for(alone.ended, LIMIT_S) == 1


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
async def test_terms_that_the_machine_refuses_are_written_later(
    tmp_path: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one that begins to lead, and of one that begins to follow: their processes ended."""
    async with replica_set(tmp_path) as replicas:
        for number in (1, 2):
            files = FailingFiles()
            files.fail("open", path="skylarkmq/terms", times=2, error=error)
            await replicas.start(number, files=files)
            if number == 1:
                await replicas.led()
            await until(lambda files=files: files.has_failed, "a refusal")
        await replicas.in_sync(1, 2)
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"x"))
        await replicas.same_logs()
        assert all(each.ended and not each.ended.done() for each in replicas.replicas.values())
    assert caplog.text.count("stores nothing and waits for its machine") == 2


@pytest.mark.slow
async def test_one_that_cannot_write_its_term_for_a_lease_lets_another_one_lead(
    tmp_path: Path,
) -> None:
    async with replica_set(tmp_path) as replicas:
        files = FailingFiles()
        files.fail("open", path="skylarkmq/terms", times=ALWAYS, error=errno.EMFILE)
        alone = await replicas.start(1, files=files)
        assert alone.ended is not None
        assert await asyncio.wait_for(alone.ended, LIMIT_S) == 1


async def test_the_first_of_a_set_leads_without_room_for_messages(tmp_path: Path) -> None:
    """Its process ended, and again at each start."""
    async with replica_set(tmp_path) as replicas:
        files = FailingFiles()
        files.fail("allocate", path="commitlog", times=ALWAYS, error=errno.ENOSPC)
        alone = await replicas.start(1, files=files)
        await until(lambda: files.has_failed, "a refusal")
        assert alone.ended is not None
        await until(lambda: alone.lives.stage is Stage.LEADING or alone.ended.done(), "it leads")
        assert not alone.ended.done()
        files.heal()
        await replicas.led()


async def test_a_stop_does_not_wait_for_terms_that_the_machine_refuses(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as replicas:
        files = FailingFiles()
        files.fail("open", path="skylarkmq/terms", times=ALWAYS, error=errno.ENOSPC)
        alone = await replicas.start(1, files=files)
        await until(lambda: files.has_failed, "a refusal")
        await asyncio.wait_for(replicas.stop(1), LIMIT_S)
        assert alone.ended is not None and not alone.ended.done()


@pytest.mark.slow
async def test_what_is_beside_the_messages_goes_over(tmp_path: Path) -> None:
    """Topics, groups, offsets, order, delays and open transactions, seen by clients."""
    async with replica_set(tmp_path) as replicas:
        first = await replicas.three()
        namesrv = replicas.namesrv_addr

        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(namesrv_addr=namesrv, timeout=LIMIT_S))
            await admin.create_topic("Ordered", queues=2, order=True)
            sends = await stack.enter_async_context(
                Producer(
                    namesrv_addr=namesrv,
                    group="P",
                    check=lambda _: TransactionState.UNKNOWN,
                    send_timeout=LIMIT_S,
                )
            )
            seen: dict[str, list[bytes]] = {"a": [], "b": []}

            async def handle(message: ReceivedMessage) -> None:
                seen[message.keys].append(message.body)

            consumer = Consumer(
                "Ordered", namesrv_addr=namesrv, group="G", start_from=StartFrom.FIRST, orderly=True
            )
            await stack.enter_async_context(consumer)
            handling = asyncio.ensure_future(consumer.run(handle))
            for n in range(10):
                for key in seen:
                    await sends.send(Message("Ordered", b"%d" % n, keys=key), key=key)
            await until(lambda: all(len(each) == 10 for each in seen.values()), "ten of each")
            await consumer.commit()
            await sends.send(Message("T", b"by level", delay_level=3))  # 10 s
            await sends.send(Message("T", b"by time", delay=timedelta(seconds=4)))
            async with sends.transaction(Message("T", b"half", keys="tx")):
                await replicas.kill(first)
                second = replicas.replicas[await replicas.led()]
            for n in range(10, 20):
                for key in seen:
                    await sends.send(Message("Ordered", b"%d" % n, keys=key), key=key)
            # What comes twice counts once: who was a step ahead of the new master repeats one.
            await until(
                lambda: all(len(set(each)) == 20 for each in seen.values()), "twenty of each"
            )
            for bodies in seen.values():
                firsts = list(dict.fromkeys(bodies))
                assert firsts == [b"%d" % n for n in range(20)], "in order, some perhaps twice"
            await until(
                lambda: {b"by level", b"by time", b"half"} <= set(bodies_of(second)), "all three"
            )
            assert bodies_of(second).count(b"half") == 1
            assert (await admin.describe_topic("Ordered")).settings[0].write_queues == 2
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)


async def test_a_killed_replica_delivers_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process it would find its log closed, and call what waits undeliverable."""
    async with replica_set(tmp_path) as replicas:
        first = await replicas.start(1)
        await replicas.led()
        async with producing(replicas) as sends:
            await sends.send(Message("T", b"by time", delay=timedelta(hours=1)))
            await sends.send(Message("T", b"by level", delay_level=18))
        timer, schedule = first.life.parts.timer, first.life.parts.schedule
        await until(lambda: timer.waiting_count == 1 and not timer.unread_count, "it is read")
        await replicas.kill(1)
        later_ms = replicas.clock.now_ms() + 3 * 3_600_000
        monkeypatch.setattr(replicas.clock, "now_ms", lambda: later_ms)
        timer._pause.wake()
        schedule._levels[18].pause.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (timer.messages.skipped_count, schedule.skipped_count) == (0, 0)


@pytest.mark.slow
async def test_a_rolling_restart_costs_no_send(tmp_path: Path) -> None:
    """As docs/operations/failover.md describes an upgrade: followers first, the master last."""
    async with replica_set(tmp_path, min_in_sync_replicas=2) as replicas:
        first = await replicas.three()
        async with producing(replicas) as sends:
            count, is_over = 0, asyncio.Event()

            async def send_all() -> None:
                nonlocal count
                while not is_over.is_set():
                    result = await sends.send(Message("T", b"%d" % count))
                    assert result.status is SendStatus.SEND_OK
                    count += 1

            sending = asyncio.ensure_future(send_all())
            for number in [each for each in (1, 2, 3) if each != first] + [first]:
                if number == first:
                    await replicas.replicas[first].admin.switch_over("")
                    await replicas.in_sync(1, 2, 3)
                await replicas.stop(number)
                wanted = count + 1
                await until(lambda: count >= wanted, "sends go on with two")  # noqa: B023
                await replicas.start(number)
                await replicas.in_sync(1, 2, 3)
            is_over.set()
            await sending
        await replicas.same_logs()
        leader = replicas.replicas[await replicas.led()]
        bodies = bodies_of(leader)
        assert sorted(map(int, bodies)) == list(range(count)), "each once"
