"""A real store over a disk, workers and a clock that the test owns."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store import message_writer
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.environment import Environment
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.message_writer import check_message
from skylarkmq.store.results import (
    GetMessageStatus,
    MessageInner,
    PutMessageResult,
    PutMessageStatus,
)
from skylarkmq.store.stats import StoreStats
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.workers import manual_store_workers

HOST = HostAddress("127.0.0.1", 10911).pack()
BORN = HostAddress("192.0.2.7", 40000).pack()
LOG_SIZE = 128 * 1024
QUEUE_SIZE = 2000
MESSAGE_MAX = 32 * 1024


def store_config(root: Path, **changes: Any) -> StoreConfig:
    """Small files, and a message cap that fits them."""
    values: dict[str, Any] = {
        "mapped_file_size_commit_log": LOG_SIZE,
        "mapped_file_size_consume_queue": QUEUE_SIZE,
        "max_message_size": MESSAGE_MAX,
        "max_hash_slot_num": 100,
        "max_index_num": 500,
        "disk_space_warning_level_ratio": 100,  # a disk may be as full as a test wants it
        "disk_space_clean_forcibly_ratio": 100,
        **changes,
    }
    return StoreConfig(store_path_root_dir=root, **values)


def environment(disk: Files, clock: Clock, workers: StoreWorkers, **changes: Any) -> Environment:
    """What a part of a store works with, for tests of one part; files may be as small as wanted."""
    root = changes.pop("root", None) or cast(CrashDisk, disk).root
    fail = changes.pop("fail", lambda error: pytest.fail(f"the disk failed: {error}"))
    log_size = changes.pop("mapped_file_size_commit_log", LOG_SIZE)
    config = store_config(root, **changes)
    object.__setattr__(config, "mapped_file_size_commit_log", log_size)  # less than one message
    return Environment(config, StorePaths(root), disk, clock, workers, StoreStats(), fail)


def inner(
    topic: str = "T", queue_id: int = 0, body: bytes = b"body", **changes: Any
) -> MessageInner:
    """A message ready to be stored."""
    values: dict[str, Any] = {
        "properties": b"",
        "born_host": BORN,
        "store_host": HOST,
        "born_timestamp": 1_700_000_000_000,
        **changes,
    }
    return MessageInner(topic, queue_id, body, **values)


def refuse_bodies(patch: pytest.MonkeyPatch, size_max: int) -> None:
    """Let the store refuse messages with larger bodies, copies of stored ones too."""

    def check(message: MessageInner, config: StoreConfig) -> PutMessageResult | None:
        if len(message.body) > size_max:
            return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why="refused by the test")
        return check_message(message, config)

    patch.setattr(message_writer, "check_message", check)


def confirm_alone(store: MessageStore) -> Callable[[], None]:
    """Confirm what is stored, as a replica alone in its set does, until the result is called."""

    def grown(stored: int) -> None:
        store.writer.on_stored = grown
        store.confirm(stored)

    def end() -> None:
        store.writer.on_stored = None

    grown(store.commit_log.stored_offset)
    return end


class StoreRig:
    """A store that only moves when the test says so."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        self.files = files or CrashDisk()
        self.clock = ManualClock()
        self.workers = manual_store_workers()
        self.store = MessageStore(
            store_config(self.files.root, **config), self.files, self.clock, self.workers.workers
        )
        # Here a sync lasts until a test ends it, which says nothing about the disk.
        self.store.writer._flush.slow_sync_s = math.inf
        self.results: list[PutMessageResult] = []

    def start(self) -> StoreRig:
        self.store.load()
        self.store.start()
        return self

    def put(self, *args: Any, **changes: Any) -> PutMessageResult | None:
        """Store one message; its result when it is already there."""
        before = len(self.results)
        self.store.put_message(inner(*args, **changes), self.results.append)
        return self.results[before] if len(self.results) > before else None

    def stop(self) -> None:
        """A clean stop."""
        self.store.stop_writing()
        self.workers.run_all()
        self.store.close()


def messages_of(store: MessageStore, topic: str, queue_id: int) -> list[MessageExt]:
    """Return all messages of a queue that are still there."""
    found: list[MessageExt] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.get_message(topic, queue_id, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += decode_messages(b"".join(result.views))
        offset = result.next_begin_offset
