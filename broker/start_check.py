"""`--check`: what a start with this configuration would meet on this machine; nothing is changed.

A configuration that cannot be read has ended the process before. What is looked at: the accounts,
the files of TLS, the addresses, the store's folder and who has it, the room on the disk, the limits
of the process. A broker that runs with this configuration has the ports and the store, so its own
check says that they are in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.process import connections_possible, memory_size, raise_file_limit
from skylarkmq.broker.config.config_file import Loaded
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig, ServerConfig
from skylarkmq.broker.grpc.needs import bind_for_grpc, check_grpc
from skylarkmq.broker.net.addresses import (
    advertised_address,
    bind,
    bind_pair,
    in_container,
    interface_addresses,
    resolve,
    why_unreachable,
)
from skylarkmq.broker.net.exposure import why_open
from skylarkmq.broker.net.tls_context import server_contexts
from skylarkmq.broker.replication.ha.ha_server import bind_for_slaves
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.errors import StoreError, reason
from skylarkmq.common.files import DiskFiles
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.common.worker import ThreadWorker
from skylarkmq.store.folder import AbortFile, StorePaths, check_profile, is_held_here

Level = Literal["ok", "warning", "problem"]
FILES_AHEAD: Final = 2
"""Log files that a broker makes at its first start: the one that it writes to, and the next."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Level
    subject: str
    text: str


async def check_start(
    loaded: Loaded[BrokerConfig] | Loaded[NamesrvConfig], *, with_namesrv: bool = False
) -> list[Finding]:
    """Return what a start would meet. Blocks for a look at the disk and the addresses.

    Args:
        with_namesrv: of a broker that runs a name server beside it.
    """
    config, servers = loaded.config, 1
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("access control", lambda: _accounts(config)),
        ("TLS", lambda: _tls(config)),
    ]
    if isinstance(config, BrokerConfig):
        broker, servers = config, config.server_count(with_namesrv=with_namesrv)
        checks += [
            ("addresses", lambda: _broker_addresses(broker, with_namesrv)),
            ("advertised address", lambda: _advertised(broker)),
            ("store", lambda: _store(broker)),
            ("disk", lambda: _disk(broker)),
            ("memory", lambda: _memory(broker)),
        ]
    else:
        checks.append(("addresses", lambda: _binds(config, config.listen_port)))
    checks.append(("open files", lambda: _open_files(config, servers)))
    found = [_guarded(subject, check) for subject, check in checks]
    if open_to_network := why_open(config):
        found.append(Finding("warning", "exposure", open_to_network))
    if loaded.without_effect:
        what = f"these keys do nothing here: {', '.join(loaded.without_effect)}"
        found.append(Finding("warning", "configuration", what))
    return found


def _guarded(subject: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (ConfigError, StoreError, OSError) as error:
        return Finding("problem", subject, reason(error))


def _accounts(config: ServerConfig) -> Finding:
    if not config.acl_enable or config.rocketmq_home is None:
        return Finding("ok", "access control", "off")
    loop = asyncio.get_running_loop()
    worker = ThreadWorker("start-check", loop.call_soon_threadsafe)
    try:
        files = AccessFiles(config.rocketmq_home, DiskFiles(), worker, SystemClock(loop))
        files.load()
    finally:
        worker.stop()
    return Finding("ok", "access control", f"on, with {len(files.rules.accounts)} accounts")


def _tls(config: ServerConfig) -> Finding:
    mode = config.tls.tls_server_mode
    if mode != "disabled":
        server_contexts(config.tls, SystemClock(asyncio.get_running_loop()), quiet=True).load()
    return Finding("ok", "TLS", str(mode))


def _broker_addresses(config: BrokerConfig, with_namesrv: bool) -> Finding:
    with contextlib.ExitStack() as bound:
        for each in bind_pair(config.bind_address, config.listen_port):
            bound.enter_context(contextlib.closing(each))
        if not (config.store.is_slave or config.is_replica) and config.listen_port:
            bound.enter_context(contextlib.closing(bind_for_slaves(config)))
        if config.grpc_listen_port is not None:
            check_grpc(config)
            bound.enter_context(contextlib.closing(bind_for_grpc(config, config.grpc_listen_port)))
        if config.metrics_prom_exporter_port is not None:
            bind(config.metrics_host, config.metrics_prom_exporter_port).close()
        if with_namesrv:
            return _binds(config, config.namesrv_listen_port)
    return Finding("ok", "addresses", "free")


def _binds(config: ServerConfig, port: int) -> Finding:
    bind(config.bind_address, port).close()
    return Finding("ok", "addresses", "free")


def _advertised(config: BrokerConfig) -> Finding:
    host = advertised_address(config.broker_ip1, config.bind_address, interface_addresses())
    if doubt := why_unreachable(host, config.bind_address, contained=in_container()):
        return Finding("warning", "advertised address", doubt)
    return Finding("ok", "advertised address", f"{host} ({resolve(host)})")


def _store(config: BrokerConfig) -> Finding:
    paths = StorePaths(config.store.store_path_root_dir, config.store.store_path_commit_log)
    files = ReadOnlyFiles()
    existing = _existing(paths.root)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(existing))
    if not paths.root.exists():
        return Finding("ok", "store", f"{paths.root} will be made")
    if is_held_here(paths) or files.lock_holder(paths.lock) is not None:
        return Finding("problem", "store", f"{paths.root} is in use by a broker")
    check_profile(files, paths.profile, config.store.file_sizes)
    if AbortFile(files, paths).exists():
        text = f"{paths.root} was not stopped cleanly: the start recovers it from its log"
        return Finding("warning", "store", text)
    return Finding("ok", "store", str(paths.root))


def _disk(config: BrokerConfig) -> Finding:
    store = config.store
    paths = StorePaths(store.store_path_root_dir, store.store_path_commit_log)
    folder = _existing(paths.commit_log)
    space = DiskFiles().space(folder)
    used = 100 * space.used // max(1, space.used + space.free)
    text = f"{folder}: {used} % used, {space.free >> 20} MiB free"
    needed = FILES_AHEAD * store.mapped_file_size_commit_log
    if not paths.commit_log.exists() and space.free < needed:
        cure = "free some, or make the files smaller (mappedFileSizeCommitLog)"
        text += f"; a new store takes {needed >> 20} MiB: {cure}"
        return Finding("problem", "disk", text)
    if used >= store.disk_max_used_space_ratio:
        text += f"; from {store.disk_max_used_space_ratio} % on old messages are deleted early"
        return Finding("warning", "disk", f"{text} (diskMaxUsedSpaceRatio)")
    return Finding("ok", "disk", text)


def _memory(config: BrokerConfig) -> Finding:
    store, size = config.store, memory_size() // config.brokers
    pool = store.transient_store_pool_size * store.mapped_file_size_commit_log
    if store.transient_store_pool_enable and 2 * pool > size:
        cure = "lower transientStorePoolSize or mappedFileSizeCommitLog"
        text = f"the transient pool takes {pool >> 20} MiB, more than half of {size >> 20}: {cure}"
        return Finding("problem", "memory", text)
    return Finding("ok", "memory", f"{size >> 20} MiB")


def _open_files(config: ServerConfig, servers: int) -> Finding:
    limit = raise_file_limit()
    possible = connections_possible(config.max_connections, limit, servers)
    if possible < config.max_connections:
        text = f"{limit} allow {possible} connections, maxConnections is {config.max_connections}"
        return Finding("warning", "open files", f"{text}: raise the limit (ulimit -n)")
    return Finding("ok", "open files", str(limit))


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())
