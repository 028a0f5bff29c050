"""A real broker in the test's own loop, on free ports and a folder of the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.store.config import StoreConfig

LOG_FILE_SIZE = 8 << 20
PATIENT = {
    "broker_fast_failure_enable": False,
    "os_page_cache_busy_time_out_mills": 3_600_000,
    "sync_flush_timeout": 3_600_000,
}
"""Where time is real: a machine that does ten other things is no reason to refuse, or to say that a
sync came late."""


def broker_config(root: Path, **changes: Any) -> BrokerConfig:
    """Free ports, small files; keys of the store and of the broker alike, in snake_case."""
    store_keys = StoreConfig.__dataclass_fields__
    store = {key: value for key, value in changes.items() if key in store_keys}
    rest = {key: value for key, value in changes.items() if key not in store_keys}
    return BrokerConfig(
        store=StoreConfig(
            **{
                "store_path_root_dir": root,
                "mapped_file_size_commit_log": LOG_FILE_SIZE,
                "mapped_file_size_consume_queue": 20_000,
                "max_hash_slot_num": 1000,
                "max_index_num": 20_000,
                **store,
            }
        ),
        **{
            "broker_name": "broker-a",
            "listen_port": 0,
            "namesrv_listen_port": 0,
            "metrics_prom_exporter_port": 0,
            **rest,
        },
    )


@asynccontextmanager
async def live_broker(
    root: Path, *, files: Files | None = None, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[BrokerController]:
    """Start a broker with its name server, and stop both cleanly afterwards."""
    config = broker_config(root, **(changes if clock else PATIENT | changes))
    controller = BrokerController(config, with_namesrv=True, files=files, clock=clock)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


def namesrv_of(controller: BrokerController) -> str:
    """`host:port` of its name server."""
    assert controller.namesrv_address is not None
    return "{}:{}".format(*controller.namesrv_address)
