"""Delayed messages over a real store: never early, never skipped, nothing polls while idle."""

from __future__ import annotations

import errno
import random
from random import Random

import pytest

from skylarkmq.broker.delay.delay_offsets import FILE_NAME
from skylarkmq.broker.delay.schedule_service import ERROR_RETRY_S, UNITS_PER_TURN
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.results import MessageInner
from tests.broker.schedule_rig import SCHEDULE, TOPIC, Rig
from tests.store.support import BORN, HOST, inner, refuse_bodies
from tests.support.crash_states import CrashState, Keep
from tests.support.workers import rest

pytestmark = pytest.mark.usefixtures("age_of_records")


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_message_is_delivered_when_due_and_not_before(flush: str) -> None:
    rig = Rig(flush_disk_type=flush).start()
    rig.park(2)
    await rig.advance(4.9)
    assert rig.bodies() == []
    await rig.advance(0.3)
    assert rig.bodies() == [b"body"]
    assert rig.service.delivered_count == 1
    await rig.advance(20)
    assert rig.bodies() == [b"body"]


async def test_the_copy_keeps_what_was_parked() -> None:
    rig = Rig().start()
    rig.park(
        1, b"\x00\xff", b"TAGS\x01TagA\x02KEYS\x01k", flag=77, sys_flag=1, reconsume_times=3,
        born_timestamp=1234,
    )  # fmt: skip
    await rig.advance(1.2)
    (message,) = rig.delivered()
    assert (message.body, message.flag, message.sys_flag) == (b"\x00\xff", 77, 1)
    assert (message.reconsume_times, message.born_timestamp) == (3, 1234)
    assert (message.born_host.pack(), message.store_host.pack()) == (BORN, HOST)
    assert message.properties == {
        "TAGS": "TagA", "KEYS": "k", "DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "2",
    }  # fmt: skip
    (unit,) = rig.store.queue_units(TOPIC, 2, 0, 10)
    assert unit.tags_code == tags_code("TagA")


async def test_property_bytes_that_are_no_utf8_travel_unchanged() -> None:
    """Decoded and encoded again they would grow beyond what a record holds and block the level."""
    rig = Rig().start()
    odd = b"x\x01" + b"\xff" * 32_000
    rig.park(1, properties=odd)
    rig.park(1, b"behind")
    await rig.advance(1.5)
    assert rig.bodies() == [b"body", b"behind"]
    view = rig.store.commit_log.read(rig.store.queue_units(TOPIC, 2, 0, 1)[0].commit_offset)
    assert view is not None
    assert view.properties.startswith(odd)


async def test_an_idle_level_has_no_timer() -> None:
    rig = Rig().start()
    await rig.advance(15)  # the store's timers have found their places
    others = rig.clock.pending_count
    rig.park(1)
    assert rig.clock.pending_count > others
    await rig.advance(1.5)
    assert rig.bodies() == [b"body"]
    await rig.advance(11)  # the offsets have been written
    assert rig.clock.pending_count == others


async def test_levels_do_not_wait_for_each_other() -> None:
    rig = Rig().start()
    rig.park(18, b"two hours")
    rig.park(2, b"five seconds")
    rig.park(1, b"one second")
    await rig.advance(5.2)
    assert rig.bodies() == [b"one second", b"five seconds"]
    assert rig.service.pending_count(18) == 1
    assert rig.service.levels == [1, 2, 18]


async def test_order_within_a_level_is_kept(flush: str) -> None:
    rig = Rig(flush_disk_type=flush).start()
    bodies = [b"%d" % number for number in range(3 * UNITS_PER_TURN + 7)]
    for body in bodies:
        rig.park(1, body)
    await rig.advance(2)
    assert rig.bodies() == bodies


