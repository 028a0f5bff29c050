"""Windows of unique keys: what they know, whom a copy waits for, what a start makes of the log."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.topic_attributes import DeduplicationWindow
from skylarkmq.store.deduplication import Window, digest_of
from skylarkmq.store.results import Committed, MessageInner, PutMessageResult, PutMessageStatus
from tests.store.support import StoreRig, inner
from tests.store.test_gate import GateRig
from tests.store.test_slow_disk import Rig as SlowRig
from tests.store.test_write_roads import every_flush, every_road, rig_on
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import seeds
from tests.support.manual_clock import ManualClock

OK = PutMessageStatus.PUT_OK
LATE = PutMessageStatus.UNCONFIRMED
LOST = PutMessageStatus.SERVICE_NOT_AVAILABLE
QUEUES = 3
MINUTE = DeduplicationWindow(60, 1000)


def keyed(key: str, queue_id: int = 0, body: bytes = b"", **changes: Any) -> MessageInner:
    return inner("T", queue_id, body, properties=b"UNIQ_KEY\x01" + key.encode(), **changes)


def wanted(rig: StoreRig, size: DeduplicationWindow = MINUTE) -> None:
    rig.store.deduplication.want("T", size)


def put(rig: StoreRig, key: str, queue_id: int = 0, body: bytes = b"") -> list[PutMessageResult]:
    """Store a message; what its sender is told comes into the list."""
    told: list[PutMessageResult] = []
    rig.store.put_message(keyed(key, queue_id, body), told.append)
    return told


def rebuilt(rig: StoreRig, size: DeduplicationWindow = MINUTE) -> Window:
    """The window that a start makes of the log."""
    queue_ids = [queue_id for topic, queue_id in rig.store.queues.queues if topic == "T"]
    for _ in rig.store.deduplication.rebuild("T", size, queue_ids, rig.clock.now_ms()):
        pass
    return rig.store.deduplication.windows["T"]


# For whom a second copy waits


@every_road
@every_flush
def test_a_second_copy_is_told_when_the_first_is(road: str, flush: str) -> None:
    rig = rig_on(road, flush).start()
    wanted(rig)
    first, second = put(rig, "K", body=b"1"), put(rig, "K", 1, b"2")
    assert bool(second) == bool(first) == (flush == "ASYNC_FLUSH")
    rig.workers.run_all()
    assert first == second or first[0]._replace(record_size=0) == second[0]
    assert (first[0].status, first[0].queue_offset) == (OK, 0)
    assert rig.store.queues.get("T", 1) is None or rig.store.max_offset("T", 1) == 0
    third = put(rig, "K", body=b"3")
    assert third[0].physical_offset == first[0].physical_offset
    rig.stop()


def test_after_a_failed_sync_nobody_is_told_that_it_is_stored() -> None:
    rig = rig_on("pwrite", "SYNC_FLUSH").start()
    wanted(rig)
    first, second = put(rig, "K"), put(rig, "K")
    rig.files.fail("datasync")
    rig.workers.run_all()
    assert [told[0].status for told in (first, second, put(rig, "K"))] == [LOST, LOST, LOST]


def test_a_first_copy_that_found_no_room_does_not_keep_the_second_one_out() -> None:
    rig = StoreRig().start()
    wanted(rig)
    body = b"x" * 30_000
    for number in range(4):
        assert put(rig, f"K{number}", body=body)[0].status is OK
    rig.files.fail("allocate", error=errno.ENOSPC, times=10)
    assert put(rig, "K4", body=body)[0].status is LOST
    rig.files.faults.clear()
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert put(rig, "K4", body=body)[0].status is OK
    assert rig.store.max_offset("T", 0) == 5


@every_flush
def test_behind_a_gate_a_copy_waits_for_the_confirmation_whoever_gave_up(flush: str) -> None:
    rig = GateRig("pwrite", flush)
    wanted(rig)
    first = put(rig, "K")
    rig.make_durable()
    rig.clock.advance(3.5)
    assert [result.status for result in first] == [LATE]
    second = put(rig, "K")
    rig.make_durable()
    assert second == [], "it is not confirmed yet"
    rig.store.confirm(rig.end)
    assert [result.status for result in second] == [OK]
    assert [result.status for result in put(rig, "K")] == [OK], "what is confirmed is told at once"


def test_a_copy_waits_for_the_slave_that_the_first_waits_for() -> None:
    class Slaves:
        def __init__(self) -> None:
            self.held: list[tuple[int, Committed]] = []

        def hold(self, end_offset: int, done: Committed) -> Committed:
            self.held.append((end_offset, done))
            return lambda status: None

        def settle(self, done: Committed) -> Committed:
            return done

    rig = StoreRig().start()
    wanted(rig)
    slaves = rig.store.writer.replicas = Slaves()
    first, second = put(rig, "K"), put(rig, "K")
    assert [end for end, _ in slaves.held] == [rig.store.commit_log.wrote_offset] * 2
    assert (first, second) == ([], [])


def test_while_the_disk_is_slow_a_copy_waits_for_the_write_of_the_first() -> None:
    rig = SlowRig()
    wanted(rig)
    rig.meet_slow_disk()
    first, second = put(rig, "K"), put(rig, "K")
    assert (first, second) == ([], [])
    rig.workers.commit.step()
    assert [told[0].status for told in (first, second)] == [OK, OK]


def test_copies_in_one_batch_of_the_broker_are_stored_once() -> None:
    rig = StoreRig().start()
    wanted(rig)
    told: list[PutMessageResult] = []
    rig.store.put_messages([keyed("a"), keyed("b"), keyed("a", 1), inner("T", 1)], told.extend)
    assert [result.queue_offset for result in told] == [0, 1, 0, 0]
    assert told[2].physical_offset == told[0].physical_offset


# What a window knows


class Model:
    """A window as one would write it down: all that was stored, in its order."""

    def __init__(self, size: DeduplicationWindow) -> None:
        self.size = size
        self.stored: list[tuple[str, int]] = []  # key, store time

    def known(self, now_ms: int) -> set[str]:
        youngest = self.stored[-self.size.keys :]
        return {key for key, at in youngest if now_ms - at < self.size.seconds * 1000}

    def put(self, key: str, now_ms: int) -> bool:
        """Whether it is stored."""
        if key in self.known(now_ms):
            return False
        self.stored = [entry for entry in self.stored if entry[0] != key]
        self.stored.append((key, now_ms))
        return True


@pytest.mark.parametrize("seed", range(20))
def test_a_window_knows_what_the_model_knows(seed: int) -> None:
    rng = Random(seed)
    size = DeduplicationWindow(rng.choice((1, 5)), rng.choice((1, 3, 8, 100)))
    window, model, now_ms = Window(size), Model(size), 1_700_000_000_000
    for number in range(600):
        now_ms += rng.choice((0, 0, 1, 100, 900, 3000))
        key = f"k{rng.randrange(12)}"
        digest = digest_of(b"UNIQ_KEY\x01" + key.encode())
        assert digest is not None
        known = window.look(digest, now_ms)
        assert (known is None) == model.put(key, now_ms), number
        if known is None:
            window.note(digest, now_ms, number % 1024, number << 20, number << 30)
        if rng.random() < 0.1:
            window.expire(now_ms, rng.choice((1, 100)))
        assert window.count <= size.keys


def test_a_place_comes_back_as_it_was() -> None:
    window = Window(MINUTE)
    largest = (1 << 16) - 1, (1 << 50) - 1, (1 << 58) - 1
    for number, place in enumerate([(0, 0, 0), (7, 8, 9), largest]):
        window.note(b"%d" % number, 1_700_000_000_123, *place)
        assert window.look(b"%d" % number, 1_700_000_000_123) == (*place, 1_700_000_000_123)


def test_keys_whose_time_is_over_are_forgotten() -> None:
    window = Window(DeduplicationWindow(1, 10_000))
    for number in range(5000):
        window.note(b"%d" % number, 1000, 0, number, number)
    full = window.memory_size
    window.expire(1999)
    assert window.count == 5000
    window.expire(2000, 4000)
    assert window.count == 1000
    window.expire(2000)
    assert (window.count, window.evictions) == (0, 0)
    assert window.memory_size < full


def test_a_smaller_window_forgets_the_oldest_keys() -> None:
    window = Window(MINUTE)
    for number in range(5):
        window.note(b"%d" % number, 1000, 0, number, number)
    window.resize(DeduplicationWindow(60, 2))
    assert [window.look(b"%d" % number, 1000) is not None for number in range(5)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert window.evictions == 3


# Random sends, copies, restarts, crashes and time


def log_keys(rig: StoreRig) -> Iterator[tuple[int, str, int, int, int]]:
    """(physical offset, key, store time, queue id, queue offset) of all that readers see."""
    for queue_id in range(QUEUES):
        offset, end = rig.store.min_offset("T", queue_id), rig.store.max_offset("T", queue_id)
        while offset < end:
            views = rig.store.get_message("T", queue_id, offset, 32).views
            for message in decode_messages(b"".join(views)):
                yield (
                    message.physical_offset,
                    message.unique_key or "",
                    message.store_timestamp,
                    queue_id,
                    message.queue_offset,
                )
                offset = message.queue_offset + 1


class Life:
    """A store with a window that is used, stopped, killed and cut off from its power."""

    def __init__(self, rng: Random, road: str, flush: str) -> None:
        self.rng = rng
        self.road, self.flush = road, flush
        self.size = DeduplicationWindow(rng.choice((2, 20)), rng.choice((4, 50)))
        self.now_ms = ManualClock().now_ms()
        self.disk = CrashDisk()
        self.acked: dict[str, PutMessageResult] = {}  # of this life and those before
        self.rig = self.open()

    def open(self) -> StoreRig:
        rig = rig_on(self.road, self.flush, self.disk)
        rig.clock.step_wall((self.now_ms - rig.clock.now_ms()) / 1000)
        rig.start()
        rebuilt(rig, self.size)
        return rig

    def send(self) -> None:
        rig, key = self.rig, f"k{self.rng.randrange(30)}"
        body = self.rng.randbytes(self.rng.choice((0, 100, 5000)))
        told = put(rig, key, self.rng.randrange(QUEUES), body)
        if self.rng.random() < 0.7:
            rig.workers.run_all()
        if told:
            assert told[0].status is OK
            self.acked[key] = told[0]

    def step(self) -> None:
        self.send()
        if self.rng.random() < 0.2:
            self.rig.clock.advance(self.rng.choice((0.01, 0.5, 1.9)))

    def end(self) -> None:
        """Stop, or be killed, or lose power; then begin again and check what is known."""
        rig, rng = self.rig, self.rng
        self.now_ms = rig.clock.now_ms() + rng.choice((0, 1000))
        how = rng.choice(("stop", "crash", "crash"))
        if how == "stop":
            rig.stop()
            self.disk = rig.files
        else:
            states = rig.files.crash_states(rng, 6)
            self.disk = rig.files.crash(rng.choice(list(states)), rng)
        self.rig = self.open()
        self.check(all_acked=how == "stop" or self.flush == "SYNC_FLUSH")

    def check(self, *, all_acked: bool) -> None:
        rig, now_ms, window_ms = self.rig, self.rig.clock.now_ms(), self.size.seconds * 1000
        window = rig.store.deduplication.windows["T"]
        stored = sorted(log_keys(rig))
        youngest: dict[str, tuple[int, int, int, int]] = {}
        for physical_offset, key, at, queue_id, offset in stored:
            before = youngest.pop(key, None)
            if before is not None:  # within the window only what had to leave it comes again
                between = [each for each in stored if before[2] < each[0] < physical_offset]
                assert at - before[3] >= window_ms or len(between) + 1 >= self.size.keys
            youngest[key] = (queue_id, offset, physical_offset, at)
        expected = {
            key: place
            for key, place in list(youngest.items())[-self.size.keys :]
            if now_ms - place[3] < window_ms
        }
        found = {}
        for key in {key for _, key, *_ in stored}:
            digest = digest_of(b"UNIQ_KEY\x01" + key.encode())
            assert digest is not None
            known = window.look(digest, now_ms)
            if known is not None:
                found[key] = tuple(known)
        assert found == expected
        if all_acked:
            places = {physical_offset: key for physical_offset, key, *_ in stored}
            for key, result in self.acked.items():
                assert places.get(result.physical_offset) == key
        else:
            self.acked.clear()


@pytest.mark.parametrize("seed", seeds(12))
def test_whatever_happens_a_window_knows_what_the_log_has(seed: int) -> None:
    rng = Random(seed)
    life = Life(
        rng,
        rng.choice(("pwrite", "pwrite", "mapped", "pool")),
        rng.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
    )
    for _ in range(5):
        for _ in range(rng.randrange(5, 60)):
            life.step()
        life.end()


@pytest.mark.parametrize("seed", range(4))
def test_a_start_knows_what_the_broker_knew(seed: int) -> None:
    """Also the places, the order, and how many: what is forgotten next is the same."""
    rng = Random(seed)
    size = DeduplicationWindow(5, 40)
    rig = StoreRig().start()
    wanted(rig, size)
    for _ in range(400):
        put(rig, f"k{rng.randrange(90)}", rng.randrange(QUEUES))
        rig.clock.advance(rng.choice((0.001, 0.05)))
    live = rig.store.deduplication.windows["T"]
    live.expire(rig.clock.now_ms())
    assert live.evictions > 0
    again = rebuilt(rig, size)
    assert list(again._digests) == list(live._digests)
    assert again._places == live._places


def test_store_times_that_go_back_forget_no_key_too_early() -> None:
    """Another broker's clock was set back between the two messages of its log."""
    rig = StoreRig().start()
    put(rig, "first")
    rig.clock.step_wall(-50)
    rig.store.commit_log.store_timestamp = 0
    put(rig, "second")
    rig.clock.step_wall(50)
    window, now_ms = rebuilt(rig), rig.clock.now_ms()
    second = digest_of(b"UNIQ_KEY\x01second")
    first = digest_of(b"UNIQ_KEY\x01first")
    assert first is not None and second is not None
    if window.look(second, now_ms + 15_000) is None:
        window.note(second, now_ms + 15_000, 0, 2, 500)
    assert window.look(first, now_ms + 16_000) is not None


def test_a_clock_that_was_ahead_keeps_no_key_longer_in_the_next_life() -> None:
    rig = StoreRig().start()
    rig.clock.step_wall(86_400)
    put(rig, "ahead")
    rig.clock.step_wall(-86_400)
    put(rig, "after")
    window, now_ms = rebuilt(rig, DeduplicationWindow(60)), rig.clock.now_ms()
    after = digest_of(b"UNIQ_KEY\x01after")
    assert after is not None
    assert window.look(after, now_ms + 59_000) is not None
    assert window.look(after, now_ms + 61_000) is None
