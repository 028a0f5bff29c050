"""A slave follows its master: whatever is cut or lost, the logs agree, and a stranger is refused.

The master is a script; the disk, the clock and the threads are the test's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.master_families import master_families
from skylarkmq.broker.replication.ha import ha_client
from skylarkmq.broker.replication.ha.ha_client import (
    COMPARED_SIZE,
    REFUSED_RETRY_S,
    RETRY_FIRST_S,
    RETRY_MAX_S,
)
from skylarkmq.broker.replication.ha.master_connection import RECEIVED_MAX
from tests.broker.replication.slave_rig import ADDRESS, ScriptedMaster, SlaveRig
from tests.store.support import LOG_SIZE, StoreRig
from tests.support.crash_explorer import seeds
from tests.support.manual_clock import advance_async, settle

Follow = Callable[..., Awaitable[SlaveRig]]
HEARTBEAT_S, SILENCE_S = 5.0, 20.0


@cache
def log_bytes(count: int = 300, seed: int = 1) -> bytes:
    """A master's log: over several files with 300 messages, below COMPARED_SIZE with 3."""
    rng, rig = Random(seed), StoreRig().start()
    for number in range(count):
        rig.put("T", number % 3, rng.randbytes(rng.randrange(2500)), properties=b"KEYS\x01k")
        rig.workers.run_all()
    log = rig.store.commit_log
    data = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
    return data[: log.wrote_offset]


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    """Start slaves that are stopped at the test's end."""
    rigs: list[SlaveRig] = []

    async def start(master: ScriptedMaster, *args: Any, **config: Any) -> SlaveRig:
        rigs.append(SlaveRig(master, *args, **config))
        return await rigs[-1].follow()

    yield start
    for rig in rigs:
        await rig.client.stop()


async def stopped(slave: SlaveRig) -> SlaveRig:
    await slave.client.stop()
    slave.stop()
    return slave


async def copied(follow: Follow, data: bytes, **config: Any) -> SlaveRig:
    """A slave that has a log from its first byte, and has stopped."""
    master = ScriptedMaster(data)
    slave = await follow(master, ha_copy_from="start", **config)
    while slave.end < len(data):
        master.answer(Random(1))
        await slave.turn(RETRY_MAX_S)
    return await stopped(slave)


# Where it begins


async def test_an_empty_slave_begins_at_the_last_file(follow: Follow) -> None:
    data, rng = log_bytes(), Random(1)
    last = len(data) - len(data) % LOG_SIZE
    master = ScriptedMaster(data)
    slave = await follow(master)
    assert master.link.reports == [0]
    master.answer(rng)
    await slave.turn()
    assert slave.store.commit_log.min_offset == last > 0
    assert slave.log_bytes() == data[last:]
    assert master.link.reports[-1] == len(data)
    assert slave.client.connected
    assert slave.client.behind == 0


@pytest.mark.parametrize("files_gone", [0, 1, 2, 3])
@pytest.mark.parametrize("is_ours", [False, True])
async def test_an_empty_slave_copies_all_that_the_master_has(
    follow: Follow, files_gone: int, is_ours: bool
) -> None:
    data, rng = log_bytes(600), Random(2)
    assert len(data) > 4 * LOG_SIZE
    master = ScriptedMaster(data, files_gone * LOG_SIZE)
    master.is_ours = is_ours
    slave = await follow(master, ha_copy_from="start")
    for _ in range(10):
        if len(master.links) and slave.client.connected:
            break
        master.answer(rng)
        await slave.turn()
    assert slave.log_bytes() == data[files_gone * LOG_SIZE :]
    assert slave.store.commit_log.min_offset == files_gone * LOG_SIZE


async def test_a_master_without_messages_is_followed_from_its_first(follow: Follow) -> None:
    data, rng = log_bytes(3), Random(3)
    master = ScriptedMaster(b"")
    slave = await follow(master, ha_copy_from="start")
    master.answer(rng)
    await slave.turn()
    assert slave.client.connected
    master.data = data[:100]  # not a whole record
    master.send(rng)
    await slave.turn()
    master.link.lose(None)
    await slave.turn(RETRY_FIRST_S)
    assert master.link.reports == [1]  # 0 would be the last file, which may be another one now
    master.data = data
    master.begin_link()
    master.send(rng)
    await slave.turn()
    assert slave.log_bytes() == data


