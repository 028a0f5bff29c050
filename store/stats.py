"""What the store counts: plain integers and small histograms, owned by the loop thread.

The hot path adds to attributes and lists, nothing more: no lock, no label lookup, no callback.
A scrape or a report reads the figures on the same thread. A worker's times are
observed in its `done` callback, never on its own thread.
"""

from __future__ import annotations

from typing import Final

from skylarkmq.common.files import DiskSpace
from skylarkmq.common.histogram import LATENCY_BOUNDS, Histogram

# An append takes tens of microseconds, so its scale begins lower.
APPEND_BOUNDS: Final = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, *LATENCY_BOUNDS)
# Why producers were told to wait: an append was slow, or the transient pool had no buffer.
BUSY_CAUSES: Final = ("page_cache_busy", "pool_exhausted")
GROUP_COMMIT_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class StoreStats:
    """Counters of one store since it was opened. Loop thread.

    Its size is one idea: an attribute is one measure, and none depends on another.
    """

    def __init__(self) -> None:
        self.messages_appended = 0
        self.bytes_appended = 0  # whole records
        self.cold_reads = 0  # reads that were done off the loop
        self.corrupt_records = 0  # damaged ones that a reader wanted and did not get
        self.filter_examined = 0  # records whose properties a filter looked at
        self.filter_matched = 0  # records that filtered reads handed out
        self.busy_refusals: dict[str, int] = dict.fromkeys(BUSY_CAUSES, 0)
        self.append_duration = Histogram(APPEND_BOUNDS)  # s, one value a batch
        self.commit_duration = Histogram()  # s, from the transient pool to the file, ASYNC_FLUSH
        self.ack_wait = Histogram()  # s, from append to sync or confirmation, where acks wait
        self.group_commit_size = Histogram(GROUP_COMMIT_BOUNDS)  # messages made durable by one sync
        self.fsync_commit_log = Histogram()  # s
        self.fsync_index = Histogram()  # s, the key index before a checkpoint
        self.clock_steps = 0  # times that store times went back with the clock
        self.fsync_errors = 0
        self.write_errors = 0
        self.index_entries = 0  # keys put into the index
        self.index_records_read = 0  # records read from the log again because the index was behind
        self.late_allocations = 0  # log files that were not ready when they were needed
        self.log_files_deleted = 0  # expired ones, and those that a full disk cost
        self.queue_files_deleted = 0  # expired ones of queues and their extensions
        # Partition ("commitlog", "consumequeue") -> percent of it that is used; -1 for unknown.
        self.disk_used_percent: dict[str, int] = {}
        self.disk_space: dict[str, DiskSpace] = {}  # the same partitions, those that are known
        self.recovery_mode = ""  # "clean" or "abnormal"; empty until a recovery has run
        self.recovery_duration_s = 0.0
        self.recovery_truncated_bytes: dict[str, int] = {}  # file kind -> bytes cut off
