"""The writing half of the store: batches into the log, answers when due, units shown when due.

    begin, add, ..., commit   one batch, one write; then by flush type
    ASYNC_FLUSH               units are published and the waiter is answered in the same turn
    ASYNC_FLUSH, pool         the waiter is answered at once; units are published with the commit
    SYNC_FLUSH                both wait for the sync that covers the batch
    behind a gate             both wait until the batch is confirmed, too (`gate`)

What must wait does so in the release queue (`release_queue.py`).

A disk that stalls must not hold the loop with its pulls, routes and heartbeats. So batches leave
the loop after an append that took longer than SLOW_APPEND_S, and while a sync takes longer than
SLOW_SYNC_S: they get their offsets as always, the commit thread writes them in order, and units are
published and waiters answered after that, as if the write had returned then. The first quick write
on that thread ends it. `BusyGauge`, which refuses with code 2, bounds what waits. The append that
is the first to meet a stall still holds the loop: a thread for every append cost 11 to 33 us more
CPU and 15 to 90 us more time for each batch. RWF_NOWAIT is no help: ext4 does not take it, XFS and
Btrfs refuse most appends with it, and where a file system is frozen it waits all the same.

What `published_offset` says: the units of all records below it are in their queues, and
`on_published` was called with their keys. It is the end of a record.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (asyncPutMessage,
submitFlushRequest, MessageExtEncoder), DefaultMessageStore.java (checkMessage, isOSPageCacheBusy,
isTransientStorePoolDeficient)
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.store.arrivals import Arrivals
from skylarkmq.store.config import RECORD_OVERHEAD, StoreConfig
from skylarkmq.store.deduplication import Deduplication
from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.flush_service import CommitService, FlushService
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.release_queue import Point, ReleaseQueue
from skylarkmq.store.results import (
    STORED,
    Committed,
    MessageInner,
    PutMessageResult,
    PutMessageStatus,
)
from skylarkmq.store.units import Units

log = logging.getLogger(__name__)
LATER_MAX_SIZE: Final = 16 << 20
"""Bytes that may wait for a slow write: a quick disk takes them in a few milliseconds."""


class Busy(NamedTuple):
    """Why producers must wait."""

    cause: str  # as in `stats.BUSY_CAUSES`
    figures: str  # for a human


class BusyGauge:
    """Tells when producers must wait because the disk cannot keep up. Loop thread.

    pool_exhausted    every buffer of the transient pool is in use
    page_cache_busy   an append has been under way for osPageCacheBusyTimeOutMills: the file
                      system, or the kernel for want of memory, holds it back; or more than
                      LATER_MAX_SIZE waits for the commit thread
    """

    def __init__(self, env: Environment, commit_log: CommitLog) -> None:
        self._config = env.config
        self._clock = env.clock
        self._log = commit_log
        self._writer = commit_log.writer
        self._limit_s = env.config.os_page_cache_busy_time_out_mills / 1000

    @property
    def is_busy(self) -> bool:
        """True while producers must wait. An append that waits for the commit thread counts."""
        if self._writer.later and (self._age_s > self._limit_s or self._size > LATER_MAX_SIZE):
            return True
        return self._writer.is_deficient

    @property
    def _age_s(self) -> float:
        """How long the oldest append has been under way."""
        return self._clock.monotonic() - self._writer.later[0].since_s

    @property
    def _size(self) -> int:
        """Bytes of the log from the oldest append under way on."""
        return self._log.wrote_offset - self._writer.later[0].offset

    def why(self) -> Busy | None:
        """Return why producers must wait; None when they need not."""
        if not self.is_busy:
            return None
        if self._writer.is_deficient:
            size = self._config.transient_store_pool_size
            return Busy(
                "pool_exhausted",
                f"every buffer of the transient pool is in use; transientStorePoolSize={size}",
            )
        limit_ms = self._config.os_page_cache_busy_time_out_mills
        return Busy(
            "page_cache_busy",
            f"an append has been under way for {self._age_s * 1000:.0f} ms with {self._size} bytes;"
            f" osPageCacheBusyTimeOutMills={limit_ms}",
        )


def check_message(inner: MessageInner, config: StoreConfig) -> PutMessageResult | None:
    """Return the refusal of a message that does not fit, None when it does."""
    if len(inner.topic) > MAX_TOPIC_SIZE:
        why = f"the topic has {len(inner.topic)} bytes, at most {MAX_TOPIC_SIZE} are allowed"
        return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why=why)
    if len(inner.properties) > MAX_PROPERTIES_SIZE:
        why = (
            f"the properties have {len(inner.properties)} bytes, "
            f"at most {MAX_PROPERTIES_SIZE} are allowed"
        )
        return PutMessageResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, why=why)
    limit = config.max_message_size
    if inner.is_copy:  # what was stored once may be stored again, if a log file can hold it
        limit = max(limit, config.mapped_file_size_commit_log - RECORD_OVERHEAD)
    if len(inner.body) > limit:
        why = f"the body has {len(inner.body)} bytes, maxMessageSize allows {limit}"
        return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why=why)
    return None


SLOW_APPEND_S: Final = 0.05
"""An append that takes longer makes the next ones leave the loop."""


class Replicas(Protocol):
    """Lets commits wait for the slaves of a SYNC_MASTER."""

    def hold(self, end_offset: int, done: Committed) -> Committed:
        """Return what is to be told instead of `done`, which then waits for a slave, too."""
        ...

    def settle(self, done: Committed) -> Committed:
        """Return what is to be told instead of `done`, which then comes after all that wait."""
        ...


PutDone = Callable[[list[PutMessageResult]], None]
# (entries of the key index, None: they are to be read from the log; end offset)
OnPublished = Callable[[bytearray | None, int], None]


def _ignore(_: bytearray | None, _end_offset: int) -> None:
    """Do nothing: the hook before one is set."""


class MessageWriter:
    """Appends, flushes and publishes. Loop thread.

    Its size is one idea: what becomes of a batch from `begin` to its answer, in every flush mode.

    Attributes:
        on_published: called with the index entries of all records that have become visible, in log
            order, and where these end.
        on_received: told the outcome of each commit of records that a master has sent.
        on_stored: called once, with `CommitLog.stored_offset`, when that has grown, and then
            forgotten: who is up to date sets it, so that a batch costs one look when nobody waits.
        replicas: what commits wait for beside this broker; None: for nothing.
        confirmed: the newest that `confirm` was told.
        deduplication: what is not stored a second time; `put_messages` asks it.
        failure: why nothing is written anymore.
        busy: tells when producers must wait.
    """

    def __init__(
        self,
        env: Environment,
        commit_log: CommitLog,
        queues: QueueTable,
        deduplication: Deduplication,
    ) -> None:
        config, clock = env.config, env.clock
        self._config = config
        self._clock = clock
        self._stats = env.stats
        self._log = commit_log
        self._queues = queues
        self.deduplication = deduplication
        self._fail = env.fail
        self._sync = config.flush_disk_type == "SYNC_FLUSH"
        self.failure: BaseException | None = None
        self.busy = BusyGauge(env, commit_log)
        self.published_offset = 0
        self.on_published: OnPublished = _ignore
        self.on_received: Committed | None = None
        self.on_stored: Callable[[int], None] | None = None
        self.replicas: Replicas | None = None
        self.confirmed = 0
        arrivals = self._arrivals = Arrivals()
        self.add_arrival_listener = arrivals.add
        self._later = commit_log.writer.later
        self._open: Callable[[], None] | None = None  # commits the batch that `begin` opened
        self._slow = False  # batches leave the loop
        flush = self._flush = FlushService(env, commit_log, self._flushed)
        self.sync = flush.sync
        self._flush_woken = not (self._sync or config.flush_commit_log_timed)
        # None: the flush thread commits before each sync.
        self._commit: CommitService | None = None
        if not flush.commits:
            self._commit = CommitService(env, commit_log, self._committed)
        self._queue = ReleaseQueue(
            clock, config.sync_flush_timeout / 1000, env.stats, self._publish, arrivals.tell
        )
        # What is committed by its write is shown and answered in the same turn, without waiting.
        self._releases_at_once = not (self._sync or commit_log.writer.stages)
        self._acknowledges = Point.STORED if self._sync else Point.WRITTEN
        self._flush_timer = IntervalTimer(
            clock, config.flush_interval_commit_log / 1000, self._flush.tick
        )

    # Life cycle

    @property
    def flushed_timestamp(self) -> int:
        """Store time up to which the log is on the disk, ms."""
        return self._flush.flushed_timestamp

    @property
    def waiting(self) -> int:
        """Commits that are not published yet."""
        return self._queue.waiting

    @property
    def gated(self) -> bool:
        """True when nothing above what `confirm` is told is shown."""
        return self._queue.gated

    @property
    def shown_timestamp(self) -> int:
        """Store time up to which the log is on the disk and its units are in the queues, ms."""
        flushed = self.flushed_timestamp
        oldest_ms = self._queue.oldest_ms if self.gated else None
        return flushed if oldest_ms is None else min(flushed, oldest_ms - 1)

    def recovered(self, end_offset: int, store_timestamp: int) -> None:
        """Note the log's end: recovery has synced and published everything below it."""
        self._flush.flushed_timestamp = store_timestamp
        self.published_offset = end_offset
        self._queue.begin_at(end_offset)

    def gate(self) -> None:
        """Show and answer nothing above what `confirm` is told; before `start`.

        What recovery has found counts as shown.
        """
        self._releases_at_once = False
        self._acknowledges = Point.CONFIRMED
        self._queue.gate(self._config.slave_timeout / 1000)

    def confirm(self, offset: int) -> None:
        """Show and answer, in this turn, what is stored here and ends at or below `offset`.

        Args:
            offset: of the log: all replicas in sync have what lies below it. One below an earlier
                one says nothing.
        """
        if offset > self.confirmed:
            self.confirmed = offset
            self._queue.confirm(offset)

    def give_up_waiting(self) -> None:
        """Answer all who wait for a confirmation with UNCONFIRMED: this leads no more.

        Whether their messages survive is not known. What is not confirmed is shown when it is.
        """
        self.commit_open()
        self._queue.give_up()

    def start(self) -> None:
        """Start the timed work."""
        self._flush_timer.start()
        if self._commit is not None:
            self._commit.start()

    def stop(self) -> None:
        """End the timed work; what a commit asked for goes on."""
        self.commit_open()
        self._flush_timer.stop()
        if self._commit is not None:
            self._commit.stop()

    def close_clean(self) -> None:
        """Make everything durable and answer who waits. Blocks; after the workers have ended.

        Behind a gate the units of what is not confirmed go to the queues, too, where nobody looks
        anymore. So log and queues agree as after any clean stop; a later cut takes both.

        Raises:
            OSError: the disk refused.
        """
        request = self._log.flush_request(commit=True)
        if request is not None:
            request.run()
            self._log.mark_flushed(request)
            self._flush.flushed_timestamp = request.store_timestamp
        self._queue.advance(self._log.written_offset, self._log.stored_offset)
        if self.gated:
            self._queue.give_up()
            self._queue.show_rest()
        self._flush.tell_synced()

    def fail(self, error: BaseException) -> None:
        """Write and flush no more."""
        self.failure = error
        self._flush.end()
        if self._commit is not None:
            self._commit.end()
        self._flush_timer.stop()

    def refuse_waiting(self) -> None:
        """Answer all that wait, after `fail`."""
        self.commit_open()
        self._queue.fail()
        self._flush.tell_synced()

    # Writing

    def begin(self, commit: Callable[[], None] | None = None) -> AppendBatch:
        """Open a batch; messages of others wait until it is committed.

        Args:
            commit: ends in a call of `commit`. With it the batch may stay open to the end of this
                turn of the loop: it is called sooner when another batch begins, or the store ends.
        """
        self.commit_open()
        self._open = commit
        return self._log.begin()

    def store_received(self, records: bytes, units: Units, newest_ms: int, blank: bytes) -> bool:
        """Commit records of another broker's log, laid out for the end of this one.

        Args:
            newest_ms: their newest store time; 0 without any.
            blank: the record that ends the file after them; empty when it does not end.

        Returns:
            Whether the disk took them; `on_received` is told when they are stored.

        Raises:
            StoreFullError, OSError: there is no next file; the records before it are stored.
        """
        self.commit_open()
        batch = self._log.begin(newest_ms or self._log.store_timestamp)
        full: Exception | None = None
        try:
            batch.reserve(len(records))  # the last file of an earlier run may not be ready yet
            if records:
                batch.extend(records, units)
            if blank:
                batch.end_file(blank)
        except (StoreFullError, OSError) as error:
            full = error
        if batch.is_empty:
            stored = True
        elif self.gated:
            stored = self.commit(None, stored=self.on_received)
        else:
            stored = self.commit(self.on_received)
        if full is not None:
            raise full
        return stored

    def commit_open(self) -> None:
        """Commit the batch that is open, if one is."""
        commit, self._open = self._open, None
        if commit is not None:
            commit()

    def commit(
        self,
        done: Committed | None,
        written: Committed | None = None,
        *,
        stored: Committed | None = None,
    ) -> bool:
        """Write the batch. False when the disk refused it, or has failed since `begin`.

        Args:
            done: called with PUT_OK once the batch is stored, with the pool under ASYNC_FLUSH
                written, and behind a gate confirmed, which may be before this returns; with
                FLUSH_DISK_TIMEOUT, behind a gate UNCONFIRMED, when that takes too long; with
                SERVICE_NOT_AVAILABLE when it failed. A SYNC_MASTER's `replicas` have their own time
                and statuses. None: no one waits for that.
            written: the same once the batch is written, whatever the flush mode (WAIT=false).
            stored: behind a gate alone, as `done`, but not waiting for the confirmation.
        """
        self._open = None
        batch, end_offset = self._log.batch, 0
        started = self._clock.monotonic()
        leaves = self._slow or started > self._flush.slow_at_s or bool(self._later)
        if self.failure is None:  # else the store has failed since `begin`
            try:
                end_offset = batch.write(started if leaves else None)
            except OSError as error:
                self._stats.write_errors += 1
                self._fail(error)
        if self.failure is not None:
            batch.drop()
            _tell(done or stored, written, PutMessageStatus.SERVICE_NOT_AVAILABLE)
            return False
        stats = self._stats
        took_s = self._clock.monotonic() - started
        stats.append_duration.observe(took_s)
        if took_s > SLOW_APPEND_S:
            self._slow = True
        units = batch.units
        stats.messages_appended += units.count
        stats.bytes_appended += batch.size
        if self.replicas is not None and done is not None:
            done = self.replicas.hold(end_offset, done)
        if self._later or not self._releases_at_once or self._queue.waiting:
            self._wait(end_offset, units, done, written, stored)
            return True
        self._queue.stored_offset = end_offset
        if self.on_stored is not None:  # first: slaves work while the rest is done
            self._tell_stored(end_offset)
        if not self._publish(units, end_offset):
            _tell(done, written, PutMessageStatus.SERVICE_NOT_AVAILABLE)
            return False
        self._arrivals.tell([units])
        if self._flush_woken:
            self._flush.wake()
        _tell(done, written, PutMessageStatus.PUT_OK)
        return True

    def answer_known(self, done: Committed | None, written: Committed | None = None) -> None:
        """Tell what a commit would be told, for messages that earlier batches have stored.

        So a copy that comes while the first one waits, for its write, its sync or a replica, waits
        for the same. `commit` does that for copies that come together with other messages.

        Args:
            done, written: as of `commit`.
        """
        end_offset = self._log.wrote_offset
        if self.failure is not None:
            _tell(done, written, PutMessageStatus.SERVICE_NOT_AVAILABLE)
            return
        if self.replicas is not None and done is not None:
            done = self.replicas.hold(end_offset, done)
        self._wait(end_offset, Units(), done, written)

    def settle(self, done: Committed) -> None:
        """Call `done` once every message so far is answered."""
        self.commit_open()
        if self.replicas is not None:
            done = self.replicas.settle(done)
        if self._queue.is_awaited:
            self._wait(self._log.wrote_offset, Units(), done)
        else:
            done(PutMessageStatus.PUT_OK)

    def _wait(
        self,
        end_offset: int,
        units: Units,
        done: Committed | None,
        written: Committed | None = None,
        stored: Committed | None = None,
    ) -> None:
        """Let units and waiters wait for the log up to `end_offset`, and see that it gets there."""
        queue = self._queue
        queue.hold(end_offset, units)
        if done is not None:
            queue.wait(self._acknowledges, end_offset, done, units.count)
        if written is not None:
            queue.wait(Point.WRITTEN, end_offset, written)
        if stored is not None:
            queue.wait(Point.STORED, end_offset, stored)
        if self._commit is not None and self._log.max_offset < end_offset:
            self._commit.appended()
        elif self._sync:
            self._flush.flush()
        elif self._flush_woken:
            self._flush.wake()
        waits_for_disk = self._acknowledges is not Point.WRITTEN and written is None
        if not waits_for_disk or self._log.stored_offset >= end_offset:
            self._advance()

    def _advance(self) -> None:
        """Show and answer what the log has passed; say so, if more of it is stored."""
        before = self._queue.stored_offset
        self._queue.advance(self._log.written_offset, self._log.stored_offset)
        if self._log.stored_offset > before:
            self._tell_stored(self._log.stored_offset)

    def put_messages(self, inners: Sequence[MessageInner], done: PutDone) -> None:
        """Store messages as one batch, in their order, up to the first that is refused.

        Args:
            done: called with a result for each message, when the batch is as durable as the flush
                mode makes it, which may be before this returns. What follows a refused message is
                not stored and gets the same result.
        """
        self.commit_open()
        queues = [self._queues.open(inner.topic, inner.queue_id) for inner in inners]
        batch, known = self._log.begin(), self.deduplication
        places: list[tuple[int, int, int]] = []  # (queue offset, physical offset, record size)
        refused: PutMessageResult | None = None
        for inner, queue in zip(inners, queues, strict=True):
            refused = check_message(inner, self._config)
            if refused is not None:
                break
            mark = known.mark(inner.topic, inner.properties) if known.windows else None
            if mark is not None and (first := mark.look(batch.store_timestamp)) is not None:
                places.append((first.queue_offset, first.physical_offset, 0))
                continue
            queue_offset, size_before = queue.next_offset, batch.size
            try:
                physical_offset = batch.add_message(queue, inner)
            except (OSError, StoreFullError) as error:
                if isinstance(error, OSError):
                    self._fail(error)
                refused = _unavailable(str(error))
                break
            except struct.error as error:
                why = f"a number of the message does not fit its field: {error}"
                refused = PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why=why)
                break
            if queue.next_offset == queue_offset:
                queue_offset = 0  # it is in no queue
            places.append((queue_offset, physical_offset, batch.size - size_before))
            if mark is not None:
                mark.note(batch.store_timestamp, inner.queue_id, queue_offset, physical_offset)
        timestamp, left = batch.store_timestamp, len(inners) - len(places)

        def committed(status: PutMessageStatus) -> None:
            results = [
                PutMessageResult(
                    status, queue_offset, physical_offset, timestamp, record_size=record_size
                )
                for queue_offset, physical_offset, record_size in places
            ]
            if status not in STORED:
                results = [_unavailable(f"the disk failed: {self.failure}")] * len(places)
            done(results + [refused] * left if refused is not None else results)

        waits = any(inner.wait_store_ok for inner in inners[: len(places)])
        if not places:
            committed(PutMessageStatus.PUT_OK)
        elif batch.is_empty:
            self.answer_known(*((committed,) if waits else (None, committed)))
        elif waits:
            self.commit(committed)
        else:
            self.commit(None, committed)

    def _tell_stored(self, end_offset: int) -> None:
        on_stored, self.on_stored = self.on_stored, None
        if on_stored is not None:
            on_stored(end_offset)

    # Showing

    def _publish(self, units: Units, end_offset: int) -> bool:
        """Show units in their queues; False when that failed, and the store with it.

        The log is whole then, and the next start builds the queues from it; to go on would number
        what follows wrongly.
        """
        try:
            self._queues.publish(units)
            self.on_published(None if units.lacks_entries else units.entries, end_offset)
        except Exception as error:
            log.exception("messages up to offset %d of the log cannot be shown", end_offset)
            self._fail(error)
            return False
        self.published_offset = end_offset
        return True

    def _committed(self, took_s: float) -> None:
        """Go on after the commit thread has written something."""
        self._slow = took_s > SLOW_APPEND_S
        self._advance()
        if self._later and not self._log.writer.stages and not self._slow:
            self._write_rest()
        if self._sync or self._flush.is_awaited:
            self._flush.flush()
        elif self._flush_woken:
            self._flush.wake()

    def _write_rest(self) -> None:
        """Write what is left on the loop, because the disk is quick again."""
        request = self._log.commit_request() if self.failure is None else None
        if request is None:
            return
        try:
            request.run()
        except OSError as error:
            self._stats.write_errors += 1
            self._fail(error)
            return
        self._log.mark_committed(request)
        self._advance()

    def _flushed(self, _: int) -> None:
        """Go on after the flush thread has synced something."""
        if self._commit is None:
            self._slow = False
        before = self._queue.acknowledged
        self._advance()
        if self._sync:
            self._stats.group_commit_size.observe(self._queue.acknowledged - before)


def _tell(done: Committed | None, written: Committed | None, status: PutMessageStatus) -> None:
    if done is not None:
        done(status)
    if written is not None:
        written(status)


def _unavailable(why: str) -> PutMessageResult:
    return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, why=why)