@pytest.mark.parametrize("count", [3, 300])
async def test_a_slave_goes_on_where_its_log_ends(follow: Follow, count: int) -> None:
    data, rng = log_bytes(count), Random(4)
    before = await copied(follow, data)
    longer = log_bytes(count + 100)
    assert longer.startswith(data)
    master = ScriptedMaster(longer)
    slave = await follow(master, before.files)
    asked = max(1, len(data) - COMPARED_SIZE)
    assert master.link.reports == [asked]
    master.answer(rng)
    await slave.turn()
    assert slave.log_bytes() == longer
    assert master.link.reports[-1] == len(longer)


# Whatever is cut or lost


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_cut_and_lost_anywhere_the_logs_agree(follow: Follow, flush: str) -> None:
    for seed in seeds(12):
        rng = Random(seed)
        data = log_bytes(300, rng.randrange(3))
        master = ScriptedMaster(data)
        slave = await follow(master, ha_copy_from="start", flush_disk_type=flush)
        for _ in range(400):
            if slave.store.commit_log.stored_offset == len(data):
                break
            link = master.links[-1] if master.links else None
            if link is None or not link.open:
                await slave.turn(RETRY_MAX_S)
                continue
            if not link.sent:
                master.begin_link()
            master.send(rng, rng.randrange(30_000))
            if rng.random() < 0.2:  # cut anywhere, in a head too
                head = (link.sent).to_bytes(8, "big") + (500).to_bytes(4, "big")
                link.say((head + data[link.sent : link.sent + 500])[: rng.randrange(300)])
                link.lose(rng.choice([None, ConnectionResetError("reset by the test")]))
            if rng.random() < 0.5:
                await slave.turn()
            confirmed = [report for each in master.links for report in each.reports]
            assert max(confirmed, default=0) <= slave.store.commit_log.stored_offset or (
                slave.end == 0
            )
        assert slave.log_bytes() == data, f"seed {seed}"
        await slave.client.stop()
        slave.stop()
        again = StoreRig(slave.files, broker_role="SLAVE").start()
        assert again.store.recovery is not None
        assert again.store.commit_log.wrote_offset == len(data)


async def test_what_was_confirmed_survives_a_power_cut(follow: Follow) -> None:
    data = log_bytes()
    for seed in seeds(15):
        rng = Random(seed)
        master = ScriptedMaster(data)
        slave = await follow(master, ha_copy_from="start", flush_disk_type="SYNC_FLUSH")
        while slave.end < rng.randrange(len(data)):
            if not master.link.open or not slave.client.connected:
                await slave.turn(RETRY_MAX_S)
                if master.link.open and not master.link.sent:
                    master.answer(rng)
                continue
            master.send(rng, rng.randrange(20_000))
            if rng.random() < 0.7:
                await slave.turn()
        confirmed = max(master.link.reports)
        await slave.client.stop()
        for state in slave.files.crash_states(rng, 2):
            after = StoreRig(slave.files.crash(state, rng), broker_role="SLAVE").start()
            log = after.store.commit_log
            assert log.wrote_offset >= confirmed
            assert bytes(log.part(0, LOG_SIZE)) == data[: min(LOG_SIZE, log.wrote_offset)]
            after.stop()


async def test_under_sync_flush_only_what_is_synced_is_confirmed(follow: Follow) -> None:
    data, rng = log_bytes(20), Random(5)
    master = ScriptedMaster(data)
    slave = await follow(master, flush_disk_type="SYNC_FLUSH")
    master.begin_link()
    master.send(rng)
    await settle()
    assert slave.end == len(data)
    assert master.link.reports == [0]
    assert slave.client.behind == len(data)
    slave.workers.run_all()
    assert master.link.reports[-1] == len(data)  # in the turn of the sync, not the next heartbeat
    assert slave.client.behind == 0


# Time


async def test_reports_go_on_while_the_master_says_nothing(follow: Follow) -> None:
    data, rng = log_bytes(3), Random(6)
    master = ScriptedMaster(data)
    slave = await follow(master)
    master.answer(rng)
    await slave.turn()
    count = len(master.link.reports)
    await slave.turn(3 * HEARTBEAT_S + 0.1)
    assert master.link.reports[count:] == [len(data)] * 3
    assert slave.client.connected


async def test_a_silent_master_is_left_and_tried_again(follow: Follow) -> None:
    data, rng = log_bytes(3), Random(7)
    master = ScriptedMaster(data)
    slave = await follow(master)
    master.answer(rng)
    await slave.turn(SILENCE_S - 1)
    master.link.heartbeat()
    await slave.turn(SILENCE_S - 1)
    assert master.link.open
    await slave.turn(1.1)
    assert not master.link.open
    assert not slave.client.connected
    await slave.turn(RETRY_FIRST_S)
    assert len(master.links) == 2


