"""What each part of a store works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.stats import StoreStats


@dataclass(frozen=True, slots=True)
class Environment:
    """Configuration, disk, clock, threads and counters of one store.

    Attributes:
        fail: call it on the loop thread when the disk failed: it ends all writing for good.
    """

    config: StoreConfig
    paths: StorePaths
    files: Files
    clock: Clock
    workers: StoreWorkers
    stats: StoreStats
    fail: Callable[[BaseException], None]
