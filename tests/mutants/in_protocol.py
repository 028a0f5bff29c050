"""Lines of the kernel's twins, the protocol, the common things and the remoting."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MUTANTS: Final = (
    # Kernel
    Mutant(
        "kernel/__init__.py",
        'if os.environ.get(PURE_VARIABLE) == "1":',
        'if os.environ.get(PURE_VARIABLE) == "0":',
        "kernel/test_roads.py",
    ),
    # Protocol
    Mutant(
        "protocol/frame.py",
        "if length > length_max or header_size + 4 > length or frame_end > end:",
        "if length > length_max or frame_end > end:",
        "protocol/test_frame.py kernel/test_frames.py",
    ),
    Mutant(
        "protocol/frame.py",
        "        if wanted_size <= PREFIX_SIZE:",
        "        if wanted_size < PREFIX_SIZE:",
        "protocol/test_frame.py",
    ),
    Mutant(
        "protocol/frame.py",
        "missing = wanted_size - filled",
        "missing = wanted_size - filled - 1",
        "protocol/test_frame.py",
    ),
    Mutant(
        "protocol/header_rocketmq.py",
        "if block_size < 0 or block_start + block_size > size:",
        "if block_size < 0:",
        "protocol/test_header_rocketmq.py",
    ),
    Mutant(
        "protocol/header_rocketmq.py",
        "if code not in codes or flag & RESPONSE_FLAG or remark_size or end > len(header):",
        "if code not in codes or remark_size or end > len(header):",
        "protocol/test_header_rocketmq.py",
    ),
    Mutant(
        "protocol/properties.py",
        "if position == 0 or data[position - 1] == _PROPERTY_BYTE:",
        "if True:",
        "protocol/test_properties.py",
    ),
    Mutant(
        "protocol/properties.py",
        "    if inner[-1] == _PROPERTY_BYTE:\n        return inner + batch_level\n",
        "",
        "protocol/test_properties.py",
    ),
    Mutant(
        "protocol/record.py",
        "return size if body_crc(buffer[start:body_end]) == crc else 0",
        "return size",
        "store/test_message_reader.py store/test_cold_reads.py",
    ),
    Mutant(
        "protocol/record.py",
        "        or at_log != physical_offset\n",
        "",
        "broker/test_delayed_message.py",
    ),
    Mutant(
        "protocol/batch.py",
        "if body_size < 0 or properties_position > position or position > end:",
        "if properties_position > position or position > end:",
        "protocol/test_batch.py",
    ),
    Mutant(
        "protocol/batch.py",
        "if position > end - MIN_BATCH_ITEM_SIZE:",
        "if position >= end - MIN_BATCH_ITEM_SIZE:",
        "broker/processor/test_send_messages.py",
    ),
    Mutant(
        "protocol/tags_code.py",
        "    code = _fold(topic_prefix_code(topic), key)\n"
        "    return code if code < _SIGN else (_MODULUS - code) & ~_SIGN",
        "    code = _fold(topic_prefix_code(topic), key)\n    return code & ~_SIGN",
        "protocol/test_tags_code.py",
    ),
    Mutant(
        "protocol/message_id.py",
        "if now_ms != self._last_ms or not low:",
        "if now_ms != self._last_ms:",
        "protocol/test_message_id.py",
    ),
    Mutant(
        "protocol/pop.py",
        "if len(bits) * 8 > BITS_MAX:",
        "if len(bits) > BITS_MAX:",
        "protocol/test_pop.py",
    ),
    Mutant(
        "protocol/lenient_json.py",
        "        if self._nodes_left < 0:",
        "        if self._nodes_left < -1:",
        "protocol/test_lenient_json.py",
    ),
    Mutant(
        "protocol/http2/hpack.py",
        "            if is_long and len(fields) > self._count_max:\n"
        "                break  # too large, whatever follows\n",
        "",
        "protocol/http2/test_hpack.py",
    ),
    Mutant(
        "protocol/http2/hpack.py",
        "    def _evict(self) -> None:\n        while self._added_size > self._table_size:",
        "    def _evict(self) -> None:\n        while self._added_size >= self._table_size:",
        "protocol/http2/test_hpack.py",
    ),
    Mutant(
        "protocol/http2/frames.py",
        "    if size < _LENGTH_MAX:",
        "    if size <= _LENGTH_MAX:",
        "protocol/http2/test_hpack.py",
    ),
    # Common
    Mutant(
        "common/sidecar.py",
        "if magic != MAGIC or found_kind != kind:",
        "if magic != MAGIC:",
        "store/test_sidecar.py",
    ),
    Mutant(
        "common/table_file.py",
        "if error is not None and self._on_failure is not None and refusal(error) is None:",
        "if error is not None and self._on_failure is not None:",
        "broker/test_disk_failure.py",
    ),
    Mutant(
        "common/files.py",
        "            _datasync(fd)\n        except OSError as error:\n"
        '            raise _named(error, "write", temporary) from error',
        "            pass\n        except OSError as error:\n"
        '            raise _named(error, "write", temporary) from error',
        "store/test_files.py",
    ),
    Mutant(
        "common/files.py",
        "        os.replace(temporary, path)\n        self.sync_folder(path.parent)\n\n"
        "    def replace_secret",
        "        os.replace(temporary, path)\n\n    def replace_secret",
        "store/test_files.py",
    ),
    Mutant(
        "common/files.py",
        "if written != len(data):",
        "if not written:",
        "store/test_files.py store/test_append.py",
    ),
    Mutant(
        "common/files.py",
        "                path.rmdir()  # or the next call takes its name for durable",
        "                pass",
        "store/test_files.py",
    ),
    Mutant(
        "common/refusal.py",
        "return OSError(errno.EIO, f",
        "return OSError(error.errno, f",
        "store/test_refusal.py store/test_queue_files.py",
    ),
    Mutant(
        "store/upkeep/queue_cleaner.py",
        "if refusal(error) is not None:",
        "if error is None:",
        "store/test_queue_cleaner.py",
    ),
    Mutant(
        "common/histogram.py",
        "self.counts[bisect_left(self.bounds, value)] += count",
        "self.counts[bisect_left(self.bounds, value)] += 1",
        "store/test_stats.py store/test_release_queue.py",
    ),
    # Remoting
    Mutant(
        "remoting/pending_calls.py",
        "if waiter.deadline_s <= now_s]",
        "if waiter.deadline_s < now_s - 0.5]",
        "remoting/test_connection.py",
    ),
    Mutant(
        "remoting/pending_calls.py",
        "            self._arm(min(waiter.deadline_s for waiter in self._pending.values()))",
        "            self._arm(max(waiter.deadline_s for waiter in self._pending.values()))",
        "remoting/test_connection.py",
    ),
    Mutant(
        "remoting/connection.py",
        "elif now_s - self._silent_since_s >= SILENCE_MAX_S:",
        "elif now_s - self._silent_since_s >= 10 * SILENCE_MAX_S:",
        "remoting/test_connection.py remoting/test_connection_limits.py",
    ),
    Mutant(
        "remoting/connection.py",
        "        self._unsent_size = 0\n        paused, self._writable = self._writable, None",
        "        paused, self._writable = self._writable, None",
        "remoting/test_connection.py remoting/test_connection_limits.py",
    ),
    Mutant(
        "remoting/waiting.py",
        "if expired and task.uncancel() <= cancelling:",
        "if expired:",
        "client/test_clock.py client/test_cancel_every_call.py",
    ),
)