async def test_a_master_that_is_down_is_tried_every_few_seconds(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    master = ScriptedMaster(log_bytes(3))
    master.refuses = True
    slave = await follow(master)
    with caplog.at_level(logging.WARNING):
        await slave.turn(120)
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "connection refused" in text]) == 1
    master.refuses = False
    await slave.turn(RETRY_MAX_S)
    master.answer(Random(8))
    await slave.turn()
    assert slave.log_bytes() == master.data


async def test_a_slave_waits_until_somebody_knows_the_master(follow: Follow) -> None:
    master = ScriptedMaster(log_bytes(3))
    slave = SlaveRig(master)
    slave.address = None
    await slave.follow()
    await slave.turn(30)
    assert not master.links
    slave.address = ADDRESS
    await slave.turn(RETRY_FIRST_S)
    assert len(master.links) == 1
    await slave.client.stop()


# Memory


async def test_nothing_is_read_while_the_disk_is_behind(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_client, "UNSTORED_MAX", 50_000)
    data, rng = log_bytes(), Random(9)
    master = ScriptedMaster(data, file_size=1 << 30)
    slave = await follow(master, ha_copy_from="start", flush_disk_type="SYNC_FLUSH")
    master.begin_link()
    while master.link.reading:
        assert master.send(rng, 20_000), "all of it was read"
        await settle()
    assert slave.end <= 50_000 + 20_000 + RECEIVED_MAX
    held = slave.end
    await advance_async(
        slave.clock, SILENCE_S + 1
    )  # the slave does not listen, so this is no silence
    assert master.link.open
    assert slave.end == held
    while slave.end < len(data):
        slave.workers.run_all()
        await settle()
        if master.link.reading:
            master.send(rng, 20_000)
    assert slave.log_bytes() == data


# Figures


def series(slave: SlaveRig | None) -> dict[str, float]:
    client = None if slave is None else slave.client
    return {
        sample.name: sample.value
        for family in master_families(client, FamilyMaker({}))
        for sample in family.samples
    }


async def test_the_metrics_tell_how_the_master_is_followed(follow: Follow) -> None:
    data, rng = log_bytes(20), Random(11)
    master = ScriptedMaster(data)
    slave = await follow(master, flush_disk_type="SYNC_FLUSH")
    master.begin_link()
    master.send(rng)
    await settle()
    wanted = {
        "skylarkmq_master_connected": 1,
        "skylarkmq_master_refused": 0,
        "skylarkmq_master_received_offset_bytes": len(data),
        "skylarkmq_master_unstored_bytes": len(data),
        "skylarkmq_master_connections_total": 1,
    }
    assert series(slave) == wanted
    slave.workers.run_all()
    assert series(slave)["skylarkmq_master_unstored_bytes"] == 0
    master.link.say(b"\xff" * 12)
    await slave.turn()
    assert series(slave)["skylarkmq_master_connected"] == 0
    assert series(slave)["skylarkmq_master_refused"] == 1
    assert not series(None)


# Refusals


async def refused(slave: SlaveRig, master: ScriptedMaster, caplog: pytest.LogCaptureFixture) -> str:
    """Play the master; return why it is refused, which the log says once, and nothing changes."""
    before = slave.log_bytes()
    with caplog.at_level(logging.WARNING, logger=ha_client.__name__):
        for _ in range(5):
            if not master.link.sent:
                master.begin_link()
            if not master.send(Random(10)):
                master.link.heartbeat()
            await slave.turn(1.0)
            if not master.link.open:
                break
        why = slave.client.refusal
        assert not slave.client.connected
        assert slave.log_bytes() == before
        await slave.turn(REFUSED_RETRY_S - 2)
        assert len(master.links) == 1  # a slow pace
        await slave.turn(2)
        assert len(master.links) == 2
        master.begin_link()
        if not master.send(Random(10)):
            master.link.heartbeat()
            master.link.heartbeat()
        await slave.turn()
    told = [record.getMessage() for record in caplog.records if why and why in record.getMessage()]
    assert len(told) == 1, caplog.text
    return why


async def test_another_brokers_log_is_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    before = await copied(follow, log_bytes(100))
    master = ScriptedMaster(log_bytes(200, seed=2))
    why = await refused(await follow(master, before.files), master, caplog)
    assert "differs from this one" in why
    assert "Keep the better store" in why


