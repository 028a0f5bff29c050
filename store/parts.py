"""Parts of a store that take much of its configuration."""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.store.checkpoint import PointTracker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.queue.topic_removal import TopicRemoval

OnFailure = Callable[[BaseException], None]


def queue_table(
    config: StoreConfig,
    files: Files,
    workers: StoreWorkers,
    paths: StorePaths,
    on_failure: OnFailure,
) -> QueueTable:
    """The consume queues of a store."""
    return QueueTable(
        files,
        workers.queues,
        paths,
        config.mapped_file_size_consume_queue,
        on_failure,
        least_pages=config.flush_consume_queue_least_pages,
        ext_file_size=config.mapped_file_size_consume_queue_ext,
        write_ext=config.enable_consume_queue_ext,
    )


def topic_removal(
    files: Files,
    workers: StoreWorkers,
    paths: StorePaths,
    commit_log: CommitLog,
    queues: QueueTable,
    points: PointTracker,
    on_failure: OnFailure,
) -> TopicRemoval:
    """What removes topics from a store."""
    writer = TableWriter(files, workers.tables, on_failure)
    parts = paths, commit_log, queues, points, on_failure
    return TopicRemoval(files, workers.queues, writer, *parts)
