"""Wires a name server: its tables, its processor and the server that clients reach it by.

It keeps its KV configuration in `kvConfigPath`, one beside a broker in the broker's store, and
writes it on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skylarkmq.broker.access import rights
from skylarkmq.broker.access.audit import Audit
from skylarkmq.broker.access.control import AccessControl
from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.namesrv.kv_config import KVConfig
from skylarkmq.broker.namesrv.processor import NamesrvProcessor
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import ConnectionMaker, PeerLimits, RemotingServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.net.tls_context import server_contexts
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.common.table_file import TableWriter
from skylarkmq.common.worker import ThreadWorker
from skylarkmq.store.folder import StorePaths

_NAME: Final = "namesrv"
"""In lines of the audit log."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the broker in its process lends to a name server.

    Attributes:
        files: the disk of the store.
        disk_failed: called on the name server's loop when the disk has failed.
        access_files: gives rules, whole ones in place of others, on the broker's loop; None: there
            is no access control.
    """

    files: Files
    disk_failed: Callable[[BaseException], object]
    access_files: AccessFiles | None


class NamesrvController:
    """A name server, alone in its process or beside a broker. Loop thread, but for the making.

    Attributes:
        kv: texts that are kept for others; in memory alone until a file is opened for it.
        routes: the tables; a broker in this process registers there without a connection.
        config: what it was made with.
        listen_address: host and port, the port as it really is once `start` has returned.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        clock: Clock,
        connect: ConnectionMaker = Connection,
        beside: Beside | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            connect: makes what stands for a peer that has connected.
            beside: the broker in this process; None: there is none.
        """
        self._contexts = server_contexts(config.tls, clock, quiet=beside is not None)
        self.tls = TlsGate(config.tls.tls_server_mode, self._contexts, clock)
        self.routes = RouteInfoManager(clock)
        self.kv = KVConfig()
        self._worker: ThreadWorker | None = None
        self.listen_address: tuple[str, int] = (config.bind_address, config.listen_port)
        self.config = config
        stats = BrokerStats()
        processor = NamesrvProcessor(self.routes, self.kv, config)
        self._clock = clock
        self._broker = beside
        self._files: Files = _FolderMaker() if beside is None else beside.files
        self._own_access_files: AccessFiles | None = None
        self._access: AccessControl | None = None
        if config.acl_enable:
            self._access = AccessControl(rights.NAME_SERVER, stats)
            if beside is not None and beside.access_files is not None:
                beside.access_files.serve(self._access)
        self._router = Router(processor.handlers(), stats, clock, access=self._access)
        self._server = RemotingServer(
            self._router,
            clock,
            stats,
            limits=PeerLimits(
                config.server_channel_max_idle_time_seconds,
                config.max_connections,
                config.connections_per_address,
            ),
            connect=connect,
        )

    @classmethod
    def beside(
        cls, config: BrokerConfig, clock: Clock, connect: ConnectionMaker, broker: Beside
    ) -> NamesrvController:
        """Return the name server that a broker of this configuration brings along."""
        return cls(
            NamesrvConfig(
                tls=config.tls,
                bind_address=config.bind_address,
                listen_port=config.namesrv_listen_port,
                max_connections=config.max_connections,
                max_connections_per_address=config.max_connections_per_address,
                server_channel_max_idle_time_seconds=config.server_channel_max_idle_time_seconds,
                order_message_enable=config.order_message_enable,
                kv_config_path=StorePaths(config.store.store_path_root_dir).own / "kvConfig.json",
                acl_enable=config.acl_enable,
                audit_log_path=config.audit_log_path,
                rocketmq_home=config.rocketmq_home,
            ),
            clock,
            connect,
            broker,
        )

    async def start(self) -> None:
        """Serve.

        Raises:
            ConfigError: a file of TLS or of access control cannot be used.
            CorruptFileError: the file of the KV configuration cannot be read.
            OSError: the address is taken or not of this machine.
        """
        if self.tls.mode != "disabled":
            self._contexts.load()
            self._contexts.start()
        if self.config.kv_config_path is not None:
            failed = None if self._broker is None else self._broker.disk_failed
            writer = TableWriter(self._files, self._thread(), failed)
            self.kv.open(self._files, self.config.kv_config_path, writer)
        self._router.audit = self._audit()
        if self._access is not None and self._broker is None:
            self._load_access(self._access)
        host = self.config.bind_address
        bound = bind(host, self.config.listen_port)
        self.listen_address = (host, port_of(bound))
        await self._server.serve(bound, tls=self.tls)
        self.routes.start()

    def _thread(self) -> ThreadWorker:
        """Return the thread for the disk, which starts with its first use."""
        if self._worker is None:
            call_soon = asyncio.get_running_loop().call_soon_threadsafe
            self._worker = ThreadWorker("skylarkmq-namesrv-disk", call_soon)
        return self._worker

    def _audit(self) -> Audit:
        path = self.config.audit_log_path
        if path is None:
            return Audit(_NAME, rights.NAME_SERVER, self._clock)
        worker = self._thread()
        return Audit(_NAME, rights.NAME_SERVER, self._clock, path, self._files, worker)

    def _load_access(self, access: AccessControl) -> None:
        home = self.config.rocketmq_home
        assert home is not None  # as the configuration has checked
        files = AccessFiles(home, DiskFiles(), self._thread(), self._clock)
        files.load()
        files.start()
        files.serve(access)
        self._own_access_files = files

    def abort(self, reason: str) -> None:
        """Cut every connection now; `stop` follows."""
        self._server.abort(reason)

    async def stop(self) -> None:
        """Serve no more."""
        self._contexts.stop()
        if self._own_access_files is not None:
            self._own_access_files.stop()
        self.routes.stop()
        await self._server.stop()
        await self._router.stop()
        if self._worker is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._worker.stop)


class _FolderMaker(DiskFiles):
    """The disk, on which a table's folder is made when there is something to write."""

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        self.make_folder(path.parent)
        super().replace(path, data, backup=backup)