async def test_a_master_that_closes_without_a_word_is_told_and_tried_again(follow: Follow) -> None:
    data = log_bytes(60)
    before = await copied(follow, data)
    master = ScriptedMaster(data)
    slave = await follow(master, before.files)
    master.link.lose(None)
    await slave.turn()
    assert "its log says why" in slave.client.refusal
    assert series(slave)["skylarkmq_master_refused"] == 1
    await slave.turn(5)  # it may only have stopped
    assert len(master.links) == 2
    master.answer(Random(3))
    await slave.turn()
    assert slave.client.connected
    assert slave.client.refusal == ""


async def test_logs_that_have_gone_apart_are_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    data = log_bytes(100)
    before = await copied(follow, data)
    apart = data[:-1000] + bytes(value ^ 1 for value in data[-1000:]) + data[:5000]
    master = ScriptedMaster(apart)
    slave = await follow(master, before.files)
    assert "differs from this one" in await refused(slave, master, caplog)


@pytest.mark.parametrize("lost", [1, 500, COMPARED_SIZE, 20_000])
async def test_a_slave_ahead_of_its_master_is_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    data = log_bytes(100)
    before = await copied(follow, data)
    master = ScriptedMaster(data[:-lost])
    slave = await follow(master, before.files)
    why = await refused(slave, master, caplog)
    wanted = "has lost its newest messages" if lost < COMPARED_SIZE else "has no bytes at offset"
    assert wanted in why


async def test_a_master_whose_next_bytes_have_expired_is_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    data = log_bytes()
    before = await copied(follow, log_bytes(20))
    master = ScriptedMaster(data, 2 * LOG_SIZE)
    slave = await follow(master, before.files)
    why = await refused(slave, master, caplog)
    assert "have expired" in why
    assert "empty store" in why


async def test_another_file_size_is_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    size = LOG_SIZE + 4096
    master = ScriptedMaster(log_bytes(), file_size=size)
    slave = await follow(master, ha_copy_from="start")
    assert "mappedFileSizeCommitLog" in await refused(slave, master, caplog)
    assert slave.store.commit_log.mapped_files.last is None


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 12, bytes(8) + b"\x7f" * 4]
)
async def test_one_that_is_no_master_is_refused(follow: Follow, data: bytes) -> None:
    master = ScriptedMaster(b"")
    slave = await follow(master)
    master.link.say(data)
    await slave.turn()
    assert "this is no master" in slave.client.refusal
    assert not master.link.open


async def test_bytes_of_another_place_are_not_compared(follow: Follow) -> None:
    data = log_bytes(100)
    before = await copied(follow, data)
    master = ScriptedMaster(data)
    slave = await follow(master, before.files)
    master.link.part(len(data) - 100, data[-100:])
    await slave.turn()
    assert "in place of" in slave.client.refusal


async def test_damage_on_the_way_is_refused(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    data = log_bytes(50)
    master = ScriptedMaster(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    slave = await follow(master)
    assert "no sound record" in await refused(slave, master, caplog)


async def test_bytes_of_another_place_are_refused(follow: Follow) -> None:
    data = log_bytes(50)
    master = ScriptedMaster(data)
    slave = await follow(master)
    master.begin_link()
    master.send(Random(1), 5000)
    master.link.part(master.link.sent + 1, data[:100])
    await slave.turn()
    assert "goes on" in slave.client.refusal


async def test_a_full_disk_is_told_and_tried_again(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    data = log_bytes()
    master = ScriptedMaster(data)
    slave = await follow(master, ha_copy_from="start")
    slave.files.fail("allocate", times=1, error=28)
    with caplog.at_level(logging.WARNING, logger=ha_client.__name__):
        for _ in range(20):
            if slave.end == len(data):
                break
            if master.link.open:
                master.answer(Random(1))
            await slave.turn(RETRY_MAX_S)
    assert slave.log_bytes() == data
    assert "cannot be stored" in caplog.text


async def test_an_unexpected_failure_is_told_with_its_trace_and_tried_again(
    follow: Follow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = ScriptedMaster(log_bytes(3))
    slave = await follow(master)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(slave.store, "take_records", fail)
    master.answer(Random(1))
    await slave.turn()
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    await slave.turn(REFUSED_RETRY_S)
    with suppress(IndexError):
        master.answer(Random(1))
    await slave.turn()
    assert slave.log_bytes() == master.data
