"""Lines of the store."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MUTANTS: Final = (
    # Appending
    Mutant(
        "store/log/append.py",
        "if position + size + MIN_BLANK_SIZE > self._file_size:",
        "if position + size + MIN_BLANK_SIZE >= self._file_size:",
        "store/test_append.py store/test_blank.py store/test_commit_log.py",
    ),
    Mutant(
        "store/log/append.py",
        "is_queued = not kind or kind == TRANSACTION_COMMIT",
        "is_queued = kind != TRANSACTION_ROLLBACK",
        "store/test_append.py store/test_put_messages.py",
    ),
    Mutant(
        "store/log/append.py",
        "sys_flag &= ~HOSTS_BITS",
        "sys_flag |= 0",
        "store/test_append.py",
    ),
    Mutant(
        "store/log/append.py",
        "writer.append(mapped, data, to_end=mapped is not file)",
        "writer.append(mapped, data, to_end=mapped is file)",
        "store/test_append.py store/test_commit_log.py",
    ),
    # The release queue
    Mutant(
        "store/release_queue.py",
        "while self._held and self._held[0][0] <= limit:",
        "while self._held and self._held[0][0] < limit:",
        "store/test_release_queue.py",
    ),
    Mutant(
        "store/release_queue.py",
        "while waiters and waiters[0].end_offset <= offset:",
        "while waiters and waiters[0].end_offset < offset:",
        "store/test_release_queue.py",
    ),
    Mutant(
        "store/release_queue.py",
        "limit = min(self.stored_offset, self._confirmed_offset)",
        "limit = self._confirmed_offset",
        "store/test_gate.py store/test_release_queue.py",
    ),
    Mutant(
        "store/release_queue.py",
        "            self._timer = self._clock.call_at(waiters[0].since_s + self.timeout_s, "
        "self._expire)",
        "            self._timer = None",
        "store/test_release_queue.py",
    ),
    Mutant(
        "store/release_queue.py",
        "if self.gated and offset > self._confirmed_offset:",
        "if self.gated:",
        "store/test_gate.py",
        "the writer passes on only what is above the last confirmation",
    ),
    # Syncs
    Mutant(
        "store/log/flush_service.py",
        "min(least_pages, self._again)",
        "max(least_pages, self._again)",
        "store/test_flush_service.py",
    ),
    Mutant(
        "store/log/flush_service.py",
        "            self._ended = True\n            self._env.stats.fsync_errors += 1",
        "            self._env.stats.fsync_errors += 1",
        "store/test_flush_service.py store/test_failure_policy.py",
    ),
    Mutant(
        "store/log/commit_log.py",
        "        for mapped in self.files:\n            mapped.file.datasync()\n"
        "        self.flushed.write(self.end_offset)",
        "        self.flushed.write(self.end_offset)\n"
        "        for mapped in self.files:\n            mapped.file.datasync()",
        "store/test_write_roads.py",
    ),
    Mutant(
        "store/log/commit_log.py",
        "if least_pages == 0 or start // file_size < end // file_size:",
        "if least_pages == 0:",
        "store/test_flush_service.py",
    ),
    # Reading
    Mutant(
        "store/log/commit_log.py",
        "if position + size > mapped.committed_position:",
        "if position + size >= mapped.committed_position:",
        "store/test_commit_log.py store/test_message_reader.py",
    ),
    Mutant(
        "store/log/commit_log.py",
        "end = min(position + size, mapped.committed_position, stored)",
        "end = min(position + size, mapped.committed_position)",
        "store/test_commit_log.py",
    ),
    Mutant(
        "store/read/message_reader.py",
        "if view is None or found is None or physical_offset + view.size > end_offset:",
        "if view is None or found is None:",
        "store/test_message_reader.py",
        "what reads may show ends with a record, so one that begins before it is whole",
    ),
    Mutant(
        "store/read/message_reader.py",
        "in_memory\n                if count and (count >= count_max or size + record_size > "
        "size_max):",
        "in_memory\n                if count >= count_max or size + record_size > size_max:",
        "store/test_filtering.py",
    ),
    Mutant(
        "store/read/message_reader.py",
        "status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, high",
        "status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, low",
        "store/test_message_store.py",
    ),
    # Queues and keys
    Mutant(
        "store/queue/consume_queue.py",
        "        keep_from = min(keep_from, offset)\n",
        "",
        "store/test_consume_queue.py",
    ),
    Mutant(
        "store/units.py",
        "if number != NO_QUEUE:",
        "if number is not None:",
        "store/test_units.py",
    ),
    Mutant(
        "store/queue/consume_queue.py",
        "if units != PRE_BLANK * count:",
        "if units:",
        "store/test_consume_queue.py store/test_queue_cleaner.py",
    ),
    Mutant(
        "store/index/file.py",
        "if not 0 < previous < count:",
        "if not 0 < previous <= count:",
        "store/test_index_file.py kernel/test_index.py",
    ),
    Mutant(
        "store/index/file.py",
        "return number if FIRST_ITEM <= number < self.count else 0",
        "return number",
        "store/test_index_file.py",
    ),
    # Cleaning
    Mutant(
        "store/upkeep/cleaning.py",
        "synced = min(self._log.flushed_offset, covered.commit_log_offset if covered else 0)",
        "synced = self._log.flushed_offset",
        "store/test_cleaning.py store/test_log_cleaner.py",
    ),
    Mutant(
        "store/upkeep/cleaning.py",
        "if not is_due or not all([keeper(end) for keeper in self.keepers]):",
        "if not is_due:",
        "broker/timer/test_rolling.py broker/replication/test_metadata_upkeep.py",
    ),
    Mutant(
        "store/upkeep/cleaning.py",
        "        files.sync_folder(path.parent)\n    except",
        "        pass\n    except",
        "store/test_cleaning.py store/test_log_cleaner.py",
    ),
    Mutant(
        "store/upkeep/queue_cleaner.py",
        "self._wanted = max(self._wanted, log_min_offset)",
        "self._wanted = log_min_offset",
        "store/test_queue_cleaner.py",
        "the start of the log only grows",
    ),
    # Starting
    Mutant(
        "store/upkeep/recovery.py",
        "                mapped.file.datasync()\n",
        "                pass\n",
        "store/test_recovery.py",
    ),
    Mutant(
        "store/upkeep/recovery.py",
        "if walk.reached < self._durable:",
        "if walk.reached < self._durable - 1:",
        "store/test_recovery.py store/test_recovery_point.py store/test_flushed_offset.py",
        "both are ends of records, which are longer than a byte",
    ),
    Mutant(
        "store/upkeep/recovery.py",
        "found, known = self._queues.totals(), (self._marks.queue_count, self._marks.unit_count)",
        "found = known = self._queues.totals()",
        "store/test_recovery.py store/test_recovery_point.py",
    ),
    Mutant(
        "store/checkpoint.py",
        "min(self.physic_timestamp, self.logics_timestamp)",
        "max(self.physic_timestamp, self.logics_timestamp)",
        "store/test_checkpoint.py",
    ),
    Mutant(
        "store/checkpoint.py",
        "if self.times != marks.times:",
        "if not self.times:",
        "store/test_checkpoint.py store/test_recovery_point.py",
    ),
    # Windows, timers, messages in flight, copies
    Mutant(
        "store/deduplication.py",
        "if place is None or now_ms - (place >> _TIME_AT) >= self._window_ms:",
        "if place is None or now_ms - (place >> _TIME_AT) > self._window_ms:",
        "store/test_deduplication.py",
    ),
    Mutant(
        "store/deduplication.py",
        "newest_ms = max(newest_ms, stored_ms)",
        "newest_ms = stored_ms",
        "store/test_deduplication.py",
    ),
    Mutant(
        "store/timer/checkpoint.py",
        "return messages, min(cancels, messages[:DUE_SIZE])",
        "return messages, cancels",
        "broker/timer/test_crash.py",
    ),
    Mutant(
        "store/log_history.py",
        "if end <= log_end and holds(said)",
        "if holds(said)",
        "broker/timer/test_cut.py",
    ),
    Mutant(
        "store/log/commit_log.py",
        "elif self.store_timestamp - now_ms > BACK_MAX_MS:",
        "elif False:",
        "store/test_clock_steps.py",
    ),
    Mutant(
        "store/read/cold_reads.py",
        "        if refusal(error) is not None:\n            raise\n",
        "",
        "store/test_cold_reads.py",
    ),
    Mutant(
        "store/timer/rules.py",
        "due_ms = -(-deliver_ms // self._precision_ms) * self._precision_ms",
        "due_ms = deliver_ms // self._precision_ms * self._precision_ms",
        "store/test_timer_rules.py",
    ),
    Mutant(
        "store/timer/rules.py",
        "if deliver_ms - now_ms > self._max_delay_ms:",
        "if deliver_ms - now_ms >= self._max_delay_ms:",
        "store/test_timer_rules.py",
    ),
    Mutant(
        "store/timer/checkpoint.py",
        "        self.queue_offset = min(self.known_bases)",
        "        self.queue_offset = max(self.known_bases)",
        "store/test_timers.py store/timer/test_index.py broker/timer/test_service.py",
    ),
    Mutant(
        "store/pop/journal_file.py",
        "tear = Tear(path, read.end, not is_last or read.synced > read.end)",
        "tear = Tear(path, read.end, not is_last)",
        "broker/pop/test_journal.py",
    ),
    Mutant(
        "store/received.py",
        "                if self._log.wrote_offset == offset:\n"
        "                    _give_back(part.units)\n                raise",
        "                raise",
        "store/test_received.py",
    ),
    Mutant(
        "store/message_writer.py",
        "waits = any(inner.wait_store_ok for inner in inners[: len(places)])",
        "waits = all(inner.wait_store_ok for inner in inners[: len(places)])",
        "store/test_put_messages.py",
    ),
)
