"""Which of the three roads a store's messages take to the file, and the log made for it.

    transientStorePoolEnable            pool
    else commitLogWriteMode=mapped      mapped, warmed with warmMapedFileEnable
    else                                pwrite

Unlike RocketMQ, whose pool serves ASYNC_FLUSH alone, the pool goes together with SYNC_FLUSH too:
each sync commits first.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../config/MessageStoreConfig.java
"""

from __future__ import annotations

from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.commit_log import PAGE_SIZE, CommitLog, WriteRoad
from skylarkmq.store.log.flushed_offset import FlushedOffset
from skylarkmq.store.log.memory import TransientStorePool, WarmUp
from skylarkmq.store.stats import StoreStats


def write_road(config: StoreConfig) -> WriteRoad:
    """The road that the configuration asks for."""
    return "pool" if config.transient_store_pool_enable else config.commit_log_write_mode


def open_log(
    config: StoreConfig,
    files: Files,
    prepare: Worker,
    clock: Clock,
    stats: StoreStats,
    paths: StorePaths,
    delay_levels: DelayLevels,
) -> CommitLog:
    """Return the log of a store, on its road; nothing is touched yet."""
    road = write_road(config)
    file_size = config.mapped_file_size_commit_log
    pool = warm_up = None
    if road == "pool":
        pool = TransientStorePool(file_size, config.transient_store_pool_size)
    elif road == "mapped" and config.warm_maped_file_enable:
        warm_up = WarmUp(prepare, config.flush_least_pages_when_warm_maped_file * PAGE_SIZE)
    return CommitLog(
        files,
        prepare,
        clock,
        stats,
        paths.commit_log,
        file_size,
        delay_levels.due_time,
        FlushedOffset(files, paths.flushed_offset),
        write_road=road,
        pool=pool,
        fail_without_buffer=config.fast_fail_if_no_buffer_in_store_pool,
        warm_up=warm_up,
    )