async def test_after_a_clean_stop_nothing_is_repeated(flush: str) -> None:
    rig = Rig(flush_disk_type=flush).start()
    rig.park(1, b"before")
    rig.park(2, b"after")
    await rig.advance(1.1)
    await rig.stop_all()
    assert rig.file() == {"1": 1}
    again = Rig(rig.files, flush_disk_type=flush).start()
    again.clock.step_wall(3600)
    await again.advance(1.5)
    assert again.bodies() == [b"before", b"after"]


async def test_after_any_crash_every_durable_message_is_delivered(flush: str) -> None:
    """The offsets may stand behind the deliveries, never in front of what a power cut leaves."""
    rng = random.Random(11)
    rig = Rig(flush_disk_type=flush, flush_delay_offset_interval=100).start()
    bodies = [b"%d" % number for number in range(12)]
    for number, body in enumerate(bodies):
        rig.park(1 + number % 2, body)
        await rig.advance(0.4)
    await rig.advance(0.6)  # all parked ones are synced, some delivered ones are not
    for _ in range(8):
        rig.clock.advance(0.3)  # deliveries go on and tables are written, the log is not synced
        await rest(rig.workers.tables)
    for state in rig.files.crash_states(rng, 16):
        again = Rig(rig.files.crash(state, rng), flush_disk_type=flush)
        again.clock.step_wall(60)
        again.start()
        await again.advance(7)
        assert set(again.bodies()) == set(bodies), state


async def test_the_file_never_passes_what_is_not_synced() -> None:
    """A power cut must not find an offset behind a delivered copy that it takes away."""
    rig = Rig(flush_interval_commit_log=60_000, flush_delay_offset_interval=1000).start()
    rig.park(1)
    for _ in range(50):
        rig.clock.advance(0.1)
        await rest(rig.workers)
    assert rig.bodies() == [b"body"]
    assert not rig.files.exists(rig.store.paths.config / FILE_NAME)
    await rig.advance(60)
    assert rig.file() == {"1": 1}


async def test_the_file_is_written_each_interval_while_something_changes() -> None:
    rig = Rig().start()
    rig.park(1)
    await rig.advance(5)
    assert not rig.files.exists(rig.store.paths.config / FILE_NAME)
    await rig.advance(7)
    assert rig.file() == {"1": 1}
    writes = rig.files.calls["replace"]
    await rig.advance(60)
    assert rig.files.calls["replace"] == writes


async def test_a_file_that_was_not_written_is_tried_again() -> None:
    rig = Rig().start()
    rig.files.fail("rename", times=1, error=errno.ENOSPC, path=FILE_NAME)
    rig.park(1)
    await rig.advance(12)
    assert not rig.files.exists(rig.store.paths.config / FILE_NAME)
    await rig.advance(10)
    assert rig.file() == {"1": 1}


@pytest.mark.parametrize("text", [b'{"offsetTable":{1:7}}', b'{"offsetTable":{"1":7,"99999":-4}}'])
async def test_offsets_beyond_the_queue_are_clipped(text: bytes) -> None:
    rig = Rig()
    rig.files.make_folder(rig.store.paths.config)
    rig.files.replace(rig.store.paths.config / FILE_NAME, text, backup=False)
    rig.start()
    rig.park(1, b"a")
    rig.park(1, b"b")
    await rig.advance(1.5)
    assert rig.bodies() == [b"a", b"b"]


async def test_what_counts_as_delivered_and_has_no_copy_any_more_is_delivered_again() -> None:
    """As after a cut of the log between a message and its copy."""
    rig = Rig().start()
    rig.park(1, b"long delivered")
    await rig.advance(100)
    rig.park(1, b"a")
    rig.park(1, b"b")
    await rig.advance(0.5)
    rig.files.replace(rig.store.paths.config / FILE_NAME, b'{"offsetTable":{"1":3}}', backup=False)
    again = Rig(rig.files.crash(CrashState(Keep.ALL), Random(1)))
    again.clock.advance(200)
    again.start()
    await again.advance(0.5)
    assert again.bodies() == [b"long delivered", b"a", b"b"]
    await again.advance(12)
    assert again.file() == {"1": 3}


