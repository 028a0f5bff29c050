"""Configuration of the store: RocketMQ's keys in snake_case, and a few of our own.

Every key that RocketMQ documents for its store is here; the type of each also says what it does.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../config/MessageStoreConfig.java
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from skylarkmq.common.config_fields import (
    ABOVE_ZERO,
    INT_MAX,
    Bytes,
    ConfigError,
    Count,
    Effect,
    Interval,
    Limits,
    Live,
    Long,
    Milliseconds,
    NotBuilt,
    Percent,
    Port,
    Positive,
    T,
    Unused,
    check_values,
)
from skylarkmq.protocol.record import MIN_BLANK_SIZE
from skylarkmq.store.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from skylarkmq.store.index.file import IndexShape
from skylarkmq.store.queue.consume_queue import UNIT_SIZE

FlushDiskType = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
BrokerRole = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
HaCopyFrom = Literal["lastFile", "start"]
CommitLogWriteMode = Literal["pwrite", "mapped"]

TimerPrecision = Annotated[int, Limits(10, 60_000)]
TimerDelay = Annotated[int, Limits(1, 366 * 86_400)]

_ASYNC: Final = {"flushDiskType": "ASYNC_FLUSH"}
_MAPPED: Final = {"transientStorePoolEnable": False, "commitLogWriteMode": "mapped"}
OfAsyncFlush = Annotated[T, Effect(needs=_ASYNC)]
OfFlushedPages = Annotated[T, Effect(needs={**_ASYNC, "flushCommitLogLeastPages": ABOVE_ZERO})]
OfSyncFlush = Annotated[T, Effect(needs={"flushDiskType": "SYNC_FLUSH"})]
OfPool = Annotated[T, Effect(needs={"transientStorePoolEnable": True})]
OfAsyncPool = Annotated[T, Effect(needs={"transientStorePoolEnable": True, **_ASYNC})]
WithoutPool = Annotated[T, Effect(needs={"transientStorePoolEnable": False})]
OfMapped = Annotated[T, Effect(needs=_MAPPED)]
OfWarmUp = Annotated[T, Effect(needs={**_MAPPED, "warmMapedFileEnable": True})]
OfTimers = Annotated[T, Effect(needs={"timerWheelEnable": True})]
_SLAVE: Final = {"brokerRole": "SLAVE"}
OfSlave = Annotated[T, Effect(needs=_SLAVE)]
OfLiveSlave = Annotated[T, Effect(is_live=True, needs=_SLAVE)]
OfSyncMaster = Annotated[T, Effect(needs={"brokerRole": "SYNC_MASTER"})]
NoLightQueues = Annotated[T, Effect(not_built="light queues are not supported yet; remove the key")]

RECORD_OVERHEAD: Final = 64 * 1024
"""Bytes that a record may have beyond its body: fixed fields, topic and properties."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Values of the store's keys, checked. Sizes are in bytes and intervals in milliseconds."""

    # Where the files lie
    store_path_root_dir: Path  # the loader's default is $HOME/store
    store_path_commit_log: Path | None = None  # None: commitlog under the root; one folder

    # Sizes
    mapped_file_size_commit_log: Bytes = 1_073_741_824
    mapped_file_size_consume_queue: Bytes = 6_000_000  # rounded up to a multiple of 20
    enable_consume_queue_ext: Unused[bool] = False  # extensions are read where they are
    mapped_file_size_consume_queue_ext: Unused[Bytes] = 50_331_648
    bit_map_length_consume_queue_ext: Unused[Count] = 64  # bits
    max_message_size: Bytes = 4_194_304  # of a body

    # Flushing
    flush_disk_type: FlushDiskType = "ASYNC_FLUSH"
    flush_interval_commit_log: Interval = 500  # ms, and the loss window of ASYNC_FLUSH
    flush_commit_log_timed: OfAsyncFlush[bool] = True
    # Unlike RocketMQ, which waits for 4 dirty pages and so has a window of up to 10 s.
    flush_commit_log_least_pages: OfAsyncFlush[Count] = 0  # pages of 4 KiB
    flush_commit_log_thorough_interval: OfFlushedPages[Interval] = 10_000  # ms
    commit_interval_commit_log: OfAsyncPool[Interval] = 200  # ms, of the transient pool
    commit_commit_log_least_pages: OfAsyncPool[Count] = 4  # pages of 4 KiB
    commit_commit_log_thorough_interval: OfAsyncPool[Interval] = 200  # ms
    flush_interval_consume_queue: Interval = 1000  # ms
    flush_consume_queue_least_pages: Count = 2  # pages of 4 KiB
    flush_consume_queue_thorough_interval: Interval = 60_000  # ms
    sync_flush_timeout: OfSyncFlush[Interval] = 5000  # ms until FLUSH_DISK_TIMEOUT
    slave_timeout: Interval = 3000  # ms until FLUSH_SLAVE_TIMEOUT; of elected masters a refusal

    # Ways to write the log
    transient_store_pool_enable: bool = False
    transient_store_pool_size: OfPool[Positive] = 5  # buffers of a log file's size
    fast_fail_if_no_buffer_in_store_pool: OfPool[bool] = False
    warm_maped_file_enable: OfMapped[bool] = False
    flush_least_pages_when_warm_maped_file: OfWarmUp[Positive] = 4096  # pages of 4 KiB
    use_reentrant_lock_when_put_message: Unused[bool] = True
    os_page_cache_busy_time_out_mills: Milliseconds = 1000  # ms

    # Cleaning
    delete_when: Live[str] = "04"  # hours of the day, separated by `;`
    file_reserved_time: Live[Count] = 72  # hours
    disk_max_used_space_ratio: Live[Percent] = 75
    disk_space_clean_forcibly_ratio: Live[Percent] = 85
    disk_space_warning_level_ratio: Live[Percent] = 90
    clean_file_forcibly_enable: Live[bool] = True
    clean_resource_interval: Interval = 10_000  # ms
    delete_commit_log_files_interval: Milliseconds = 100  # ms between two files
    delete_consume_queue_files_interval: Milliseconds = 100  # ms between two files
    destroy_maped_file_interval_forcibly: Unused[Milliseconds] = 120_000  # ms
    redelete_hanged_file_interval: Milliseconds = 120_000  # ms

    # Recovery
    check_crc_on_recover: bool = True
    duplication_enable: NotBuilt[bool] = False

    # Reading
    max_transfer_bytes_on_message_in_memory: Live[Bytes] = 262_144
    max_transfer_count_on_message_in_memory: Live[Positive] = 32
    max_transfer_bytes_on_message_in_disk: Live[Bytes] = 65_536
    max_transfer_count_on_message_in_disk: Live[Positive] = 8
    access_message_in_memory_max_ratio: Percent = (
        40  # percent of the container's or machine's memory
    )
    disk_fall_recorded: Unused[bool] = True

    # Key index
    message_index_enable: bool = True
    message_index_safe: Unused[bool] = False
    max_hash_slot_num: Positive = 5_000_000
    max_index_num: Positive = 20_000_000
    max_msgs_num_batch: Positive = 64  # answers of a query by key
    default_query_max_num: Live[Positive] = 32

    # Delayed messages
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    flush_delay_offset_interval: Interval = 10_000  # ms
    enable_schedule_async_deliver: Unused[bool] = False
    timer_wheel_enable: bool = True  # delays that a message names itself, as in RocketMQ 5
    timer_precision_ms: OfTimers[TimerPrecision] = 1000  # ms, to which due times are rounded up
    timer_max_delay_sec: OfTimers[TimerDelay] = 259_200  # s
    timer_flush_interval_ms: OfTimers[Interval] = 1000  # ms, the window of repeats after a crash

    # Replication
    broker_role: BrokerRole = "ASYNC_MASTER"
    ha_listen_port: Port | None = None  # where slaves connect; None: listenPort + 1
    ha_master_address: OfSlave[str | None] = None  # `host:port`; None: as name servers say
    ha_send_heartbeat_interval: Interval = 5000  # ms
    ha_housekeeping_interval: Interval = 20_000  # ms, of silence that ends a connection
    ha_transfer_batch_size: Bytes = 32_768  # bytes of the log, sent at once
    ha_slave_fallbehind_max: OfSyncMaster[Long] = 268_435_456  # bytes that a slave may be behind
    ha_copy_from: OfSlave[HaCopyFrom] = "lastFile"  # ours; where a new slave begins
    offset_check_in_slave: OfLiveSlave[bool] = False  # wrong offsets of pulls are put right there

    # Many light queues
    enable_lmq: NoLightQueues[bool] = False
    enable_multi_dispatch: NoLightQueues[bool] = False
    max_lmq_consume_queue_num: Unused[Count] = 20_000

    # Ours
    commit_log_write_mode: WithoutPool[CommitLogWriteMode] = "pwrite"
    store_failure_exit: bool = True  # end the process with code 74 after a failed write or sync

    def __post_init__(self) -> None:
        """Check all values and round the queue's file size up.

        Raises:
            ConfigError: a value is outside of its limits, or two do not go together.
        """
        check_values(self)
        if "," in str(self.store_path_commit_log or ""):
            raise ConfigError(
                "storePathCommitLog",
                self.store_path_commit_log,
                "several folders are not supported yet; name one",
            )
        units = -(-self.mapped_file_size_consume_queue // UNIT_SIZE)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * UNIT_SIZE)
        # A record never spans two files, and a bigger one would never find a place.
        smallest = self.max_message_size + RECORD_OVERHEAD + MIN_BLANK_SIZE
        if self.mapped_file_size_commit_log < smallest:
            raise ConfigError(
                "mappedFileSizeCommitLog",
                self.mapped_file_size_commit_log,
                f"use at least {smallest}, the room that one message of "
                f"maxMessageSize={self.max_message_size} can need, or lower maxMessageSize",
            )
        if self.transient_store_pool_enable and self.transient_store_pool_size < 2:
            raise ConfigError(
                "transientStorePoolSize",
                self.transient_store_pool_size,
                "use 2 or more: one buffer is always in use, and none left refuses messages",
            )
        self._check_index()
        self._check_cleaning()
        self._check_replication()
        try:
            DelayLevels(self.message_delay_level)
        except ValueError as error:
            raise ConfigError("messageDelayLevel", self.message_delay_level, str(error)) from error

    @property
    def is_slave(self) -> bool:
        """Whether the log is a master's, and nothing but what comes from there is stored."""
        return self.broker_role == "SLAVE"

    @property
    def file_sizes(self) -> dict[str, int]:
        """The sizes that a store is written with for good, by key."""
        return {
            "mappedFileSizeCommitLog": self.mapped_file_size_commit_log,
            "mappedFileSizeConsumeQueue": self.mapped_file_size_consume_queue,
            "maxHashSlotNum": self.max_hash_slot_num,
            "maxIndexNum": self.max_index_num,
        }

    def _check_index(self) -> None:
        # Item 0 is never used, so a file of one item would be full from the start, and the next.
        if self.max_index_num < 2:
            raise ConfigError("maxIndexNum", self.max_index_num, "use 2 or more")
        shape = IndexShape(self.max_hash_slot_num, self.max_index_num)
        size = shape.file_size  # an int in RocketMQ
        if size > INT_MAX:
            raise ConfigError(
                "maxIndexNum",
                self.max_index_num,
                f"an index file would have {size} bytes with maxHashSlotNum="
                f"{self.max_hash_slot_num}, and {INT_MAX} are the most: lower one of the two",
            )

    def _check_cleaning(self) -> None:
        try:
            delete_hours(self.delete_when)
        except ValueError as error:
            raise ConfigError("deleteWhen", self.delete_when, str(error)) from error
        if self.disk_space_clean_forcibly_ratio > self.disk_space_warning_level_ratio:
            raise ConfigError(
                "diskSpaceCleanForciblyRatio",
                self.disk_space_clean_forcibly_ratio,
                f"use at most diskSpaceWarningLevelRatio={self.disk_space_warning_level_ratio}, "
                "or messages are refused before room is made",
            )

    def _check_replication(self) -> None:
        if self.ha_housekeeping_interval <= self.ha_send_heartbeat_interval:
            raise ConfigError(
                "haHousekeepingInterval",
                self.ha_housekeeping_interval,
                f"use more than haSendHeartbeatInterval={self.ha_send_heartbeat_interval}, or a "
                "connection without news would be closed before its next heartbeat",
            )


def delete_hours(text: str) -> frozenset[int]:
    """Return the hours of the day that `deleteWhen` names.

    Raises:
        ValueError: one of them is none.
    """
    words = [word.strip() for word in text.split(";") if word.strip()]
    hours = {int(word) if word.isascii() and word.isdigit() else -1 for word in words}
    if not hours or not hours <= set(range(24)):
        raise ValueError("use hours from 00 to 23, separated by `;`")
    return frozenset(hours)
