"""The gate of a replica: nothing is shown or answered that is not durable here and confirmed."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from skylarkmq.store.checkpoint import Checkpoint
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, confirm_alone, inner
from tests.store.test_message_store import bodies
from tests.store.test_write_roads import FLUSHES, ROADS, every_flush, every_road
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import seeds
from tests.support.crash_states import CrashState, Keep

OK = PutMessageStatus.PUT_OK
LATE = PutMessageStatus.UNCONFIRMED
LOST = PutMessageStatus.SERVICE_NOT_AVAILABLE
DISK_S, SLAVE_S = 5.0, 3.0
KEYED = b"KEYS\x01k"


class GateRig(StoreRig):
    """A store behind a gate. `answers` are (number of the put, status), as they came."""

    def __init__(
        self, road: str, flush: str = "ASYNC_FLUSH", disk: CrashDisk | None = None, **config: Any
    ) -> None:
        super().__init__(disk, flush_disk_type=flush, **ROADS[road], **config)
        self.answers: list[tuple[int, PutMessageStatus]] = []
        self.arrivals: list[int] = []
        self.count = 0
        self.store.load()
        self.store.gate()
        self.store.add_arrival_listener(lambda _, __, end: self.arrivals.append(end))
        self.store.start()

    def send(self, body: bytes = b"", **changes: Any) -> int:
        """Store one message; the end of the log after it."""
        number, self.count = self.count, self.count + 1
        self.store.put_message(
            inner(body=body or b"%d" % number, properties=KEYED, **changes),
            lambda result: self.answers.append((number, result.status)),
        )
        return self.end

    @property
    def end(self) -> int:
        return self.store.commit_log.wrote_offset

    def make_durable(self) -> None:
        """Let everything be done that is durable by the flush mode then."""
        for _ in range(2):
            self.clock.advance(0.25)
            self.workers.run_all()
        assert self.store.commit_log.stored_offset == self.end

    @property
    def shown(self) -> int:
        """How many messages readers see, by whatever way they look."""
        found = [int(body.split(b" ")[0]) for body in bodies(self, "T", 0)]
        assert self.store.max_offset("T", 0) == len(found)
        assert found == list(range(len(found)))
        return len(found)

    def taken(self) -> list[tuple[int, PutMessageStatus]]:
        answers, self.answers = self.answers, []
        return answers

    def read_at(self, physical_offset: int) -> tuple[bool, bool]:
        """Whether the two reads by physical offset find something."""
        found: list[bytes | None] = []
        self.store.read_records([physical_offset], lambda got, _: found.extend(got or ()))
        self.workers.reads.run_all()
        return self.store.look_message(physical_offset) is not None, found[0] is not None

    def keyed(self) -> int:
        """How many messages a search by key finds."""
        found: list[int] = []
        self.clock.advance(0.2)
        self.workers.run_all()
        self.store.index.query(
            "T", "k", 64, 0, 1 << 62, lambda result, error: found.append(len(result.offsets))
        )
        self.workers.run_all()
        return found[0]


# What is shown and answered


@every_road
@every_flush
def test_what_is_durable_is_shown_and_answered_in_the_turn_in_which_it_is_confirmed(
    road: str, flush: str
) -> None:
    rig = GateRig(road, flush)
    ends = [rig.send() for _ in range(3)]
    rig.make_durable()
    assert (rig.shown, rig.taken(), rig.arrivals, rig.keyed()) == (0, [], [], 0)
    assert rig.read_at(0) == (False, False)
    rig.store.confirm(ends[1])
    assert (rig.shown, rig.taken(), rig.arrivals) == (2, [(0, OK), (1, OK)], [2])
    assert rig.read_at(ends[0]) == (True, True)
    assert rig.read_at(ends[1]) == (False, False)
    assert rig.keyed() == 2
    rig.store.confirm(ends[2])
    assert (rig.shown, rig.taken(), rig.arrivals) == (3, [(2, OK)], [2, 3])
    assert rig.store.confirmed == ends[2]


@every_road
@every_flush
def test_what_is_confirmed_before_it_is_durable_here_waits_for_that(road: str, flush: str) -> None:
    rig = GateRig(road, flush)
    rig.store.confirm(1 << 40)  # the others may be far ahead
    for _ in range(3):
        rig.send()
    if flush == "SYNC_FLUSH" or road == "pool":
        assert (rig.shown, rig.taken()) == (0, [])
    rig.make_durable()
    assert (rig.shown, rig.taken()) == (3, [(0, OK), (1, OK), (2, OK)])


@pytest.mark.parametrize("road", [road for road in ROADS if road != "pool"])  # it has buffers
@every_flush
def test_batches_that_left_the_loop_wait_for_their_write_and_the_confirmation(
    road: str, flush: str
) -> None:
    rig = GateRig(road, flush)
    rig.store.writer._slow = True
    ends = [rig.send(wait_store_ok=number != 1) for number in range(3)]
    assert rig.store.commit_log.writer.later
    rig.store.confirm(ends[0])
    assert (rig.shown, rig.taken()) == (0, [])
    rig.make_durable()
    assert not rig.store.commit_log.writer.later
    assert (rig.shown, rig.taken()) == (1, [(0, OK), (1, OK)])
    rig.store.confirm(ends[2])
    assert (rig.shown, rig.taken()) == (3, [(2, OK)])


@every_road
@every_flush
def test_who_does_not_wait_is_answered_when_it_is_written_and_shown_when_confirmed(
    road: str, flush: str
) -> None:
    rig = GateRig(road, flush)
    end = rig.send(wait_store_ok=False)
    assert (rig.shown, rig.taken()) == (0, [(0, OK)])
    rig.make_durable()
    assert rig.shown == 0
    rig.store.confirm(end)
    assert (rig.shown, rig.taken(), rig.arrivals) == (1, [], [1])


def test_a_file_of_the_pool_without_a_buffer_is_written_at_once_and_waits_like_any_other() -> None:
    rig = GateRig("pool", transient_store_pool_size=2)
    while rig.end < 2 * LOG_SIZE:
        rig.workers.prepare.run_all()
        rig.send(b"%d " % rig.count + bytes(20_000))
    rig.make_durable()
    rig.send()
    assert rig.store.commit_log.stored_offset == rig.end, "no commit is needed"
    assert (rig.shown, rig.taken()) == (0, [])
    rig.store.confirm(rig.end)
    assert (rig.shown, rig.taken()) == (rig.count, [(number, OK) for number in range(rig.count)])


def test_a_confirmation_below_an_earlier_one_or_within_a_batch_says_nothing() -> None:
    rig = GateRig("pwrite")
    first, second = rig.send(), rig.send()
    rig.store.confirm(second - 1)
    assert rig.shown == 1
    rig.store.confirm(first)
    assert (rig.shown, rig.store.confirmed) == (1, second - 1)
    third = rig.send()
    rig.store.confirm(third)
    assert rig.shown == 3


def test_what_recovery_found_counts_as_shown() -> None:
    rig = GateRig("pwrite")
    rig.send()
    rig.store.confirm(rig.end)
    rig.stop()
    again = GateRig("pwrite", disk=rig.files)
    assert (again.shown, again.store.confirmed) == (1, 0)
    assert again.read_at(0) == (True, True)
    again.count = 1
    again.send()
    again.store.confirm(rig.end)
    assert again.shown == 1
    again.store.confirm(again.end)
    assert again.shown == 2


def test_without_a_gate_a_confirmation_means_nothing() -> None:
    rig = StoreRig().start()
    rig.store.confirm(0)
    assert rig.put() is not None
    assert (rig.store.max_offset("T", 0), rig.store.writer.gated) == (1, False)


@every_road
@every_flush
def test_who_confirms_by_what_is_stored_here_is_told_each_time_it_grows(
    road: str, flush: str
) -> None:
    """A replica that is alone in its set: the growth itself confirms."""
    rig = GateRig(road, flush)
    store, told = rig.store, list[int]()

    def grown(stored: int) -> None:
        assert stored == store.commit_log.stored_offset
        told.append(stored)
        store.writer.on_stored = grown
        store.confirm(stored)

    store.writer.on_stored = grown
    ends = [rig.send() for _ in range(3)]
    rig.make_durable()
    assert told[-1] == ends[-1]
    assert told == sorted(told)
    assert (rig.shown, rig.taken()) == (3, [(0, OK), (1, OK), (2, OK)])


def test_who_stores_when_told_is_told_after_those_before_it() -> None:
    """An arrival listener stores a message that is confirmed at once: the first is told first."""
    rig = GateRig("pwrite")
    confirm_alone(rig.store)
    rig.store.add_arrival_listener(lambda _, __, end: end < 3 and rig.send())
    rig.send()
    assert (rig.shown, rig.taken()) == (3, [(0, OK), (1, OK), (2, OK)])


@pytest.mark.parametrize("by", ["listener", "waiter"])
def test_what_is_stored_by_who_is_told_waits_for_the_confirmation_like_any_other(by: str) -> None:
    rig = GateRig("pwrite")
    if by == "listener":
        rig.store.add_arrival_listener(lambda _, __, end: end == 1 and rig.send())
        rig.send()
    else:
        rig.count = 1
        rig.store.put_message(inner(body=b"0"), lambda _: rig.answers.append((0, OK)) or rig.send())
    rig.store.confirm(rig.end)
    assert (rig.shown, rig.taken()) == (1, [(0, OK)])
    rig.clock.advance(SLAVE_S)
    assert rig.taken() == [(1, LATE)]


def test_so_does_what_is_stored_by_who_did_not_wait() -> None:
    rig = GateRig("pwrite")
    rig.store.writer._slow = True
    rig.store.put_message(inner(wait_store_ok=False), lambda _: rig.send() and None)
    assert rig.store.commit_log.writer.later
    rig.workers.run_all()
    assert (rig.count, rig.taken()) == (1, [])
    rig.clock.advance(SLAVE_S)
    assert rig.taken() == [(0, LATE)]


def test_after_the_disk_has_failed_nothing_is_shown_and_who_waits_is_refused() -> None:
    rig = GateRig("pwrite", "SYNC_FLUSH")
    rig.send()
    rig.make_durable()
    rig.files.fail("datasync", path="commitlog")
    rig.send()
    rig.workers.run_all()
    assert rig.store.state is StoreState.FAILED
    assert rig.taken() == [(0, LOST), (1, LOST)]
    rig.store.confirm(rig.end)
    assert rig.shown == 0


# Who waits too long


@every_road
@every_flush
def test_who_is_durable_and_not_confirmed_in_time_is_told_so_and_shown_later(
    road: str, flush: str
) -> None:
    rig = GateRig(road, flush)
    rig.send()
    rig.make_durable()
    rig.clock.advance(SLAVE_S - 0.6)
    second = rig.send()
    rig.make_durable()
    assert (rig.shown, rig.taken()) == (0, [(0, LATE)])
    rig.store.confirm(second)
    assert (rig.shown, rig.taken()) == (2, [(1, OK)])
    rig.clock.advance(10)
    assert rig.taken() == []


@every_road
def test_who_is_not_durable_in_time_is_told_of_the_disk(road: str) -> None:
    rig = GateRig(road, "SYNC_FLUSH")
    end = rig.send()
    rig.store.confirm(end)
    rig.clock.advance(DISK_S - 0.01)
    assert rig.taken() == []
    rig.clock.advance(0.02)
    assert rig.taken() == [(0, LATE)]
    rig.workers.run_all()
    assert (rig.shown, rig.taken()) == (1, [])


@pytest.mark.parametrize("confirms", [True, False])
def test_a_disk_that_is_later_than_the_slaves_lets_them_answer_first(confirms: bool) -> None:
    rig = GateRig("pwrite", "SYNC_FLUSH")
    end = rig.send()
    rig.clock.advance(SLAVE_S + 1)
    rig.workers.run_all()
    assert rig.taken() == []
    if confirms:
        rig.store.confirm(end)
    rig.clock.advance(0)
    assert rig.taken() == [(0, OK if confirms else LATE)]


# Giving up


@every_road
@every_flush
def test_who_waits_when_the_replica_leads_no_more_does_not_know(road: str, flush: str) -> None:
    rig = GateRig(road, flush)
    rig.send()
    rig.make_durable()
    end = rig.send()  # not durable yet, on some roads
    rig.store.give_up_waiting()
    assert (rig.shown, rig.taken()) == (0, [(0, LATE), (1, LATE)])
    settled: list[PutMessageStatus] = []
    rig.store.settle(settled.append)
    assert settled == [OK], "nobody waits anymore"
    rig.make_durable()
    rig.clock.advance(10)
    assert (rig.shown, rig.taken()) == (0, [])
    rig.store.confirm(end)
    assert (rig.shown, rig.taken()) == (2, [])


def test_giving_up_ends_the_batch_that_is_open() -> None:
    rig = GateRig("pwrite")
    answers: list[PutMessageStatus] = []
    batch = rig.store.begin(lambda: rig.store.commit(answers.append) and None)
    batch.add_message(rig.store.queues.open("T", 0), inner())
    rig.store.give_up_waiting()
    assert answers == [LATE]


@every_road
@every_flush
def test_settling_waits_for_the_answers_and_no_longer_than_they_take(road: str, flush: str) -> None:
    rig = GateRig(road, flush)
    settled: list[PutMessageStatus] = []
    rig.store.settle(settled.append)
    assert settled == [OK]
    rig.send(wait_store_ok=False)
    rig.store.settle(settled.append)
    assert settled == [OK, OK], "who does not wait is answered"
    end = rig.send()
    rig.make_durable()
    rig.store.settle(lambda status: (rig.answers.append((-1, status)), settled.append(status)))
    assert len(settled) == 2
    rig.store.confirm(end)
    assert rig.taken() == [(0, OK), (1, OK), (-1, OK)]
    rig.send()
    rig.store.settle(settled.append)
    for _ in range(12):
        rig.clock.advance(0.5)
        rig.workers.run_all()
    assert settled[3:] == [LATE]
    assert rig.taken() == [(2, LATE)]


# A follower


@every_road
@every_flush
def test_a_follower_confirms_what_is_durable_and_shows_what_is_confirmed(
    road: str, flush: str
) -> None:
    source = StoreRig().start()
    ends: list[int] = []
    for number in range(3):
        source.put(body=b"%d" % number)
        ends.append(source.store.commit_log.wrote_offset)
    rig = GateRig(road, flush, broker_role="SLAVE")
    told: list[PutMessageStatus] = []
    begin = 0
    for end in ends:
        part = bytes(source.store.commit_log.part(begin, end - begin))
        rig.store.take_records(begin, part, told.append)
        begin = end
    rig.make_durable()
    assert (told, rig.shown) == ([OK] * 3, 0)
    rig.store.confirm(ends[1])
    assert rig.shown == 2
    rig.store.confirm(ends[2])
    assert (rig.shown, told) == (3, [OK] * 3)


def test_a_follower_hears_that_its_disk_is_late_and_not_that_the_others_are() -> None:
    source = StoreRig().start()
    source.put(body=b"0")
    end = source.store.commit_log.wrote_offset
    rig = GateRig("pwrite", "SYNC_FLUSH", broker_role="SLAVE")
    told: list[PutMessageStatus] = []
    rig.store.take_records(0, bytes(source.store.commit_log.part(0, end)), told.append)
    rig.clock.advance(DISK_S)
    assert told == [LATE]
    rig.workers.run_all()
    rig.clock.advance(10)
    assert (told, rig.shown) == ([LATE], 0)


# The end of a run


@every_road
@every_flush
def test_a_clean_stop_with_parked_units_leaves_log_and_queues_that_agree(
    road: str, flush: str
) -> None:
    rig = GateRig(road, flush)
    for number in range(40):
        rig.send(b"%d" % number)
        if number == 20:
            rig.store.confirm(rig.end)
    rig.clock.advance(0.25)
    rig.workers.run_all()
    rig.send(b"40")
    rig.arrivals.clear()
    shown, answered = rig.shown, len(rig.answers)
    rig.stop()
    assert rig.arrivals == [], "nobody is told of what is not confirmed"
    assert {status for _, status in rig.answers[answered:]} == {LATE}
    assert shown == 21
    assert rig.store.state is StoreState.CLOSED
    again = GateRig(road, flush, rig.files)
    report = again.store.recovery
    assert report is not None
    assert (report.clean, report.rebuilt, again.shown) == (True, 0, 41)
    assert again.keyed() == 41


@every_road
@every_flush
def test_a_cut_after_such_a_stop_takes_the_units_with_the_records(road: str, flush: str) -> None:
    rig = GateRig(road, flush)
    ends = [rig.send() for _ in range(6)]
    rig.make_durable()
    rig.store.confirm(ends[3])
    rig.stop()
    left = rig.files.crash(CrashState(Keep.KILL), Random(0))  # as the next process finds it
    again = StoreRig(left, flush_disk_type=flush, **ROADS[road])
    again.store.load()
    again.store.gate()
    assert again.store.max_offset("T", 0) == 6
    again.store.cut_back(ends[3])
    again.store.start()
    assert bodies(again, "T", 0) == [b"0", b"1", b"2", b"3"]
    assert again.put(body=b"anew") is None
    for _ in range(2):
        again.clock.advance(0.25)
        again.workers.run_all()
    again.store.confirm(ends[3])
    assert again.store.max_offset("T", 0) == 4
    again.store.confirm(again.store.commit_log.wrote_offset)
    assert bodies(again, "T", 0) == [b"0", b"1", b"2", b"3", b"anew"]


@pytest.mark.parametrize("keeps_point", [True, False])
@every_road
@every_flush
def test_a_checkpoint_says_nothing_of_units_that_are_parked(
    road: str, flush: str, keeps_point: bool
) -> None:
    """A crash after it loses what was never written into a queue; recovery builds that again."""
    rig = GateRig(road, flush)
    for number in range(200):
        rig.send(b"%d" % number)
        rig.clock.advance(0.1)
        rig.workers.run_all()
        if number == 50:
            rig.store.confirm(rig.end)
    assert rig.shown == 51
    rig.clock.advance(61)
    rig.workers.run_all()
    paths = rig.store.paths
    marks = Checkpoint(rig.files, paths.checkpoint, paths.recovery_point).load()
    assert 0 < marks.commit_log_offset <= rig.store.confirmed
    assert (marks.queue_count, marks.unit_count) == (1, 51)
    assert marks.physic_timestamp > marks.logics_timestamp > 0
    if not keeps_point:
        rig.files.unlink(paths.recovery_point)
    after = rig.files.crash(CrashState(Keep.NONE, names=Keep.ALL), Random(1))
    again = GateRig(road, flush, after)
    report = again.store.recovery
    assert report is not None
    assert (report.clean, again.shown) == (False, 200)


# Everything at random, beside a model


class Model:
    """What the gate promises, in a few lines."""

    def __init__(self, rig: GateRig) -> None:
        self.rig = rig
        self.limit = 0
        self.sent: list[tuple[int, float, bool]] = []  # (end, when, its waiter needs the gate)
        self.open: dict[int, bool] = {}  # number -> its waiter needs the gate
        self.expected: list[tuple[int, PutMessageStatus]] = []

    def send(self, size: int, *, waits: bool) -> None:
        rig = self.rig
        number = rig.count
        rig.workers.prepare.run_all()
        end = rig.send(b"%d " % number + bytes(size), wait_store_ok=waits)
        self.sent.append((end, rig.clock.monotonic(), waits))
        if waits or rig.store.commit_log.writer.later:
            self.open[number] = waits
        else:
            self.expected.append((number, OK))
        self.go_on()

    def advance(self, seconds: float) -> None:
        """Time alone makes waiters late."""
        self.rig.clock.advance(seconds)
        now, stored = self.rig.clock.monotonic(), self.rig.store.commit_log.stored_offset
        for number in list(self.open):
            end, since, _ = self.sent[number]
            if now >= since + (SLAVE_S if end <= stored else DISK_S):
                self.answer(number, LATE)

    def confirm(self, offset: int) -> None:
        self.limit = max(self.limit, offset)
        self.rig.store.confirm(offset)
        self.go_on()

    def give_up(self) -> None:
        self.rig.store.give_up_waiting()
        for number in [number for number, waits in self.open.items() if waits]:
            self.answer(number, LATE)

    def go_on(self) -> None:
        log = self.rig.store.commit_log
        confirmed = min(log.stored_offset, self.limit)
        for number in list(self.open):
            limit = confirmed if self.open[number] else log.written_offset
            if self.sent[number][0] <= limit:
                self.answer(number, OK)

    def answer(self, number: int, status: PutMessageStatus) -> None:
        del self.open[number]
        self.expected.append((number, status))

    def check(self) -> None:
        rig = self.rig
        limit = min(rig.store.commit_log.stored_offset, self.limit)
        shown = sum(end <= limit for end, _, _ in self.sent)
        assert rig.shown == shown
        assert max(rig.arrivals, default=0) == shown
        answers, expected = rig.taken(), self.expected
        assert sorted(answers, key=lambda answer: answer[0]) == sorted(
            expected, key=lambda answer: answer[0]
        )
        waited = [number for number, _ in answers if self.sent[number][2]]
        assert waited == sorted(waited), "told in the order of the log"
        self.expected = []


@pytest.mark.parametrize(("road", "flush"), list(itertools.product(ROADS, FLUSHES)))
def test_random_runs_do_what_the_model_says(road: str, flush: str) -> None:
    for seed in seeds(12):
        rng = Random(seed)
        rig = GateRig(road, flush)
        model = Model(rig)
        try:
            for _ in range(150):
                match rng.randrange(12):
                    case 0 | 1 | 2 | 3:
                        size = rng.choice((0, 0, 3000, 20_000))
                        model.send(size, waits=rng.random() < 0.7)
                    case 4 | 5 | 6:
                        rng.choice((rig.workers.commit, rig.workers.flush)).step()
                        model.go_on()
                    case 7 | 8:
                        model.advance(rng.choice((0.1, 0.25, 1.0, 2.0)))
                    case 9:
                        model.confirm(rng.randrange(rig.end + 200))
                    case 10:
                        model.confirm(rng.choice(model.sent)[0] if model.sent else 0)
                    case _:
                        if rng.random() < 0.3:
                            rig.store.writer._slow = True
                        elif rng.random() < 0.3:
                            model.give_up()
                model.check()
            rig.stop()
            again = GateRig(road, flush, rig.files)
            assert again.shown == rig.count
        except BaseException:
            print(f"SKYLARKMQ_SEED={seed}")
            raise
