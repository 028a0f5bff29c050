"""What waits is stored again before its log file goes, once, whatever happens on the way."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.timer import index as index_module
from tests.broker.timer.timer_rig import TOPIC, WHEEL, TimerRig
from tests.store.clean_rig import RARE_TIMERS
from tests.store.support import LOG_SIZE, inner
from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.workers import rest

HOUR_S = 3600
RARE_FLUSHES = {
    "timer_flush_interval_ms": 30_000,
    "flush_interval_commit_log": 30_000,
    "flush_interval_consume_queue": 30_000,
    "flush_consume_queue_thorough_interval": 30_000,
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 20)
    monkeypatch.setattr(index_module, "FAN_IN", 3)
    monkeypatch.setattr("skylarkmq.broker.timer.rolling.ROLL_COUNT", 7)


class RollRig(TimerRig):
    """A store whose log files expire after an hour."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        defaults: dict[str, Any] = {
            **RARE_TIMERS,
            "file_reserved_time": 1,
            "clean_resource_interval": 30_000,
            "timer_flush_interval_ms": 5000,
            "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
            "flush_consume_queue_thorough_interval": 5000,
            "timer_max_delay_sec": 30 * 24 * HOUR_S,
        }
        super().__init__(files, **{**defaults, **config})
        self.files.now_ms = self.clock.now_ms
        self.seen: list[MessageExt] = []  # delivered ones, also those whose files are gone
        self._seen_offset = 0
        self.store.add_arrival_listener(self._look)

    def _look(self, topic: str, queue_id: int, end: int) -> None:
        while topic == TOPIC and self._seen_offset < end:
            result = self.store.get_message(topic, queue_id, self._seen_offset, 32)
            self.seen += decode_messages(b"".join(result.views))
            self._seen_offset = result.next_begin_offset

    @property
    def numbers(self) -> list[int]:
        """Bodies of all that was delivered."""
        return [int(message.body) for message in self.seen]

    async def fill(self, file_count: int = 1) -> None:
        """Write until so many more log files are full."""
        wanted = len(self.store.commit_log.mapped_files.mapped) + file_count
        while len(self.store.commit_log.mapped_files.mapped) < wanted:
            self.store.put_message(inner("other", 0, bytes(20_000)), self.results.append)
            await rest(self.workers)

    @property
    def first_offset(self) -> int:
        return self.store.commit_log.min_offset


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", slow("SYNC_FLUSH")])
async def test_a_waiting_message_outlives_its_log_file(flush: str) -> None:
    rig = RollRig(flush_disk_type=flush, **RARE_FLUSHES).start()
    due_ms = rig.clock.now_ms() + 10 * HOUR_S * 1000
    for number in range(100):
        rig.at(due_ms - 1000 * number, b"%d" % number, b"\x02UNIQ_KEY\x01K%d" % number)
    rig.cancel(due_ms, b"K0")
    rig.after(2000, b"1000")
    await rig.fill(2)
    for _ in range(3):  # each hour the file with the messages goes
        await rig.advance(1.3 * HOUR_S, step_s=20)
        await rig.fill()
    assert rig.first_offset > 2 * LOG_SIZE
    assert rig.service.rolling.rolled_count >= 2 * 101
    assert rig.service.waiting_count == 100
    assert rig.service.messages.skipped_count == 0
    rig.clock.step_wall(8 * HOUR_S)
    await rig.advance(10)
    assert rig.numbers == [1000, *range(99, 0, -1)]
    rolls = {message.properties.get("TIMER_ROLL_TIMES") for message in rig.seen[1:]}
    assert len(rolls) == 1
    assert int(rolls.pop() or 0) >= 2
    assert rig.service.messages.cancelled_count == 1


async def test_what_went_with_its_topic_is_not_stored_again() -> None:
    rig = RollRig().start()
    rig.after(10 * HOUR_S * 1000, b"1")
    await rest(rig.workers)
    rig.store.removal.remove(TOPIC, lambda error: None)
    await rest(rig.workers)
    rig.store.removal.release(TOPIC, lambda error: None)
    rig.after(10 * HOUR_S * 1000, b"2")  # to the next topic of that name
    await rig.fill(2)
    await rig.advance(1.3 * HOUR_S, step_s=20)
    assert rig.first_offset > 0
    assert rig.service.rolling.rolled_count == 1
    rig.clock.step_wall(10 * HOUR_S)
    await rig.advance(10)
    assert rig.numbers == [2]


