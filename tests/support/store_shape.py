"""How the store of a simulated machine is laid out, and what is switched on in it."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from skylarkmq.store.config import StoreConfig
from tests.support.crash_states import Names

MAX_BODY_SIZE = 6000
SLOT_COUNT, ITEM_COUNT = 64, 128
ROADS: dict[str, dict[str, Any]] = {
    "pwrite": {},
    "mapped": {"commit_log_write_mode": "mapped", "warm_maped_file_enable": True},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
}
SYNC_SHARE, CLEANED_SHARE = 0.6, 0.25
DRAWN_ROADS: tuple[str, ...] = ("pwrite", "pwrite", "mapped", "pool")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a store is laid out and how its disk treats names."""

    sync: bool = True
    log_file_size: int = 32768
    queue_file_size: int = 400
    names: Names = Names.STRICT
    queue_count: int = 2
    road: str = "pwrite"
    keyed: bool = False  # messages have keys
    cleaning: bool = False  # the disk fills up, and files become old

    @classmethod
    def draw(cls, rng: Random) -> Shape:
        """Choose one."""
        return cls(
            sync=rng.random() < SYNC_SHARE,
            log_file_size=rng.choice((16384, 32768, 65536)),
            queue_file_size=rng.choice((100, 400, 2000)),
            names=rng.choice((Names.STRICT, Names.ORDERED)),
            queue_count=rng.choice((1, 2, 2)),
            road=rng.choice(DRAWN_ROADS),
            keyed=rng.random() < 0.5,
            cleaning=rng.random() < CLEANED_SHARE,
        )

    def config(self, root: Path) -> StoreConfig:
        """The store's configuration, its log files smaller than a configuration may ask for."""
        config = copy(_checked_config(self))  # the check takes longer than a small recovery
        object.__setattr__(config, "store_path_root_dir", root)
        object.__setattr__(config, "mapped_file_size_commit_log", self.log_file_size)
        return config


@cache
def _checked_config(shape: Shape) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=Path("/nowhere"),
        mapped_file_size_commit_log=1 << 20,
        max_message_size=MAX_BODY_SIZE,
        mapped_file_size_consume_queue=shape.queue_file_size,
        max_hash_slot_num=SLOT_COUNT,
        max_index_num=ITEM_COUNT,
        flush_disk_type="SYNC_FLUSH" if shape.sync else "ASYNC_FLUSH",
        delete_when=";".join(map(str, range(24))),
        **ROADS[shape.road],
    )
