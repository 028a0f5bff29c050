"""A machine with a store on it, driven by hand: its disk, its clock, its threads, its power switch.

    machine = StoreMachine(Shape.draw(rng), rng)
    machine.boot()
    machine.run(30)                      # random sends, worker steps, flushes, stops, restarts
    disk, promise = machine.crash_point  # a moment of the run, chosen evenly over all disk steps

Everything that happens follows from the random source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.message_store import MessageStore, StoreState
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus
from tests.support.crash_disk import CrashDisk
from tests.support.invariants import Promise, Queue, Sent, check_starts
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.store_shape import Shape
from tests.support.workers import manual_store_workers

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
TOPICS = ("orders", "payments", "%RETRY%audit")
TAGS = ("", "red", "green", "a-longer-tag")
BODY_SIZES = (0, 1, 30, 200, 700, 2500, 5000)
EMPTY_PERCENT, FULL_PERCENT = 10, 88  # used of the disk; between deleting and refusing
AGE_MS = 80 * 3_600_000  # what is older than `fileReservedTime`


class CrashPoint(NamedTuple):
    """A machine that stands still, and what it had promised by then."""

    disk: CrashDisk
    promise: Promise  # of a power cut
    kill_count: int  # messages that the death of the process alone must leave
    now_ms: int


class StoreMachine:
    """A store and everything around it. `log` is what was handed to it, in order."""

    def __init__(
        self,
        shape: Shape,
        rng: Random,
        disk: CrashDisk | None = None,
        log: list[Sent] | None = None,
        start_ms: int = START_MS,
    ) -> None:
        self.shape = shape
        self.rng = rng
        self.disk = disk or CrashDisk(shape.names)
        self.log = log or []
        self.power: Counter[str] = Counter()
        self.crash_point: CrashPoint | None = None
        self._kept_count = len(self.log)  # below it a power cut may take nothing
        self._acked_count = len(self.log)  # below it the death of the process may take nothing
        self._number = self.log[-1].number + 1 if self.log else 0
        self._topics: list[str] = []
        self._topics_acked: frozenset[str] = frozenset()
        self._steps = 0
        self._booted = False
        self._start_ms = start_ms

    # Power

    def boot(self, *, watch: bool = True) -> None:
        """Load and start a store from the disk as it is.

        Args:
            watch: choose the crash point among the disk steps from here on.
        """
        self.clock = ManualClock(self._start_ms)
        self.workers = manual_store_workers()
        self.store = MessageStore(
            self.shape.config(self.disk.root), self.disk, self.clock, self.workers.workers
        )
        self.tables = TableWriter(self.disk, self.workers.tables)
        self.disk.now_ms = self.clock.now_ms
        self.disk.used_percent = EMPTY_PERCENT
        self.disk.before_step = self._before_step if watch else None
        self._booted = False
        report = self.store.load()
        self.store.start()
        self._booted = True
        self.power["recoveries" if not report.clean else "clean starts"] += 1
        self.power["torn tails"] += report.truncated_bytes > 0
        self.power["units rebuilt"] += report.rebuilt
        self.power["shortened walks"] += (
            not report.clean and report.end_offset > 0 and (report.records < len(self.log))
        )

    def restart(self) -> None:
        """Stop cleanly and start again; nothing may be lost, acknowledged or not."""
        self.store.stop_writing()
        for worker in self.workers.all():
            worker.stop()
            while worker.deliver():
                pass
        self.store.close()
        aborted = self.disk.exists(self.store.paths.abort)
        assert aborted == (self.store.failure is not None), "`abort` tells of an unclean stop"
        if aborted:
            return
        self._kept_count = self._acked_count = len(self.log)
        self._start_ms = self.clock.now_ms()
        if self.shape.cleaning:
            self._start_ms += self.rng.choice((0, AGE_MS))
        self.boot()

    def _before_step(self, _op: str, _path: Path) -> None:
        """Take this moment as the crash point, each step of the run being equally likely."""
        self._steps += 1
        if self.rng.random() * self._steps < 1:
            self.crash_point = CrashPoint(
                self.disk.snapshot(), self.promise(), self._kill_count(), self.clock.now_ms()
            )

    def _kill_count(self) -> int:
        """Messages that the death of the process may not take: all that were acknowledged; with
        the pool, those that readers could see, and those that waited for the disk."""
        if self.shape.road != "pool" or not self._booted:
            return self._acked_count
        shown = sum(queue.max_offset for queue in self.store.queues.queues.values())
        return max(self._kept_count, min(self._acked_count, shown))

    def promise(self) -> Promise:
        """What the store owes after a power cut at this moment."""
        shown: dict[Queue, int] = {}
        if self.shape.sync and self._booted:
            shown = {key: queue.max_offset for key, queue in self.store.queues.queues.items()}
        acked = {sent.number: sent.acked_at for sent in self.log if sent.acked_at}
        begin = self.store.commit_log.min_offset if self._booted else None
        return Promise(list(self.log), self._kept_count, acked, shown, self._topics_acked, begin)

    # What happens to it

    def run(self, count: int) -> None:
        """Do `count` random things."""
        choices: list[tuple[int, Callable[[], object]]] = [
            (6, self.send_batch),
            (5, self.send_one),
            (3, lambda: self.workers.flush.step()),
            (2, lambda: self.workers.flush.run_job()),
            (2, lambda: self.workers.flush.deliver()),
            (2, lambda: self.workers.prepare.step()),
            (2, lambda: self.workers.commit.step()),
            (1, lambda: self.workers.commit.run_job()),
            (1, lambda: self.workers.commit.deliver()),
            (2, lambda: self.workers.index.step()),
            (1, lambda: self.workers.index.run_job()),
            (3, lambda: self.workers.queues.step()),
            (1, lambda: self.workers.queues.run_job()),
            (2, lambda: self.workers.tables.step()),
            (1, self.create_topic),
            (3, lambda: self.clock.advance(self.rng.choice((0.001, 0.1, 0.7, 2.0)))),
            (1, lambda: self.clock.step_wall(self.rng.choice((-3600, -1, 5, 86_400)))),
            (2, self.checkpoint),
            (3, self.settle),
            (1, self.restart),
            (3 if self.shape.cleaning else 0, self.clean),
        ]
        weights = [weight for weight, _ in choices]
        for action in self.rng.choices([action for _, action in choices], weights, k=count):
            if self.store.state is StoreState.FAILED:
                self.workers.run_all()  # what is under way may still end, to no avail
                return
            try:
                action()
            except OSError:  # the disk that is to fail did so while a store was started
                assert self.disk.faults.raised
                return

    def send_one(self) -> None:
        """One message by `put_message`, some without waiting for the disk."""
        self._send(self._new_message(), wait=self.rng.random() < 0.8)

    def send(self, topic: str, queue_id: int, count: int, body: bytes = b"body") -> None:
        """Equal messages, one after the other."""
        for _ in range(count):
            self._send(Sent(self._number, topic, queue_id, "red", body), wait=True)
            self._number += 1

    def _send(self, sent: Sent, *, wait: bool) -> None:
        index = len(self.log)
        self.log.append(sent)
        self.store.put_message(
            self._inner(sent, wait=wait), lambda result: self._put(sent, index, result, wait=wait)
        )

    def send_batch(self) -> None:
        """Several messages as one turn of the loop brings them: one write, one answer.

        Between them a worker may end what it had to do, and the loop hear of it.
        """
        store = self.store
        entries: list[tuple[Sent, int, int]] = []

        def done(status: PutMessageStatus) -> None:
            if status is PutMessageStatus.PUT_OK:
                for sent, queue_offset, physical_offset in entries:
                    sent.acked_at = queue_offset, physical_offset
                self._acked(end, durable=self.shape.sync)

        def commit() -> None:
            nonlocal end
            end = len(self.log)
            is_open.clear()
            if entries:
                store.commit(done)

        end, is_open = 0, [True]
        batch = store.begin(commit)
        for _ in range(self.rng.randrange(1, 9)):
            if self.rng.random() < 0.2:
                workers = self.workers
                self.rng.choice((workers.flush, workers.commit, workers.queues)).step()
            if not is_open:
                return  # the store has failed meanwhile
            sent = self._new_message()
            inner = self._inner(sent, wait=True)
            self.log.append(sent)
            queue = store.queues.open(sent.topic, sent.queue_id)
            try:
                physical_offset = batch.add(
                    queue, inner.body, inner.properties, inner.born_timestamp, HOST, HOST,
                    inner.tags_code,
                )  # fmt: skip
            except StoreFullError:
                self._refused()
                break
            entries.append((sent, queue.next_offset - 1, physical_offset))
        store.writer.commit_open()

    def _refused(self) -> None:
        """The last message was not taken: it needs a log file that is not ready."""
        self.log.pop()
        self.power["rolls refused"] += 1

    def settle(self) -> None:
        """Let the flush interval pass: what was acknowledged before it is durable."""
        count = self._acked_count
        if self.shape.road == "pool":
            self.clock.advance(0.5)
            self.workers.commit.run_all()
        self.clock.advance(0.5)
        self.workers.flush.run_all()
        if not self.shape.sync and self.store.failure is None:
            self._kept_count = max(self._kept_count, count)

    def checkpoint(self) -> None:
        """Let the queues be synced and the checkpoint be written."""
        self.clock.advance(60.0)
        choice = self.rng.random()
        if choice < 0.5:
            self.workers.run_all()
            self.settle()
        elif choice < 0.8:  # the log's flush is slow
            self.workers.queues.run_all()

    def clean(self) -> None:
        """Let the oldest log files go: the disk is too full, or they are too old."""
        removed = self.store.stats.log_files_deleted
        for _ in range(6):
            self.send_batch()
            self.workers.flush.run_all()
        self.disk.used_percent = self.rng.choice((EMPTY_PERCENT, FULL_PERCENT))
        for _ in range(self.rng.choice((1, 2))):  # log and units are synced, the checkpoint says so
            self.workers.run_all()
            self.clock.advance(61.0)
        for _ in range(self.rng.choice((1, 3, 10, 40))):
            self.workers.tables.step()
            self.workers.queues.step()
            self.clock.advance(0.1)
        self.disk.used_percent = EMPTY_PERCENT
        if self.rng.random() < 0.5:
            for _ in range(40):
                self.workers.run_all()
                self.clock.advance(0.1)
            check_starts(self.store)
        self.power["log files removed"] += self.store.stats.log_files_deleted - removed

    def catch_up(self) -> None:
        """Let the key index have everything that is in the log."""
        for _ in range(100):
            self.clock.advance(0.05)
            self.workers.index.run_all()
            if self.workers.index.idle and not self.store.index.behind_bytes:
                return
        raise AssertionError(f"the index stays {self.store.index.behind_bytes} bytes behind")

    def create_topic(self) -> None:
        """Change a table that is durable when acknowledged."""
        self._topics.append(f"topic-{len(self._topics)}")
        names = list(self._topics)

        def done(error: BaseException | None) -> None:
            if error is None:
                self._topics_acked |= frozenset(names)
                self.power["tables acked"] += 1

        path = self.store.paths.config / "topics.json"
        self.tables.write(path, lambda: json.dumps(names).encode(), done)

    def recovered(self, promise: Promise, count: int) -> None:
        """Take over what a crash left: the first `count` messages, now durable for good."""
        self.log = [replace_ack(sent) for sent in promise.log[:count]]
        self._kept_count = self._acked_count = count
        self._number = 1 + max((sent.number for sent in promise.log), default=-1)
        self._topics = sorted(promise.topics)
        self._topics_acked = promise.topics
        self._steps = 0
        self.crash_point = None
        self.disk.before_step = self._before_step

    def _put(self, sent: Sent, index: int, result: PutMessageResult, *, wait: bool) -> None:
        if result.status is PutMessageStatus.PUT_OK:
            sent.acked_at = result.queue_offset, result.physical_offset
            self._acked(index + 1, durable=self.shape.sync and wait)
        elif result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE and not self.store.failure:
            assert index == len(self.log) - 1
            self._refused()

    def _acked(self, end: int, *, durable: bool) -> None:
        assert self.store.failure is None, "an acknowledgement after the disk has failed"
        self.power["acks"] += 1
        self._acked_count = max(self._acked_count, end)
        if durable:
            self._kept_count = max(self._kept_count, end)

    def _new_message(self) -> Sent:
        rng = self.rng
        size = rng.choice(BODY_SIZES)
        sent = Sent(
            self._number,
            rng.choice(TOPICS),
            rng.randrange(self.shape.queue_count),
            rng.choice(TAGS),
            rng.randbytes(size) if rng.random() < 0.7 else bytes(size),
        )
        self._number += 1
        return sent

    def _inner(self, sent: Sent, *, wait: bool) -> MessageInner:
        properties = f"N\x01{sent.number}\x02"
        if self.shape.keyed and sent.number % 5:
            properties += f"KEYS\x01k{sent.number % 7} all\x02UNIQ_KEY\x01u{sent.number}\x02"
        if sent.tags:
            properties += f"TAGS\x01{sent.tags}\x02"
        return MessageInner(
            topic=sent.topic,
            queue_id=sent.queue_id,
            body=sent.body,
            properties=properties.encode(),
            born_host=HOST,
            store_host=HOST,
            born_timestamp=self.clock.now_ms(),
            tags_code=tags_code(sent.tags) if sent.tags else 0,
            wait_store_ok=wait,
        )


def replace_ack(sent: Sent) -> Sent:
    """A copy that later lives of the machine may change."""
    return replace(sent)