async def late_copies() -> tuple[Rig, int]:
    """A rig that was down while messages became due; where the log ended before their copies."""
    rig = Rig().start()
    rig.park(1, b"in time")
    await rig.advance(12)
    rig.park(2, b"a")
    rig.park(2, b"b")
    await rig.advance(0.5)
    await rig.stop_all()
    late = Rig(rig.files)
    late.clock.step_wall(3600)
    late.start()
    late.store.put_message(inner("other", 0, b"the cut is here"), late.results.append)
    place = late.store.commit_log.max_offset
    await late.advance(15)
    assert late.bodies() == [b"in time", b"a", b"b"]
    await late.stop_all()
    return late, place


def after_a_cut(rig: Rig, place: int) -> Rig:
    """Start on what is left; the log ends at `place`."""
    again = Rig(rig.files)
    again.clock.step_wall(7200)
    again.store.load()
    again.store.cut_back(place)
    again.store.start()
    again.table.load()
    again.service.start()
    return again


@pytest.mark.parametrize("is_killed", [False, True])
async def test_late_copies_that_a_cut_took_come_again(is_killed: bool) -> None:
    """Of messages that had been due long before the newest record that is left."""
    rig, place = await late_copies()
    again = after_a_cut(rig, place)
    if is_killed:  # when the log is longer than before the cut
        for _ in range(10):
            again.store.put_message(inner("other", 0, bytes(500)), again.results.append)
        again = Rig(again.files.snapshot())
        again.clock.step_wall(7300)
        again.start()
    await again.advance(12)
    assert again.bodies() == [b"in time", b"a", b"b"]
    await again.stop_all()
    assert again.file() == {"1": 1, "2": 2}


@pytest.mark.parametrize("content", [b"no history", None])
async def test_without_the_history_the_newest_record_says_what_comes_again(
    content: bytes | None,
) -> None:
    rig = Rig().start()
    rig.park(2, b"a")
    await rig.advance(1)
    place = rig.store.commit_log.max_offset
    await rig.advance(15)
    await rig.stop_all()
    path = rig.store.paths.delay_history
    if content is None:
        rig.files.unlink(path)
    else:
        rig.files.replace(path, content, backup=False)
    again = after_a_cut(rig, place)
    await again.advance(3)
    assert again.bodies() == [b"a"]


async def test_a_refused_put_is_tried_again_without_repeating_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig().start()
    for body in (b"a", b"b", b"c"):
        rig.park(1, body)
    add_message = rig.store.commit_log.batch.add_message
    calls = 0

    def full_for_a_while(batch: AppendBatch, queue: ConsumeQueue, message: MessageInner) -> int:
        nonlocal calls
        calls += 1
        if 2 <= calls <= 4:
            raise StoreFullError("the disk is full")
        return add_message(queue, message)

    monkeypatch.setattr(AppendBatch, "add_message", full_for_a_while)
    await rig.advance(1.5)
    assert rig.bodies() == [b"a"]
    await rig.advance(5)
    assert rig.bodies() == [b"a", b"b", b"c"]


async def test_a_limit_that_was_lowered_holds_nothing_back() -> None:
    rig = Rig().start()
    rig.park(1, b"x" * 5000)
    rig.park(1, b"last")
    object.__setattr__(rig.store.config, "max_message_size", 1000)
    await rig.advance(3)
    assert rig.bodies() == [b"x" * 5000, b"last"]


async def test_a_message_that_is_refused_waits_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig().start()
    rig.park(1, b"first")
    rig.park(1, b"x" * 5000)
    rig.park(1, b"last")
    refuse_bodies(monkeypatch, 1000)
    await rig.advance(10)
    assert rig.bodies() == [b"first"]
    refuse_bodies(monkeypatch, 10_000)
    await rig.advance(2)
    assert rig.bodies() == [b"first", b"x" * 5000, b"last"]


