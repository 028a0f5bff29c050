"""The simulator notices every promise that is broken: each broken store here must be caught.

A mutation replaces a piece of the real store by one that forgets a rule. If the simulator lets one
pass, it is the simulator that is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.common import table_file
from skylarkmq.store import checkpoint, folder, message_store, message_writer
from skylarkmq.store.index import follower as index_follower
from skylarkmq.store.index import service as index_service
from skylarkmq.store.log import (
    append,
    commit_log,
    flush_service,
    flushed_offset,
    log_walk,
    mapped_file,
    mapped_file_queue,
    pool_writer,
)
from skylarkmq.store.queue import queue_files, queue_loader, unit_rebuild
from skylarkmq.store.results import MessageInner, PutMessageStatus
from skylarkmq.store.units import Units
from skylarkmq.store.upkeep import checkpoint_service, cleaning, queue_cleaner, recovery
from tests.support import store_machine, store_shape
from tests.support.crash_disk import CrashDisk, CrashFile
from tests.support.crash_explorer import CrashFailure, explore

SEEDS = 1000
# The first seeds that show it, where it is not seed 0; they are tried before all others.
KNOWN = {
    "ack_before_write": 1,
    "sync_error_ignored": 1,
    "shown_before_the_sync": 1,
    "offset_hole": 3,
    "new_log_file_without_its_name": 1,
    "recovered_tail_not_synced": 1,
    "pool_sync_without_commit": 1,
    "body_crc_not_checked": 9,
    "queues_begin_where_they_did": 20,
    "flushed_offset_before_the_sync": 16,
}
CAUGHT = r"I\d+|visibility|FormatError|acknowledgement after|StoreProfileError|CorruptFileError"

Patch = pytest.MonkeyPatch


def ack_before_write(patch: Patch) -> None:
    commit = message_writer.MessageWriter.commit

    def broken(self: message_writer.MessageWriter, done: Any, written: Any = None) -> bool:
        for waiter in (done, written):
            if waiter is not None:
                waiter(PutMessageStatus.PUT_OK)
        return commit(self, None)

    patch.setattr(message_writer.MessageWriter, "commit", broken)


def no_sync(patch: Patch) -> None:
    patch.setattr(commit_log.FlushRequest, "run", lambda self: None)


def sync_error_ignored(patch: Patch) -> None:
    finished = flush_service.FlushService._finished

    def broken(self: Any, request: Any, started: float, error: Any) -> None:
        finished(self, request, started, None)

    patch.setattr(flush_service.FlushService, "_finished", broken)


def rolled_file_joins_at_once(patch: Patch) -> None:
    next_file = commit_log.CommitLog._next_file

    def broken(self: commit_log.CommitLog, patience_s: float | None = None) -> Any:
        mapped = next_file(self, patience_s)
        self._join()
        return mapped

    patch.setattr(commit_log.CommitLog, "_next_file", broken)


def write_error_ignored(patch: Patch) -> None:
    write = append.AppendBatch.write

    def broken(self: append.AppendBatch, left_s: float | None = None) -> int:
        try:
            return write(self, left_s)
        except OSError:
            assert self._file is not None
            self._file.wrote_position = self._position
            return self._file.start_offset + self._position

    patch.setattr(append.AppendBatch, "write", broken)


def shown_before_the_sync(patch: Patch) -> None:
    commit = message_writer.MessageWriter.commit

    def broken(self: message_writer.MessageWriter, done: Any, written: Any = None) -> bool:
        if self._sync:
            self._publish(self._log.batch.units, self._log.max_offset)
            self._log.batch._units = Units()
        return commit(self, done, written)

    patch.setattr(message_writer.MessageWriter, "commit", broken)


def no_tail_truncation(patch: Patch) -> None:
    patch.setattr(mapped_file.MappedFile, "clear", lambda self, position, size: None)


def files_behind_the_end_stay(patch: Patch) -> None:
    def broken(self: Any, end_offset: int, *, clear_size: int = 0) -> None:
        if self.last is not None:
            self.last.rewind(max(0, min(end_offset - self.last.start_offset, self.last.size)))

    patch.setattr(mapped_file_queue.MappedFileQueue, "truncate", broken)


def duplicate_on_recovery(patch: Patch) -> None:
    def broken(self: Any, topic: str, queue_id: int, _offset: int, unit: Any) -> None:
        queue = self.table.open(topic, queue_id)
        queue.append(*unit)
        queue.next_offset = queue.max_offset

    patch.setattr(queue_loader.QueueLoader, "rebuild_unit", broken)
    queues_not_cut(patch)


def nothing_rebuilt(patch: Patch) -> None:
    run = unit_rebuild.UnitRebuild.run

    def broken(self: Any, records: Any, _from: int | None, check: Any) -> None:
        run(self, records, None, check)

    patch.setattr(unit_rebuild.UnitRebuild, "run", broken)


def queues_not_cut(patch: Patch) -> None:
    patch.setattr(queue_loader.QueueLoader, "cut", lambda self, offset, is_sound: None)


def offset_hole(patch: Patch) -> None:
    add = append.AppendBatch.add

    def broken(self: Any, queue: Any, *args: Any) -> int:
        if queue.next_offset == 3:
            queue.next_offset += 1
        return add(self, queue, *args)

    patch.setattr(append.AppendBatch, "add", broken)


def order_swap(patch: Patch) -> None:
    put = message_store.MessageStore.put_message
    held: list[Any] = []

    def broken(self: Any, inner: MessageInner, done: Callable[..., None]) -> None:
        held.append((self, inner, done))
        if len(held) == 2:
            while held:
                put(*held.pop())

    patch.setattr(message_store.MessageStore, "put_message", broken)


def lost_topic_file(patch: Patch) -> None:
    def broken(self: Any, path: Path, text: Any, done: Any) -> None:
        done(None)

    patch.setattr(table_file.TableWriter, "write", broken)


def new_log_file_without_its_name(patch: Patch) -> None:
    sync_folder = CrashDisk.sync_folder

    def broken(self: CrashDisk, path: Path) -> None:
        if path.name != "commitlog":
            sync_folder(self, path)

    patch.setattr(CrashDisk, "sync_folder", broken)


def checkpoint_ahead_of_the_queues(patch: Patch) -> None:
    patch.setattr(queue_files.QueueWriter, "sync_some", lambda self, count: True)


def checkpoint_ahead_of_the_log(patch: Patch) -> None:
    patch.setattr(store_shape, "SYNC_SHARE", 0)

    def broken(self: Any) -> checkpoint.Marks:
        now_ms = self._log._env.clock.now_ms()
        return checkpoint.Marks(now_ms, now_ms, 0)

    patch.setattr(checkpoint_service.CheckpointService, "marks", broken)


def recovery_point_ahead_of_the_log(patch: Patch) -> None:
    patch.setattr(store_shape, "SYNC_SHARE", 0)
    marks_of = checkpoint_service.CheckpointService.marks

    def broken(self: Any) -> checkpoint.Marks:
        return marks_of(self)._replace(
            commit_log_offset=self._writer.published_offset, queue_count=-1, unit_count=-1
        )

    patch.setattr(checkpoint_service.CheckpointService, "marks", broken)


def no_abort_file(patch: Patch) -> None:
    patch.setattr(folder.AbortFile, "create", lambda self: None)
    patch.setattr(folder.AbortFile, "remove", lambda self: None)


def body_crc_not_checked(patch: Patch) -> None:
    init = log_walk.LogWalk.__init__

    def broken(*args: Any, **options: Any) -> None:
        init(*args, **{**options, "check_crc": False})

    patch.setattr(log_walk.LogWalk, "__init__", broken)
    patch.setattr(store_machine, "BODY_SIZES", (2500, 5000))  # so that bodies are torn


def recovered_tail_not_synced(patch: Patch) -> None:
    run = recovery.Recovery._run_unclean

    def broken(self: Any) -> Any:
        for mapped in self._log.mapped_files.mapped:
            mapped.file.datasync = lambda: None
        return run(self)

    patch.setattr(recovery.Recovery, "_run_unclean", broken)


def pool_shown_before_the_commit(patch: Patch) -> None:
    commit = message_writer.MessageWriter.commit

    def broken(self: message_writer.MessageWriter, done: Any, written: Any = None) -> bool:
        stored = commit(self, done, written)
        self._queue.advance(self._log.wrote_offset, self._log.wrote_offset)
        return stored

    patch.setattr(message_writer.MessageWriter, "commit", broken)
    patch.setattr(store_shape, "DRAWN_ROADS", ("pool",))


def pool_commits_nothing(patch: Patch) -> None:
    patch.setattr(commit_log.CommitRequest, "run", lambda self: None)
    patch.setattr(store_shape, "DRAWN_ROADS", ("pool",))


def pool_sync_without_commit(patch: Patch) -> None:
    run = commit_log.FlushRequest.run
    patch.setattr(commit_log.FlushRequest, "run", lambda self: run(self._replace(commit=None)))
    patch.setattr(store_shape, "DRAWN_ROADS", ("pool",))


def buffer_back_before_it_is_committed(patch: Patch) -> None:
    patch.setattr(store_shape, "SYNC_SHARE", 0)
    patch.setattr(
        pool_writer.PoolWriter,
        "_is_over",
        staticmethod(lambda mapped: mapped.wrote_position == mapped.size),
    )
    patch.setattr(store_shape, "DRAWN_ROADS", ("pool",))


def told_before_the_write_off_the_loop(patch: Patch) -> None:
    wait = message_writer.MessageWriter._wait

    def broken(self: Any, end: int, units: Any, *waiters: Any) -> None:
        for waiter in filter(None, waiters):
            waiter(PutMessageStatus.PUT_OK)
        wait(self, end, units, None)

    patch.setattr(message_writer.MessageWriter, "_wait", broken)
    patch.setattr(message_writer, "SLOW_APPEND_S", -1.0)
    patch.setattr(store_shape, "DRAWN_ROADS", ("pwrite", "mapped"))


def nothing_written_off_the_loop(patch: Patch) -> None:
    patch.setattr(commit_log.CommitRequest, "run", lambda self: None)
    patch.setattr(message_writer, "SLOW_APPEND_S", -1.0)
    patch.setattr(store_shape, "DRAWN_ROADS", ("pwrite", "mapped"))


def mapped_store_unsynced(patch: Patch) -> None:
    patch.setattr(commit_log.FlushRequest, "run", lambda self: None)
    patch.setattr(store_shape, "DRAWN_ROADS", ("mapped",))


def index_synced_in_words_only(patch: Patch) -> None:
    sync_index = index_service.sync_index

    def broken(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CrashFile, "datasync", lambda self: None)
            return sync_index(*args)

    patch.setattr(index_service, "sync_index", broken)


def index_believed_after_a_crash(patch: Patch) -> None:
    load = index_service.IndexService.load

    def broken(self: Any, marks: Any, *, unclean: bool) -> None:
        load(self, marks, unclean=False)

    patch.setattr(index_service.IndexService, "load", broken)


def index_not_read_again(patch: Patch) -> None:
    begin_at = index_follower.IndexFollower.begin_at

    def broken(self: Any, _: int, *, repaired: bool) -> None:
        begin_at(self, self._log.max_offset, repaired=repaired)

    patch.setattr(index_follower.IndexFollower, "begin_at", broken)


def removal_without_a_sync(patch: Patch) -> None:
    patch.setattr(cleaning, "_unlink", lambda files, path: files.unlink(path))


def removed_before_its_units_are_synced(patch: Patch) -> None:
    def broken(self: cleaning.CleanService, _removed: int) -> mapped_file.MappedFile | None:
        mapped = self._log.mapped_files.mapped
        return mapped[0] if len(mapped) > 1 else None

    patch.setattr(cleaning.CleanService, "_candidate", broken)
    patch.setattr(store_shape, "CLEANED_SHARE", 1)


def flushed_offset_not_written(patch: Patch) -> None:
    patch.setattr(flushed_offset.FlushedOffset, "write", lambda self, offset: None)


def flushed_offset_before_the_sync(patch: Patch) -> None:
    run = commit_log.FlushRequest.run

    def broken(self: commit_log.FlushRequest) -> None:
        self.flushed.write(self.end_offset)
        run(self)

    patch.setattr(commit_log.FlushRequest, "run", broken)


def queues_begin_where_they_did(patch: Patch) -> None:
    patch.setattr(queue_cleaner.QueueCleaner, "expire", lambda self, offset: None)


MUTATIONS = [
    ack_before_write,
    no_sync,
    sync_error_ignored,
    shown_before_the_sync,
    no_tail_truncation,
    files_behind_the_end_stay,
    duplicate_on_recovery,
    nothing_rebuilt,
    offset_hole,
    order_swap,
    lost_topic_file,
    new_log_file_without_its_name,
    no_abort_file,
    body_crc_not_checked,
    recovered_tail_not_synced,
    pool_shown_before_the_commit,
    pool_commits_nothing,
    pool_sync_without_commit,
    told_before_the_write_off_the_loop,
    nothing_written_off_the_loop,
    mapped_store_unsynced,
    index_not_read_again,
    queues_begin_where_they_did,
    flushed_offset_not_written,
    flushed_offset_before_the_sync,
    # These take tens of seeds and more.
    pytest.param(rolled_file_joins_at_once, marks=pytest.mark.fault),
    pytest.param(removal_without_a_sync, marks=pytest.mark.fault),
    pytest.param(index_believed_after_a_crash, marks=pytest.mark.fault),
    pytest.param(removed_before_its_units_are_synced, marks=pytest.mark.fault),
    pytest.param(queues_not_cut, marks=pytest.mark.fault),
    pytest.param(write_error_ignored, marks=pytest.mark.fault),
    pytest.param(checkpoint_ahead_of_the_queues, marks=pytest.mark.fault),
    pytest.param(buffer_back_before_it_is_committed, marks=pytest.mark.fault),
    pytest.param(index_synced_in_words_only, marks=pytest.mark.fault),
    pytest.param(recovery_point_ahead_of_the_log, marks=pytest.mark.fault),
    pytest.param(checkpoint_ahead_of_the_log, marks=pytest.mark.fault),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_store_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    with pytest.raises(CrashFailure, match=CAUGHT):
        for seed in (KNOWN.get(mutation.__name__, 0), *range(SEEDS)):
            explore(seed, failing=seed % 2 == 1)
