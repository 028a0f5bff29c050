"""The key index of a store: from `topic#key` to the places of the messages in the log.

It follows the log, which never waits for it: a start goes on as soon as it is known which of its
files may be trusted, and the rest is built in the background. Queries are answered all the while,
with what there is, and say when something may be missing; otherwise a query finds everything that
was published before it.

Threads: all state is the loop's. Files are read and written on the index thread, in the order of
the jobs. Syncs run beside that on the queues thread, each before the checkpoint that speaks of it.

Crash story: the index is a function of the log. What the last checkpoint does not cover is cut off
(`loader.py`) and built again.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (queryOffset),
IndexFile.java (isTimeMatched, selectPhyOffset)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from skylarkmq.common.files import Files
from skylarkmq.common.refusal import Refusal, failed_sync, refusal
from skylarkmq.common.worker import Call, Done, run_job, start
from skylarkmq.protocol.tags_code import index_key_hash
from skylarkmq.store.checkpoint import IndexPoint, Marks
from skylarkmq.store.environment import Environment
from skylarkmq.store.index.builder import IndexBuilder
from skylarkmq.store.index.file import FIRST_ITEM, IndexFile, IndexHeader, IndexShape
from skylarkmq.store.index.follower import IndexFollower
from skylarkmq.store.index.loader import IndexLoader
from skylarkmq.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)
SLICE_ITEMS: Final = 1000
WALK_MAX: Final = 1_000_000


class IndexSearch:
    """One search for a key, newest file first, newest item first.

    Only hashes and seconds are compared, so a result may name a record of another key. Where the
    clock was ahead when a file began, what came after it went back stands there with the file's
    begin, for no time is below that: it is found whatever the last time that is asked for.

    A chain may have millions of items, and be walked because another key shares the slot. So a
    search runs in slices, between which the index thread does other work, and gives up after
    WALK_MAX items. `run` belongs to the index thread; read the results after it has ended.
    """

    def __init__(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> None:
        self._key_hash = key_hash
        self._max_count = max_count
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._walked = 0
        self.offsets: list[int] = []  # physical offsets, newest first
        self.last_entry = (0, 0)  # of the whole index: store time in ms, physical offset
        self.gave_up = False

    def run(self, files: Sequence[IndexFile]) -> Iterator[None]:
        """Search the files, given oldest first; yield after each slice."""
        if files:
            self.last_entry = files[-1].header.end_timestamp, files[-1].header.end_offset
        for file in reversed(files):
            if file.is_removed:  # it expired since the search began, and so did all before it
                return
            begin_timestamp = file.header.begin_timestamp
            if self._overlaps(begin_timestamp, file.header.end_timestamp):
                yield from self._walk(file)
                file.rest()
            if begin_timestamp < self._begin_ms or self._is_done():
                return

    def _overlaps(self, begin: int, end: int) -> bool:
        asked_begin, asked_end = self._begin_ms, self._end_ms
        return (
            end < begin  # the clock has gone back
            or (asked_begin < begin and asked_end > end)
            or begin <= asked_begin <= end
            or begin <= asked_end <= end
        )

    def _is_done(self) -> bool:
        return self.gave_up or len(self.offsets) >= self._max_count

    def _walk(self, file: IndexFile) -> Iterator[None]:
        begin_timestamp = file.header.begin_timestamp
        number = file.newest(self._key_hash)
        while number >= FIRST_ITEM and not self._is_done():
            key_hash, offset, difference, previous = file.item(number)
            if difference < 0:
                return
            timestamp = begin_timestamp + difference * 1000
            is_in_time = timestamp <= self._end_ms or not difference
            if key_hash == self._key_hash and self._begin_ms <= timestamp and is_in_time:
                self.offsets.append(offset)
            # Unlike RocketMQ, where a damaged chain may lead in a circle.
            if timestamp < self._begin_ms or previous >= number:
                return
            number = previous
            self._walked += 1
            self.gave_up = self._walked >= WALK_MAX
            if self._walked % SLICE_ITEMS == 0:
                yield
                if file.is_removed:
                    return


class SyncedIndex(NamedTuple):
    """What a sync brought to the disk."""

    point: IndexPoint
    full: tuple[IndexFile, ...]  # files that were full when their sync began
    full_timestamp: int  # end time of the newest full file, ms


def sync_index(
    files: Files, index_files: Sequence[IndexFile], offset: int, full_timestamp: int
) -> SyncedIndex:
    """Sync the files that need it, and return how far the index is on the disk.

    A sync covers every store that was done before it began, so it may run while the index is built.
    The point never lies after the synced part of the log, or a power cut could leave entries of
    records that are gone. Blocks; any one thread, while no file is removed.

    Args:
        offset: a record boundary of the synced log; the entries of all records below it are in.

    Raises:
        OSError: a sync failed, or the machine refused a descriptor.
    """
    full: list[IndexFile] = []
    headers = [file.header for file in index_files]
    for file, header in zip(index_files, headers, strict=True):
        if not file.unsynced:
            continue
        opened = file.file
        try:
            opened.datasync()
        except OSError as error:
            raise failed_sync(error) from error
        if header.next_item >= file.shape.item_count:
            full.append(file)
            full_timestamp = header.end_timestamp
    point = _point(files, index_files, headers, offset)
    return SyncedIndex(point, tuple(full), full_timestamp)


def _point(
    files: Files, index_files: Sequence[IndexFile], headers: list[IndexHeader], offset: int
) -> IndexPoint:
    for file, header in zip(reversed(index_files), reversed(headers), strict=True):
        if header.next_item <= FIRST_ITEM or header.begin_offset >= offset:
            continue
        # A handle of its own: the file belongs to another thread.
        reader = IndexFile(files, file.path, file.shape, header)
        try:
            count = reader.find_offset(offset, header.next_item)
            timestamp = header.end_timestamp
            if count < header.next_item:
                last = reader.item(count - 1)
                timestamp = header.begin_timestamp + last.time_difference * 1000
        finally:
            reader.let_go()
        return IndexPoint(file.name, count, offset, timestamp)
    return IndexPoint("", FIRST_ITEM, offset, 0)


class IndexAnswer(NamedTuple):
    """What the index knows of a key. Only hashes were compared: check the keys of the records."""

    offsets: list[int]  # physical offsets, newest first
    last_timestamp: int  # store time of the index's last entry, ms
    last_offset: int  # physical offset of its record
    missing: str  # what may be missing, for a human; empty when nothing


class IndexService:
    """The index. Loop thread, except the calls that block."""

    def __init__(self, env: Environment, commit_log: CommitLog) -> None:
        config, files, folder = env.config, env.files, env.paths.index
        self._env = env
        self._log = commit_log
        self.enabled = config.message_index_enable
        shape = IndexShape(config.max_hash_slot_num, config.max_index_num)
        self._loader = IndexLoader(files, folder, shape, commit_log)
        self._builder = IndexBuilder(files, folder, shape, env.clock.now_ms)
        self._follower = IndexFollower(env, self._builder, commit_log)
        self.take = self._follower.take
        self.point: IndexPoint | None = None  # what is on the disk, for the checkpoint
        self.full_timestamp = 0  # end time of the newest full file that is on the disk, ms
        self._ended = False
        self._busy = False  # a sync or an expiry is under way
        self._sync_wanted: list[Done[None]] = []
        self._expire_wanted = 0  # log offset

    # Life cycle

    def check_files(self, *, unclean: bool) -> None:
        """Refuse files of other sizes before anything is changed. Blocks.

        Raises:
            StoreProfileError: the files have another number of slots.
        """
        self._loader.refuse_other_shapes(unclean=unclean)

    def load(self, marks: Marks, *, unclean: bool) -> None:
        """Open what a stop left, after the log was recovered. Blocks briefly, whatever the size.

        Raises:
            OSError: the disk failed.
        """
        loaded = self._loader.load(marks, unclean=unclean)
        self._builder.take(loaded)
        self._follower.begin_at(loaded.next_offset, repaired=loaded.damaged is None)
        self.point, self.full_timestamp = loaded.point, loaded.full_timestamp
        if self.enabled and (loaded.removed or loaded.damaged or self.behind_bytes):
            log.info(
                "key index: %d files kept, %d removed; reading %d bytes of the log again, from "
                "offset %d on, in the background",
                len(loaded.files),
                loaded.removed,
                self.behind_bytes,
                loaded.next_offset,
            )

    def point_at(self, offset: int) -> IndexPoint | None:
        """Return how far the index is on the disk for a log that ends earlier. Blocks.

        Args:
            offset: a record boundary.
        """
        if self.point is None or self.point.end_offset <= offset:
            return self.point
        files = self._builder.files
        return _point(self._env.files, files, [file.header for file in files], offset)

    def start(self) -> None:
        """Begin to follow the log."""
        self._follower.start()

    def end(self) -> None:
        """Build and sync no more; searches go on."""
        self._ended = True
        self._follower.end()

    def close_clean(self) -> None:
        """Build what waits and make the index durable. Blocks; after the workers have ended.

        Raises:
            OSError: the disk failed. A full one is no error: the next start reads the log again.
        """
        if not self._builder.repair_all():
            self.point = None  # the next start looks at the files
        elif self.enabled:
            self._follower.build_rest()
            self._synced(self._sync_job()())
            if missing := self.behind_bytes:
                log.info("the key index ends %d bytes before the log; a start goes on", missing)

    def close(self) -> None:
        """Let all files go."""
        self._builder.close()

    @property
    def refused(self) -> Refusal | None:
        """Why the index cannot grow; None while it can. It tries again by itself."""
        return self._follower.refused

    @property
    def behind_bytes(self) -> int:
        """Bytes of the published log that are not in the index yet."""
        return self._follower.behind_bytes

    @property
    def file_count(self) -> int:
        return len(self._builder.files)

    # Queries

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        done: Done[IndexAnswer],
    ) -> None:
        """Look a key up among the messages stored between two times, both included.

        Args:
            max_count: so many places at most, and no more than maxMsgsNumBatch.
            done: called later. The times of entries are kept in seconds, rounded down.
        """
        self._follower.submit_waiting()
        key_hash = index_key_hash(topic, key)
        search = IndexSearch(
            key_hash, min(max_count, self._env.config.max_msgs_num_batch), begin_ms, end_ms
        )
        start(self._answer(search, self._follower.missing), done)

    async def _answer(self, search: IndexSearch, missing: str) -> IndexAnswer:
        slices = self._slices(search)
        while await run_job(self._env.workers.index, partial(next, slices, True)) is None:
            pass
        why = "the search was given up, ask for less time" if search.gave_up else missing
        return IndexAnswer(search.offsets, *search.last_entry, why)

    def _slices(self, search: IndexSearch) -> Iterator[None]:
        yield from search.run(self._builder.readable)  # looked at on the index thread

    # To the disk

    async def sync(self) -> None:
        """Bring to the disk what is in the index; `point` then says how far that reaches.

        Raises:
            OSError: the disk failed, and with it the store; or the machine refused a descriptor.
        """
        if self.enabled and not self._ended:
            await Call(self._want_sync)

    def _want_sync(self, done: Done[None]) -> None:
        self._sync_wanted.append(done)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the expiry or the sync that is wanted, unless one of them is under way."""
        if self._busy:
            return
        files = self._builder.files
        if not self._ended and len(files) > 1 and files[0].header.end_offset < self._expire_wanted:
            start(self._expire_files())
        elif self._sync_wanted:
            start(self._sync_files())

    async def _sync_files(self) -> None:
        waiting, self._sync_wanted = self._sync_wanted, []
        self._busy = True
        started, failure = self._env.clock.monotonic(), None
        try:
            synced = await run_job(self._env.workers.queues, self._sync_job())
        except Exception as error:
            failure = error
            if refusal(error) is None:
                self._env.stats.fsync_errors += 1
                self._env.fail(error)
            else:
                log.warning("the key index is not synced for now: %s", error)
        else:
            self._env.stats.fsync_index.observe(self._env.clock.monotonic() - started)
            self._synced(synced)
        self._busy = False
        for done in waiting:
            done(None, failure)
        self._go_on()

    def _sync_job(self) -> Callable[[], SyncedIndex]:
        offset = min(self._follower.indexed_offset, self._log.flushed_offset)
        index_files, full_timestamp = self._builder.files, self.full_timestamp
        return lambda: sync_index(self._env.files, index_files, offset, full_timestamp)

    def _synced(self, synced: SyncedIndex) -> None:
        self.point, self.full_timestamp = synced.point, synced.full_timestamp
        if synced.full and not self._ended:
            self._env.workers.index.submit(lambda: self._builder.settle(synced.full), _settled)

    # Expiry

    def expire(self, log_min_offset: int) -> None:
        """Remove files all of whose messages have left the log, in the background."""
        self._expire_wanted = max(self._expire_wanted, log_min_offset)
        self._go_on()

    async def _expire_files(self) -> None:
        self._busy = True
        try:
            await run_job(
                self._env.workers.index, partial(self._builder.expire, self._expire_wanted)
            )
        except Exception as error:
            log.error("removing expired index files failed: %s", error)
            self._busy = False
            if self._sync_wanted:
                start(self._sync_files())  # after it the files are tried again
            return
        self._busy = False
        self._go_on()


def _settled(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("closing full index files failed: %s", error)