async def test_the_file_stays_until_the_copies_are_on_the_disk() -> None:
    rig = RollRig().start()
    rig.after(10 * HOUR_S * 1000)
    await rig.fill(2)
    asked: list[bool] = []
    keeper = rig.store.cleaning.keepers[0]

    def ask(end: int) -> bool:
        asked.append(keeper(end))
        if asked[-1]:
            copies = rig.store.max_offset(WHEEL, 0)
            unit = rig.store.queue_units(WHEEL, 0, copies - 1, 1)[0]
            assert unit.commit_offset < rig.store.commit_log.flushed_offset
            assert rig.service.state.void_below >= end
        return asked[-1]

    rig.store.cleaning.keepers[0] = ask
    await rig.advance(1.2 * HOUR_S, step_s=20)
    assert rig.first_offset > 0
    assert True in asked


async def test_it_goes_on_while_the_disk_is_too_full_for_messages() -> None:
    rig = RollRig(
        disk_space_warning_level_ratio=90, disk_space_clean_forcibly_ratio=85, file_reserved_time=99
    )
    rig.start()
    for number in range(50):
        rig.after(10 * HOUR_S * 1000, b"%d" % number)
    await rig.fill(3)
    await rig.advance(30)
    rig.files.used_percent = 95
    await rig.advance(150, step_s=2)
    assert rig.store.refusal() is not None
    assert rig.first_offset > 0
    assert rig.service.rolling.rolled_count == 50
    rig.files.used_percent = 50
    rig.clock.step_wall(11 * HOUR_S)
    await rig.advance(40, step_s=2)
    assert sorted(rig.numbers) == list(range(50))


async def test_what_is_due_leaves_while_others_are_stored_again() -> None:
    rig, rng = RollRig(**RARE_FLUSHES).start(), random.Random(1)
    sent = 0
    for _ in range(200):
        rig.after(rng.randrange(HOUR_S * 1000, 3 * HOUR_S * 1000), b"%d" % sent)
        sent += 1
    await rig.fill(2)
    await rig.advance(3.1 * HOUR_S, step_s=15)
    assert rig.first_offset > 0
    assert rig.service.rolling.rolled_count > 10
    assert sorted(rig.numbers) == list(range(sent))


@pytest.mark.parametrize("seed", range(6))
async def test_a_kill_on_the_way_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    rig = RollRig(timer_flush_interval_ms=100, flush_interval_commit_log=500).start()
    for number in range(120):
        rig.after(10 * HOUR_S * 1000 + 1000 * number, b"%d" % number)
    await rig.fill(2)
    await rig.advance(0.95 * HOUR_S, step_s=30)
    seen: list[CrashDisk] = []
    countdown = [rng.randrange(1, 60)]

    def before(_op: str, path: object) -> None:
        if "skylarkmq" in str(path) or "commitlog" in str(path):
            countdown[0] -= rig.service.rolling.rolled_count > 0
            if countdown[0] == 0:
                seen.append(rig.files.snapshot())

    rig.files.before_step = before
    await rig.advance(0.3 * HOUR_S, step_s=1)
    assert seen
    killed = RollRig(seen[0])
    killed.clock.step_wall(2 * HOUR_S)
    killed.start()
    await killed.advance(150, step_s=2)
    killed.clock.step_wall(20 * HOUR_S)
    await killed.advance(10, step_s=0.5)
    numbers = killed.numbers
    assert set(numbers) == set(range(120))
    assert len(numbers) <= 160  # twice: what was stored again since the last checkpoint
    assert killed.service.waiting_count == 0


async def test_a_broker_without_timers_keeps_no_file() -> None:
    rig = RollRig(timer_wheel_enable=False).start()
    assert rig.store.cleaning.keepers[0](LOG_SIZE)
    await rig.fill(2)
    await rig.advance(2 * HOUR_S, step_s=30)
    assert rig.first_offset > 0
    assert rig.store.max_offset(TOPIC, 2) == 0


async def test_the_file_stays_until_the_checkpoint_is_on_the_disk() -> None:
    """Else a restart would look for messages where no file is."""
    rig = RollRig().start()
    rig.after(10 * HOUR_S * 1000)
    await rig.fill(2)
    await rig.advance(0.9 * HOUR_S, step_s=30)
    rig.files.fail("rename", times=10_000, error=errno.ENOSPC, path="timer/checkpoint")
    await rig.advance(0.3 * HOUR_S, step_s=30)
    assert rig.service.rolling.rolled_count == 1
    assert rig.first_offset == 0
    rig.files.faults = type(rig.files.faults)()
    await rig.advance(0.1 * HOUR_S, step_s=30)
    assert rig.first_offset > 0