async def test_a_bad_sector_costs_its_own_message_alone() -> None:
    rig = Rig().start()
    for body in (b"first", b"second", b"third"):
        rig.park(1, body)
    rig.files.fail("pread", at=3, path="commitlog")
    await rig.advance(2)
    is_cold = rig.service.skipped_count == 1
    assert rig.bodies() == [b"first", *([] if is_cold else [b"second"]), b"third"]


async def test_messages_that_the_machine_does_not_let_be_read_are_delivered_later() -> None:
    """They were taken for damaged, and passed over."""
    rig = Rig().start()
    rig.park(1, b"first")
    rig.park(1, b"second")
    rig.files.fail("pread", at=1, error=errno.ENOMEM, path="commitlog")
    await rig.advance(2 + ERROR_RETRY_S)
    assert rig.bodies() == [b"first", b"second"]
    assert rig.service.skipped_count == 0


@pytest.mark.parametrize(
    "properties",
    [
        b"REAL_QID\x010",
        b"REAL_TOPIC\x01T",
        b"REAL_TOPIC\x01../etc\x02REAL_QID\x010",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01-1",
        b"REAL_TOPIC\x01T\x02REAL_QID\x019999999999",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01\xd9\xa1",
    ],
)
async def test_a_record_without_a_possible_target_is_passed_over(properties: bytes) -> None:
    rig = Rig().start()
    bad = inner(SCHEDULE, 0, b"bad", properties=properties, delay_level=1)
    rig.store.put_message(bad, rig.results.append)
    rig.park(1, b"good")
    await rig.advance(1.5)
    assert rig.bodies() == [b"good"]
    assert rig.service.skipped_count == 1
    assert rig.delivered("T", 0) == []


async def test_a_step_back_delays_by_one_level_at_most() -> None:
    rig = Rig().start()
    rig.park(2)
    await rig.advance(3)
    rig.clock.step_wall(-3600)
    await rig.advance(1.9)
    assert rig.bodies() == []
    await rig.advance(5)  # it is noticed at the next look, from then on one more delay
    assert rig.bodies() == [b"body"]


async def test_what_is_parked_after_a_step_back_waits_its_own_delay() -> None:
    """The store's time stands still until the wall clock has caught up, and with it due times."""
    rig = Rig().start()
    rig.park(2, b"0")
    rig.clock.step_wall(-3600)
    for body in (b"1", b"2", b"3"):
        await rig.advance(2)
        rig.park(2, body)
    await rig.advance(4.8)  # 6.8 s after the first of them
    assert rig.bodies() == [b"0", b"1", b"2"]
    await rig.advance(1.3)
    assert rig.bodies() == [b"0", b"1", b"2", b"3"]


async def test_a_step_forward_is_noticed_within_a_second() -> None:
    rig = Rig().start()
    rig.park(18)
    await rig.advance(5)
    rig.clock.step_wall(7200)
    await rig.advance(1.2)
    assert rig.bodies() == [b"body"]


async def test_levels_that_are_configured_no_more_are_served_at_their_due_time() -> None:
    rig = Rig().start()
    rig.park(4, b"thirty seconds")
    await rest(rig.workers)
    rig.stop()
    again = Rig(rig.files, message_delay_level="1s 5s").start()
    await again.advance(29)
    assert again.bodies() == []
    await again.advance(2)
    assert again.bodies() == [b"thirty seconds"]


async def test_an_error_in_a_turn_stops_one_level_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig().start()
    rig.park(1)
    rig.park(2, b"other")
    units = rig.store.queue_units
    monkeypatch.setattr(
        rig.store,
        "queue_units",
        lambda topic, queue, offset, count: (
            [] if queue == 0 else units(topic, queue, offset, count)
        ),
    )
    await rig.advance(6)
    assert rig.bodies() == [b"other"]
    monkeypatch.setattr(rig.store, "queue_units", units)
    await rig.advance(10)
    assert rig.bodies() == [b"other", b"body"]
