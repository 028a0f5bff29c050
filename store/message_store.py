"""The message store: one face over log, queues, index, flushing, cleaning, and its life cycle.

Threads and locks. All state belongs to the event-loop thread; the loop is the put lock. Workers run
blocking jobs and hand results back to the loop:

    flush     datasync of the log; under SYNC_FLUSH the pool's commits too
    commit    batches that left the loop because the disk is slow; the pool's, under ASYNC_FLUSH
    prepare   the next log file, warm-up
    queues    queue files, syncs of the key index, checkpoint
    index     building and searching the key index
    tables    JSON tables, measuring the disk, removal of expired files
    timer     runs of timed messages
    reads     reads of what is old

On the loop thread these calls touch the disk: the `pwrite` of a commit while the disk is quick, and
the reading of queue units that are no longer in memory.

    closed -> loading -> running -> stopping -> closed
                            |
                          failed      a sync or write failed: no more writes, reads go on

What `fail` means: the kernel may forget that pages were never written and report success the next
time, so nothing is retried. Writes end, waiting sends are refused, the checkpoint stays as it is
and `abort` stays, so that the next start recovers in full.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files, is_no_space
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.store.checkpoint import UNKNOWN, IndexPoint, Marks, Point, PointTracker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.folder import AbortFile, StoreLock, StorePaths, check_profile, save_profile
from skylarkmq.store.index.service import IndexService
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.log.group_commit import Committed
from skylarkmq.store.log.write_road import open_log
from skylarkmq.store.message_writer import ArrivalListener, Busy, MessageWriter, PutDone
from skylarkmq.store.parts import queue_table, topic_removal
from skylarkmq.store.progress import Progress, ProgressLog, StartEnded
from skylarkmq.store.read.cold_reads import ColdReads
from skylarkmq.store.read.message_reader import MessageReader
from skylarkmq.store.read.read_face import ReadFace
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.timer.rules import TimerRules
from skylarkmq.store.upkeep.cleaning import CleanService
from skylarkmq.store.upkeep.recovery import Recovery, RecoveryReport

log = logging.getLogger(__name__)


# Bytes of messages after which the next checkpoint is due, whatever the clock says.
CHECKPOINT_SIZE = 256 << 20


class StoreState(Enum):
    """Where the store is in its life."""

    CLOSED = "closed"
    LOADING = "loading"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"


class MessageStore(ReadFace):
    """A store in one folder. Loop thread; `load` before it serves, `close` after."""

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        workers: StoreWorkers,
        *,
        stats: StoreStats | None = None,
        memory_size: int = 1 << 33,
    ) -> None:
        self.config = config
        self.state = StoreState.CLOSED
        self.stats = stats or StoreStats()
        self.paths = StorePaths(config.store_path_root_dir, config.store_path_commit_log)
        self.delay_levels = DelayLevels(config.message_delay_level)
        self.timer_rules = TimerRules(config, clock.now_ms)
        self.failure: BaseException | None = None
        self.failure_listeners: list[Callable[[BaseException], None]] = []
        self.recovery: RecoveryReport | None = None
        self._files = files
        self._clock = clock
        self._memory_size = memory_size
        self._lock = StoreLock(files, self.paths)
        self._tables = workers.tables
        self._lock_checked = True  # none of the looks at the lock is under way
        self._abort = AbortFile(files, self.paths)
        self.commit_log = open_log(
            config, files, workers.prepare, clock, self.stats, self.paths, self.delay_levels
        )
        self.queues = queue_table(config, files, workers, self.paths, self.fail)
        self._points = PointTracker()
        self.removal = topic_removal(
            files, workers, self.paths, self.commit_log, self.queues, self._points, self.fail
        )
        reader = MessageReader(self.commit_log, self.queues, config, memory_size, self.stats)
        super().__init__(
            self.commit_log,
            self.queues,
            reader,
            ColdReads(reader, self.commit_log, self.queues, files, workers.reads, self.stats),
            durable_only=config.flush_disk_type == "SYNC_FLUSH",
        )
        self.writer = MessageWriter(
            config, clock, workers, self.stats, self.commit_log, self.queues, self.fail
        )
        self.index = IndexService(
            files, workers, clock, self.stats, self.paths, config, self.commit_log, self.fail
        )
        self.cleaning = self._cleaning(workers)
        if config.message_index_enable:
            self.writer.on_published = self.index.take
        checkpoint_s = config.flush_consume_queue_thorough_interval / 1000
        self._checkpoint_offset = 0
        self._timers = [
            IntervalTimer(clock, config.flush_interval_consume_queue / 1000, self._tick),
            IntervalTimer(clock, checkpoint_s, self._checkpoint),
        ]

    def _cleaning(self, workers: StoreWorkers) -> CleanService:
        return CleanService(
            self._files,
            workers.tables,
            self._clock,
            self.stats,
            self.paths,
            self.config,
            self.commit_log,
            self.queues,
            self.index.expire,
            self.fail,
        )

    # Life cycle

    def load(self, progress: Progress | None = None) -> RecoveryReport:
        """Take the folder, recover, and be ready to start. Blocks.

        Args:
            progress: told how far a long recovery is.

        Raises:
            StoreError: the folder is in use, was written with other sizes, or is damaged in a way
                that must not be repaired silently. Nothing was changed by the refusal.
            OSError: the disk failed.
        """
        self.state = StoreState.LOADING
        try:
            self._files.make_folder(self.paths.root)
            self._files.make_folder(self.paths.config)
            self._files.make_folder(self.paths.commit_log)
            self._lock.acquire()
            sizes = {
                "mappedFileSizeCommitLog": self.config.mapped_file_size_commit_log,
                "mappedFileSizeConsumeQueue": self.config.mapped_file_size_consume_queue,
                "maxHashSlotNum": self.config.max_hash_slot_num,
                "maxIndexNum": self.config.max_index_num,
            }
            check_profile(self._files, self.paths.profile, sizes)
            if self.commit_log.pool is not None:
                self.commit_log.pool.open(self._memory_size)
            report = self._recover(ProgressLog(self._clock, progress))
            save_profile(self._files, self.paths.profile, sizes)
            return report
        except BaseException:
            self.state = StoreState.CLOSED
            self.commit_log.close()
            self.queues.close()
            self.index.close()
            self._lock.release()
            raise

    def _recover(self, progress: Progress) -> RecoveryReport:
        unclean = self._abort.exists()
        self.index.check_files(unclean=unclean)
        self.removal.load(self.queues.checkpoint)
        marks = self.queues.checkpoint.load()
        self.commit_log.mapped_files.load()
        self.queues.load(unclean=unclean, progress=progress)
        self._abort.create()
        recovery = Recovery(
            self.commit_log,
            self.queues,
            marks,
            self.delay_levels,
            check_crc=self.config.check_crc_on_recover,
            progress=progress,
            removed=self.removal.topics.ends(),
            broken_folder=self.paths.own,
        )
        started = self._clock.monotonic()
        try:
            report = self.recovery = recovery.run(unclean=unclean)
        except (CorruptFileError, StartEnded):
            if not unclean and not recovery.has_changed:
                self._abort.remove()  # the store is as its last clean stop left it
            raise
        self.removal.recovered(report.end_offset)
        self._reader.verify_below = report.end_offset
        duration_s = self._clock.monotonic() - started
        self.stats.recovery_mode = "clean" if report.clean else "abnormal"
        self.stats.recovery_duration_s = duration_s
        self.stats.recovery_truncated_bytes["commitlog"] = report.truncated_bytes
        log.info("%s (%.2f s)", report.text(self.commit_log.min_offset), duration_s)
        self.writer.recovered(report.end_offset, report.store_timestamp)
        self._checkpoint_offset = report.end_offset
        self.index.load(marks, unclean=unclean)
        try:
            # After a crash the units are synced in the background, as those of new messages: the
            # first ones of ten thousand queues bring as many files and folders to the disk.
            self.queues.write_now(self._marks() if report.clean else None)
        except OSError as error:
            if not is_no_space(error):
                raise
            log.warning("no room for consume queues, writes are refused until there is: %s", error)
            self.queues.disk_full = True
            if report.keeps_queues:
                self.queues.covered = marks  # so that cleaning can make room
        return report

    def start(self) -> None:
        """Take writes, and start the timed work."""
        try:
            self.commit_log.open_first()
        except StoreFullError as error:
            log.warning("starting without room for messages: %s", error)
        self.state = StoreState.RUNNING
        self.writer.start()
        self.index.start()
        self.cleaning.start()
        for timer in self._timers:
            timer.start()
        if self.recovery is not None and not self.recovery.clean:
            self._checkpoint()

    def stop_writing(self) -> None:
        """Refuse further writes; `close` makes durable what is written."""
        if self.state in (StoreState.LOADING, StoreState.RUNNING):
            self.state = StoreState.STOPPING
        self.writer.stop()
        self.queues.end()
        self.index.end()
        self.cleaning.stop()
        for timer in self._timers:
            timer.stop()

    def close(self) -> None:
        """Make everything durable and take the `abort` mark away. Blocks.

        Call after `stop_writing`, when the workers have ended and their results were delivered. A
        store that failed keeps its mark and is only let go.
        """
        if self.state is StoreState.STOPPING:
            try:
                self._close_clean()
            except OSError as error:
                self.fail(error)
        self.commit_log.close()
        self.queues.close()
        self.index.close()
        self._lock.release()
        if self.state is not StoreState.FAILED:
            self.state = StoreState.CLOSED

    def _close_clean(self) -> None:
        self.writer.close_clean()
        self.index.close_clean()
        self.queues.write_now(self._marks())
        self._abort.remove()

    def fail(self, error: BaseException) -> None:
        """The disk failed: end all writing for good."""
        if self.failure is not None:
            return
        self.failure = error
        self.state = StoreState.FAILED
        self.writer.fail(error)
        self.queues.end()
        self.index.end()
        self.cleaning.stop()
        for timer in self._timers:
            timer.stop()
        log.critical(
            "the store has failed and takes no more writes (flushed up to offset %d of %d): %s",
            self.commit_log.flushed_offset,
            self.commit_log.wrote_offset,
            error,
        )
        self.writer.refuse_waiting()
        for listener in self.failure_listeners:
            listener(error)

    def _marks(self) -> Marks:
        """What the checkpoint may say once all published units are on the disk."""
        flushed, index = self.writer.flushed_timestamp, self.index
        self._note_point()
        point = self._points.newest(self.commit_log.flushed_offset)
        marks = Marks(flushed, flushed, index.full_timestamp, UNKNOWN, index.point)
        if point is None:
            return marks
        offset, queue_count, unit_count = point
        return marks._replace(
            commit_log_offset=offset, queue_count=queue_count, unit_count=unit_count
        )

    def _note_point(self) -> None:
        self._points.note(Point(self.writer.published_offset, *self.queues.totals()))

    def _tick(self) -> None:
        """Write units, and checkpoint sooner when a recovery would have much to read."""
        self._note_point()
        self._keep_lock()
        self.queues.tick()
        if self.writer.published_offset - self._checkpoint_offset >= CHECKPOINT_SIZE:
            self._checkpoint()

    def _keep_lock(self) -> None:
        """Look after the owner's lock, away from the loop."""
        if not self._lock_checked:
            return

        def done(_: None, error: BaseException | None) -> None:
            self._lock_checked = True
            if error is not None:
                self.fail(error)

        self._lock_checked = False
        self._tables.submit(self._lock.keep, done)

    def _checkpoint(self) -> None:
        self._checkpoint_offset = self.writer.published_offset
        self.index.sync(self._index_synced)

    def _index_synced(self, _: IndexPoint | None, error: BaseException | None) -> None:
        if error is None:
            self.queues.sync(self._marks())

    def sync(self, done: Callable[[], object], *, at_once: bool = True) -> None:
        """Call `done` when all messages so far are on the disk; see `MessageWriter.sync`."""
        self.writer.sync(done, at_once=at_once)

    # Writing

    def refusal(self) -> str | None:
        """Why messages are not taken now, for the remark of code 14; None when they are."""
        if self.state is StoreState.RUNNING:
            why = self.cleaning.refusal()
            if why is not None:
                return why
            if self.queues.disk_full:
                return "the disk is full: consume queues cannot grow; free some space"
            if self.index.disk_full:
                return "the disk is full: the key index cannot grow; free some space"
            return None
        if self.state is StoreState.FAILED:
            return f"the store has failed and needs a restart: {self.failure}"
        return "the broker is starting or shutting down"

    @property
    def is_busy(self) -> bool:
        """Whether producers must wait because the disk is behind."""
        return self.writer.busy.is_busy

    def why_busy(self) -> Busy | None:
        """Why producers must wait; None when they need not."""
        return self.writer.busy.why()

    def begin(self) -> AppendBatch:
        """Start the batch of one read: `add` to it, then `commit`, without an await between."""
        return self.writer.begin()

    def commit(self, done: Committed | None, written: Committed | None = None) -> bool:
        """Store the batch; see `MessageWriter.commit`."""
        return self.writer.commit(done, written)

    def put_message(self, inner: MessageInner, done: Callable[[PutMessageResult], None]) -> None:
        """Store one message. `done` may be called before this returns."""
        self.put_messages((inner,), lambda results: done(results[0]))

    def put_messages(self, inners: Sequence[MessageInner], done: PutDone) -> None:
        """Store messages as one batch; see `MessageWriter.put_messages`."""
        why = self.refusal()
        if why is None:
            self.writer.put_messages(inners, done)
        else:
            refused = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, why=why)
            done([refused] * len(inners))

    def settle(self, done: Committed) -> None:
        """Call `done` once every commit so far is answered."""
        self.writer.settle(done)

    def add_arrival_listener(self, listener: ArrivalListener) -> None:
        """Call `listener` once a publishing for each queue that got messages."""
        self.writer.arrival_listeners.append(listener)
