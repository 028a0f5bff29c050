"""A follower that has the log alone takes over: what waits is delivered, and not once more."""

from __future__ import annotations

from random import Random

import pytest

from skylarkmq.broker.transaction.messages import HALF_TOPIC, op_of
from tests.broker.replication.metadata_rig import Replica, copy
from tests.store.support import HOST, inner
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock

PREPARED = 0x4


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def pair(clock: ManualClock) -> tuple[Replica, Replica]:
    """A master and an empty follower; the master has the topic T."""
    master, follower = Replica(clock), Replica(clock)
    master.start()
    follower.start()
    await master.lead()
    master.topic("T")
    await master.rest()
    return master, follower


async def take_over(master: Replica, follower: Replica, term: int = 2) -> None:
    """The master vanishes; the follower has all of its log."""
    copy(master, follower, Random(term))
    master.parts.metadata.stop_as_master()
    await follower.rest()
    await follower.lead(term)


def delay(replica: Replica, level: int, body: bytes) -> None:
    message = inner("T", 1, body, properties=b"DELAY\x01%d" % level)
    replica.store.put_message(
        replica.store.delay_levels.redirect(message, level), replica.results.append
    )


def timed(replica: Replica, delay_ms: int, body: bytes, more: bytes = b"") -> None:
    message = inner("T", 2, body, properties=b"TIMER_DELAY_MS\x01%d" % delay_ms + more)
    replica.store.put_message(replica.store.timer_rules.redirect(message), replica.results.append)


async def test_delayed_messages_are_delivered_once(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for number in range(300):
        delay(master, 1 + number % 4, b"%d" % number)
    await master.advance(16)  # the levels of 1, 5 and 10 s are delivered, and their offsets written
    assert len(master.bodies("T", 1)) == 225
    await take_over(master, follower)
    await follower.advance(40)
    assert sorted(map(int, follower.bodies("T", 1))) == list(range(300))


async def test_what_was_delivered_since_the_last_record_is_delivered_again(
    clock: ManualClock,
) -> None:
    master, follower = await pair(clock)
    delay(master, 1, b"first")
    await master.advance(12)
    delay(master, 1, b"second")
    await master.advance(2)
    assert master.bodies("T", 1) == [b"first", b"second"]
    await take_over(master, follower)
    await follower.advance(2)
    assert follower.bodies("T", 1) == [b"first", b"second", b"second"]


async def test_timed_messages_are_delivered_once(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for number in range(300):
        timed(master, 1000 + 100 * (number % 60), b"%d" % number)
    await master.advance(4)
    done = len(master.bodies("T", 2))
    assert 0 < done < 300
    # Nothing is due while the checkpoint is written.
    clock.step_wall(-10)
    await master.advance(4)
    assert len(master.bodies("T", 2)) == done
    await take_over(master, follower)
    await follower.advance(30)
    assert sorted(map(int, follower.bodies("T", 2))) == list(range(300))


async def test_a_second_take_over_before_anything_moved(clock: ManualClock) -> None:
    master, second = await pair(clock)
    third = Replica(clock)
    third.start()
    for number in range(10):
        timed(master, 1000, b"%d" % number)
        delay(master, 1, b"%d" % number)
    await master.advance(15)
    await take_over(master, second)
    await take_over(second, third, 3)
    await third.advance(20)
    assert len(third.bodies("T", 2)) == 10
    assert len(third.bodies("T", 1)) == 10


async def test_a_message_that_was_taken_back_stays_so(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    due = clock.now_ms() + 8000
    for body, more in ((b"gone", b"UNIQ_KEY\x01k1"), (b"stays", b"UNIQ_KEY\x01k2")):
        text = b"TIMER_DELIVER_MS\x01%d\x02" % due + more
        message = inner("T", 2, body, properties=text)
        master.store.put_message(master.store.timer_rules.redirect(message), master.results.append)
    text = b"TIMER_DELIVER_MS\x01%d\x02TIMER_DEL_UNIQKEY\x01k1" % due
    cancel = master.store.timer_rules.redirect(inner("T", 0, b"0", properties=text))
    master.store.put_message(cancel, master.results.append)
    await master.advance(3)
    await take_over(master, follower)
    await follower.advance(10)
    assert follower.bodies("T", 2) == [b"stays"]


async def test_an_old_checkpoint_of_a_follower_counts_for_nothing(clock: ManualClock) -> None:
    """It was the master once, and its log was cut: the queue offsets are others' now."""
    master, follower = await pair(clock)
    copy(master, follower)
    old = Replica(clock, (await stopped_master(clock)).disk)
    folded = old.start()
    assert folded.is_whole
    assert old.parts.timer.state.known_below
    for number in range(5):
        timed(master, 4000, b"%d" % number)
    await master.advance(2)
    # As after a cut to the start of the log: the files beside it are still there.
    fresh = Replica(clock, without_log(old))
    fresh.start()
    copy(master, fresh)
    await fresh.lead(9)
    await fresh.advance(10)
    assert sorted(fresh.bodies("T", 2)) == [b"0", b"1", b"2", b"3", b"4"]


async def stopped_master(clock: ManualClock) -> Replica:
    """One that has delivered timed messages and has stopped."""
    master = Replica(clock)
    master.start()
    await master.lead(1)
    master.topic("T")
    for number in range(20):
        timed(master, 1000, b"old %d" % number)
    await master.advance(5)
    assert len(master.bodies("T", 2)) == 20
    await master.stop()
    return master


def without_log(replica: Replica) -> CrashDisk:
    """What is left of a replica when its log is gone with all that is made of it."""
    disk = replica.disk
    replica.store.stop_writing()
    replica.workers.run_all()
    replica.store.close()
    kept = "config/", "skylarkmq/timer/"
    for name in list(disk.contents()):
        if not name.startswith(kept):
            disk.unlink(disk.root / name)
    return disk


async def test_transactions_go_on(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for number in range(6):
        master.put(
            HALF_TOPIC, 0, b"%d" % number,
            properties=b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02PGROUP\x01pg", sys_flag=0,
        )  # fmt: skip
    for offset in (0, 3):
        master.store.put_message(op_of(offset, HOST, clock.now_ms()), master.results.append)
    await take_over(master, follower)
    await follower.rest()
    ledger = follower.parts.transactions
    assert ledger.is_ready
    assert ledger.pending_count == 4
    assert [ledger.table.is_ended(offset) for offset in range(6)] == [
        True, False, False, True, False, False,
    ]  # fmt: skip
    await ledger.stop()  # it follows, and leads once more
    ledger.start()
    assert not ledger.is_ready
    await follower.rest()
    assert ledger.is_ready
    assert ledger.pending_count == 4


async def test_consumers_go_on_where_they_were(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for number in range(10):
        master.put("T", 0, b"%d" % number)
    master.commit("cg", "T", 0, 7)
    await master.advance(6)
    master.commit("cg", "T", 0, 9)  # less than the interval before the end
    await take_over(master, follower)
    assert follower.parts.offsets.query("cg", "T", 0) == 7
