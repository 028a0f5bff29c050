"""Families of the store: times, counts, places in the log, the pool, the index, the disk.

Source: apache/rocketmq@rocketmq-all-5.3.3 store/.../metrics/DefaultStoreMetricsConstant.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.store.stats import StoreStats


def _nothing() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class StoreSources:
    """Where the figures come from. The callables run on the loop, touch no disk."""

    stats: StoreStats
    # By mark: min, max, wrote, flushed, dispatched, indexed; byte places in the commit log.
    offsets: Callable[[], Mapping[str, int]] = _nothing
    # By state: available, in_use; buffers of the transient pool, empty without one.
    pool_buffers: Callable[[], Mapping[str, int]] = _nothing


class StoreFamilies:
    """The store's part of a scrape. Loop thread."""

    def __init__(self, sources: StoreSources, ours: FamilyMaker, storage: FamilyMaker) -> None:
        self._sources = sources
        self._ours = ours
        self._storage = storage
        self.parts: tuple[Callable[[], Iterator[Metric]], ...] = (
            self._store_times,
            self._store_counts,
            self._disk,
            self._store_offsets,
            self._recovery,
        )

    def _store_times(self) -> Iterator[Metric]:
        stats = self._sources.stats
        yield self._ours.histograms(
            "skylarkmq_store_append_duration_seconds",
            "Time to lay out and write the records of one read.",
            (),
            [((), stats.append_duration)],
        )
        yield self._ours.histograms(
            "skylarkmq_store_fsync_duration_seconds",
            "Time of each flush to the disk.",
            ("file",),
            [
                (("commitlog",), stats.fsync_commit_log),
                (("index",), stats.fsync_index),
            ],
        )
        if self._sources.pool_buffers():
            yield self._ours.histograms(
                "skylarkmq_store_commit_duration_seconds",
                "Time of each commit of the transient pool to the page cache, ASYNC_FLUSH.",
                (),
                [((), stats.commit_duration)],
            )
        yield self._ours.histograms(
            "skylarkmq_store_group_commit_size",
            "Messages acknowledged by one flush.",
            (),
            [((), stats.group_commit_size)],
        )
        yield self._ours.histograms(
            "skylarkmq_store_ack_wait_seconds",
            "Time from append to acknowledgement.",
            ("mode",),
            [(("sync",), stats.ack_wait)],
        )

    def _store_counts(self) -> Iterator[Metric]:
        ours, stats = self._ours, self._sources.stats
        yield ours.counter(
            "skylarkmq_store_appended_messages",
            "Records written, whoever wrote them: clients, retries, delays that came due.",
            stats.messages_appended,
        )
        yield ours.counter(
            "skylarkmq_store_appended_bytes", "Bytes of records written.", stats.bytes_appended
        )
        yield ours.counter(
            "skylarkmq_store_late_allocations",
            "Commit-log files that were not ready when messages needed them.",
            stats.late_allocations,
        )
        yield ours.counters(
            "skylarkmq_store_errors",
            "Failed writes and flushes of the disk; anything above 0 has ended the writing.",
            ("operation",),
            [(("write",), stats.write_errors), (("fsync",), stats.fsync_errors)],
        )
        yield ours.counter(
            "skylarkmq_store_cold_reads",
            "Reads of what memory is not taken to hold, done off the event loop.",
            stats.cold_reads,
        )
        yield ours.counter(
            "skylarkmq_store_corrupt_records",
            "Damaged records that a reader wanted and did not get; the log names each.",
            stats.corrupt_records,
        )
        yield ours.counters(
            "skylarkmq_filter_records",
            "Records that reads filtered by properties met, by what became of them: `skipped` by a "
            "bitmap without a look, else looked at and `matched` or `refused`.",
            ("result",),
            [
                (("matched",), stats.filter_matched),
                (("refused",), stats.filter_examined - stats.filter_matched),
                (("skipped",), stats.filter_skipped),
            ],
        )
        yield ours.counter(
            "skylarkmq_store_index_entries", "Keys put into the key index.", stats.index_entries
        )
        yield ours.counter(
            "skylarkmq_store_index_records_read",
            "Records read from the log again because the key index was behind.",
            stats.index_records_read,
        )

    def _disk(self) -> Iterator[Metric]:
        ours, stats = self._ours, self._sources.stats
        yield ours.gauges(
            "skylarkmq_store_disk_used_ratio",
            "Used part of the disks that hold the store, 0 to 1.",
            ("kind",),
            [
                ((kind,), percent / 100)
                for kind, percent in stats.disk_used_percent.items()
                if percent >= 0
            ],
        )
        yield ours.counters(
            "skylarkmq_store_files_deleted",
            "Files that were removed: expired, or because the disk was full.",
            ("kind",),
            [
                (("commitlog",), stats.log_files_deleted),
                (("consumequeue",), stats.queue_files_deleted),
            ],
        )
        yield ours.gauges(
            "skylarkmq_store_pool_buffers",
            "Buffers of the transient pool; none available answers sends with code 2.",
            ("state",),
            [((state,), count) for state, count in self._sources.pool_buffers().items()],
        )

    def _store_offsets(self) -> Iterator[Metric]:
        offsets = self._sources.offsets()
        yield self._ours.gauges(
            "skylarkmq_store_offset_bytes",
            "Places in the commit log.",
            ("mark",),
            [((mark,), offset) for mark, offset in offsets.items()],
        )
        if "indexed" in offsets:
            yield self._ours.gauge(
                "skylarkmq_store_index_behind_bytes",
                "Bytes of the commit log whose keys are not in the key index yet.",
                offsets["max"] - offsets["indexed"],
            )
        distances = (
            ("rocketmq_storage_size", "Bytes of the commit log.", "max", "min"),
            ("rocketmq_storage_flush_behind", "Bytes not flushed.", "max", "flushed"),
            ("rocketmq_storage_dispatch_behind", "Bytes not dispatched.", "max", "dispatched"),
        )
        for name, text, ahead, behind in distances:
            if ahead in offsets and behind in offsets:
                distance = offsets[ahead] - offsets[behind]
                yield self._storage.gauge(f"{name}_bytes", text, distance)
                yield self._storage.gauge(name, text, distance)

    def _recovery(self) -> Iterator[Metric]:
        stats = self._sources.stats
        if stats.recovery_mode:
            yield self._ours.gauges(
                "skylarkmq_store_recovery_duration_seconds",
                "How long the last recovery took.",
                ("mode",),
                [((stats.recovery_mode,), stats.recovery_duration_s)],
            )
        yield self._ours.gauges(
            "skylarkmq_store_recovery_truncated_bytes",
            "Bytes cut off by the last recovery.",
            ("kind",),
            [((kind,), size) for kind, size in sorted(stats.recovery_truncated_bytes.items())],
        )
