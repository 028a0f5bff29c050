"""The message store: what its users call, its parts put together, and its life cycle.

Its parts are open, for looking: the broker finds queues in `queues`, offsets and the batch of a
read in `commit_log`, keys in `index`. What changes the store is called here, because it may be
refused when the store stops or has failed. Calls that need no decision go straight to the part that
does the work: `begin`, `commit` and `get_message` are methods of log, writer and reader.

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

Two kinds of calls touch the disk on the loop thread: the `pwrite` of a commit while the disk is
quick, and the reading of queue units that are no longer in memory.

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
from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import Refusal, is_no_space, refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.table_file import Written
from skylarkmq.common.worker import StoreWorkers, run_job, start
from skylarkmq.store.checkpoint import PointTracker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.deduplication import Deduplication
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.folder import (
    AbortFile,
    StoreLock,
    StorePaths,
    check_profile,
    save_profile,
)
from skylarkmq.store.index.service import IndexService
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.message_writer import MessageWriter, PutDone
from skylarkmq.store.progress import Progress, ProgressLog, StartEnded
from skylarkmq.store.queue.queue_loader import QueueLoader
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.queue.topic_removal import TopicRemoval
from skylarkmq.store.read.cold_reads import ColdReads
from skylarkmq.store.read.message_reader import MessageReader
from skylarkmq.store.received import ReceivedLog
from skylarkmq.store.results import Committed, MessageInner, PutMessageResult, PutMessageStatus
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.timer.rules import TimerRules
from skylarkmq.store.upkeep.checkpoint_service import CheckpointService
from skylarkmq.store.upkeep.cleaning import CleanService
from skylarkmq.store.upkeep.cut_back import Cut, CutBack, lowered
from skylarkmq.store.upkeep.recovery import Recovery, RecoveryReport

log = logging.getLogger(__name__)


class StoreState(Enum):
    """Where the store is in its life."""

    CLOSED = "closed"
    LOADING = "loading"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"


class MessageStore:
    """A store in one folder. Loop thread; `load` before it serves, `close` after.

    Its size is one idea: the parts of a store, and by name what its users call of them.

    Attributes:
        failure_listeners: called when the store has failed, with the disk's error.
        follows: the log is another broker's, and nothing else is stored here. As the role says at
            first; a replica whose role changes while it runs says it here.
    """

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
        self.follows = config.is_slave
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
        self._lock_checked = True  # no check of the lock is under way
        self._abort = AbortFile(files, self.paths)
        env = self.environment = Environment(
            config, self.paths, files, clock, workers, self.stats, self.fail
        )
        commit_log = self.commit_log = CommitLog(env, self.delay_levels.due_time)
        queues = self.queues = QueueTable(env)
        points = PointTracker()
        self._cut = CutBack(files, self.paths, commit_log)
        self.removal = TopicRemoval(env, commit_log, queues, points)
        reader = self._reader = MessageReader(env, commit_log, queues, memory_size)
        self.deduplication = Deduplication(commit_log, reader)
        writer = self.writer = MessageWriter(env, commit_log, queues, self.deduplication)
        self.received = ReceivedLog(
            env, commit_log, queues, self.delay_levels, writer.store_received
        )
        cold = ColdReads(env, reader, commit_log, queues)
        self.index = IndexService(env, commit_log)
        self.cleaning = CleanService(env, commit_log, queues, self.index.expire)
        if config.message_index_enable:
            writer.on_published = self.index.take
        # Writing
        self.begin = writer.begin
        self.commit = writer.commit
        self.answer_known = writer.answer_known
        self.settle = writer.settle
        self.sync = writer.sync
        self.confirm = writer.confirm
        self.give_up_waiting = writer.give_up_waiting
        self.why_busy = writer.busy.why
        self.add_arrival_listener = writer.add_arrival_listener
        # Reading
        self.get_message = reader.get_message
        self.near_terms = reader.near_terms
        self.units_ahead = reader.units_ahead
        self.queue_units = reader.queue_units
        self.min_offset = reader.min_offset
        self.max_offset = reader.max_offset
        self.offset_by_time = reader.offset_by_time
        self.message_time = reader.message_time
        self.look_message = reader.look_message
        self.is_in_memory = reader.is_in_memory
        # Reading off the loop, of what is_cold or has_cold says that it may wait for the disk
        self.is_cold = cold.is_cold
        self.get_message_cold = cold.get_message
        self.offset_by_time_cold = cold.offset_by_time
        self.message_time_cold = cold.message_time
        self.read_records = cold.read_records
        self.read_part = cold.read_part
        self._checkpoints = CheckpointService(commit_log, writer, queues, self.index, points)
        checkpoint_s = config.flush_consume_queue_thorough_interval / 1000
        self._timers = [
            IntervalTimer(clock, config.flush_interval_consume_queue / 1000, self._tick),
            IntervalTimer(clock, checkpoint_s, self._checkpoints.save),
        ]

    @property
    def has_cold(self) -> bool:
        """True while the log is longer than what memory is taken to hold."""
        return self._reader.has_cold

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
            sizes = self.config.file_sizes
            check_profile(self._files, self.paths.profile, sizes)
            self.commit_log.writer.open(self._memory_size)
            report = self._recover(ProgressLog(self._clock, progress))
            save_profile(self._files, self.paths.profile, sizes)
            return report
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self.state = StoreState.CLOSED
        self.commit_log.close()
        self.queues.close()
        self.index.close()
        self._lock.release()

    def cut_back(self, offset: int, progress: Progress | None = None) -> RecoveryReport:
        """Let the log end at an offset, as if what lies behind it had never been there. Blocks.

        For a returning master, before it follows another one: between `load` and `start`. The log,
        the queues, the key index and what is known to be on the disk end there then; what goes is
        kept in a `.broken` file. A crash leaves the store as it was, or the next `load` ends the
        cut. See `upkeep/cut_back.py`.

        What others have derived from the log is theirs to take back: the timer index (`timer/`),
        which is folded again from the log; the tables that follow a topic of the log
        (`ReceivedLog.watch`); the terms of a replica. So load those after the cut. Offsets of
        consumers beyond the new end are corrected by reads, as ever.

        Args:
            offset: where a record begins or the last one ends.
            progress: told how far the recovery is.

        Raises:
            StoreError: the log has no border there, the store has started, or the disk has no
                room. The store is loaded as before.
            CorruptFileError, OSError: the store could not be loaded again and is closed.
        """
        if self.state is not StoreState.LOADING or self.recovery is None:
            raise StoreError("the log is cut back after the store was loaded and before it starts")
        newest_ms = self._cut.check(offset)
        if offset == self.commit_log.max_offset:
            return self.recovery
        marks = self.queues.flusher.checkpoint.load()
        marks = marks._replace(index_point=self.index.point_at(offset))
        kept = self._cut.keep(offset)
        end_offset = self.commit_log.max_offset
        try:
            self._cut.decide(Cut(offset, lowered(marks, offset, newest_ms)))
        except StoreFullError:
            self._files.unlink(kept)  # or each further try would take as much room
            raise
        log.warning(
            "cutting the log back to offset %d; the %d bytes that go are kept in %s",
            offset,
            end_offset - offset,
            kept,
        )
        try:
            self.commit_log.unload()
            self.queues.unload()
            self.index.close()
            return self._recover(ProgressLog(self._clock, progress))
        except BaseException:
            self._give_up()
            raise

    def gate(self) -> None:
        """Show and answer nothing above what `confirm` is told; before `start`.

        For a replica under a controller: what all replicas in sync have survives a failover, so
        nothing else is shown to consumers or acknowledged. A waiter gets UNCONFIRMED when that
        takes longer than slaveTimeout, or the sync before it longer than syncFlushTimeout; its
        message is in the log all the same, and shown when it is confirmed. WAIT=false is answered
        when it is written.

        What recovery has found counts as shown: who reads asks first whether it is confirmed.
        """
        self.writer.gate()
        self._reader.shown_end = lambda: self.writer.published_offset

    @property
    def confirmed(self) -> int:
        """The highest offset that `confirm` was told; 0 before the first time."""
        return self.writer.confirmed

    def _recover(self, progress: Progress) -> RecoveryReport:
        cut = self._cut.load()
        unclean = self._abort.exists() or cut is not None
        self.index.check_files(unclean=unclean)
        self.removal.load(self.queues.flusher.checkpoint)
        if cut is not None:
            self._abort.create()
            self._cut.lower_marks(cut, self.queues.flusher.checkpoint)
        marks = self.queues.flusher.checkpoint.load()
        self.commit_log.mapped_files.load()
        if cut is not None:
            self._cut.cut_log(cut)
        loader = QueueLoader(self.environment, self.queues)
        loader.load(unclean=unclean, progress=progress)
        self._abort.create()
        recovery = Recovery(
            self.commit_log,
            loader,
            marks,
            self.delay_levels,
            check_crc=self.config.check_crc_on_recover,
            progress=progress,
            removed=self.removal.topics.ends(),
            broken_folder=self.paths.own,
        )
        started = self._clock.monotonic()
        self.commit_log.clock_steps.load(marks.clock_steps, marks.physic_timestamp)
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
        self._checkpoints.recovered(report.end_offset)
        if report.store_timestamp < marks.index_timestamp:  # it was of a clock that was ahead
            marks = marks._replace(index_timestamp=0)
        self.index.load(marks, unclean=unclean)
        try:
            # After a crash the units are synced in the background, as those of new messages: the
            # first ones of ten thousand queues bring as many files and folders to the disk.
            self.queues.flusher.write_now(self._checkpoints.marks() if report.clean else None)
        except OSError as error:
            if not is_no_space(error):
                raise
            log.warning("no room for consume queues, writes are refused until there is: %s", error)
            self.queues.flusher.refused = refusal(error)
            if report.keeps_queues:
                self.queues.flusher.covered = marks  # so that cleaning can make room
        if cut is not None:
            self._cut.done()
        return report

    def start(self) -> None:
        """Take writes, and start the timed work."""
        commit_log = self.commit_log
        is_empty = commit_log.wrote_offset == commit_log.min_offset
        if self.follows and is_empty and self.queues.totals() == (0, 0):
            self._begin_anew()
        try:
            if not self.follows or commit_log.mapped_files.last is not None:
                commit_log.open_first()
        except StoreFullError as error:
            log.warning("starting without room for messages: %s", error)
        self.state = StoreState.RUNNING
        self.writer.start()
        self.index.start()
        self.cleaning.start()
        for timer in self._timers:
            timer.start()
        if self.recovery is not None and not self.recovery.clean:
            self._checkpoints.save()

    def _begin_anew(self) -> None:
        """Forget where a log without messages began: the master's says where this one begins.

        The marks go first. With them, and without the file, the next start would miss it.
        """
        if not self.commit_log.mapped_files.mapped:
            return
        self.commit_log.forget_end()
        self.writer.recovered(0, 0)
        self.queues.flusher.write_now(self._checkpoints.marks())
        self.commit_log.mapped_files.remove_all()

    def stop_writing(self) -> None:
        """Refuse further writes; `close` makes durable what is written."""
        if self.state in (StoreState.LOADING, StoreState.RUNNING):
            self.state = StoreState.STOPPING
        self.writer.stop()
        self.queues.flusher.end()
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
        self.queues.flusher.write_now(self._checkpoints.marks())
        self._abort.remove()

    def fail(self, error: BaseException) -> None:
        """End all writing for good, because the disk failed."""
        if self.failure is not None:
            return
        self.failure = error
        self.state = StoreState.FAILED
        self.writer.fail(error)
        self.queues.flusher.end()
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

    def _tick(self) -> None:
        """Write units, and checkpoint sooner when a recovery would have much to read."""
        self._checkpoints.note_point()
        start(self._keep_lock())
        self.queues.flusher.tick()
        self._checkpoints.save_early()

    async def _keep_lock(self) -> None:
        """Check, off the loop, that this process still holds the folder's lock."""
        if not self._lock_checked:
            return
        self._lock_checked = False
        try:
            await run_job(self._tables, self._lock.keep)
        except Exception as error:
            if refusal(error) is None:
                self.fail(error)
            else:
                log.warning("the lock is not looked after for now: %s", error)
        self._lock_checked = True

    # Writing

    def refusal(self) -> str | None:
        """Return why messages are not taken now, for the remark of code 14; None when they are."""
        if self.state is StoreState.RUNNING:
            why = self.cleaning.disk.refusal()
            if why is not None:
                return why
            if self.queues.flusher.refused is not None:
                return _cannot_grow("consume queues", self.queues.flusher.refused)
            if self.index.refused is not None:
                return _cannot_grow("the key index", self.index.refused)
            return None
        if self.state is StoreState.FAILED:
            return f"the store has failed and needs a restart: {self.failure}"
        return "the broker is starting or shutting down"

    def take_records(self, offset: int, data: bytes, done: Committed | None = None) -> None:
        """Store bytes of a master's log, cut anywhere; see `ReceivedLog.take`.

        Args:
            done: called with the outcome of each batch that becomes of them, when it is as durable
                as the flush mode makes it. How far that is, `commit_log.stored_offset` says.

        Raises:
            ReceivedError: no record may stand there. StoreFullError, OSError: there is no room.
            StoreError: the store takes nothing now.
        """
        why = self.refusal()
        if why is not None:
            raise StoreError(why)
        self.writer.on_received = done
        self.received.take(offset, data)

    @property
    def is_busy(self) -> bool:
        """True while producers must wait because the disk cannot keep up."""
        return self.writer.busy.is_busy

    def remove_topic(self, topic: str, done: Written) -> bool:
        """Remove the queues of a topic, with what this turn has read for it; see `TopicRemoval`."""
        self.writer.commit_open()  # what is stored later belongs to a new topic of that name
        return self.removal.remove(topic, done)

    def put_message(self, inner: MessageInner, done: Callable[[PutMessageResult], None]) -> None:
        """Store one message. `done` may be called before this returns."""
        self.put_messages((inner,), lambda results: done(results[0]))

    def put_messages(self, inners: Sequence[MessageInner], done: PutDone) -> None:
        """Store messages as one batch; see `MessageWriter.put_messages`."""
        why = self.refusal()
        if why is None and self.follows:
            why = "the log of a slave is its master's: nothing else is stored there"
        if why is None:
            self.writer.put_messages(inners, done)
        else:
            refused = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, why=why)
            done([refused] * len(inners))


def _cannot_grow(what: str, refused: Refusal) -> str:
    return f"{refused.why}: {what} cannot grow; {refused.cure}"
