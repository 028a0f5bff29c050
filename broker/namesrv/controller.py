"""Wires a name server: its tables, its processor and the server that clients reach it by.

A name server alone keeps its KV configuration in `kvConfigPath`, with a thread of its own for
writing it; one beside a broker keeps it in the broker's store.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from skylarkmq.broker.access import rights
from skylarkmq.broker.access.audit import Audit
from skylarkmq.broker.access.control import AccessControl
from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.metrics.stats import BrokerStats
from skylarkmq.broker.namesrv.kv_config import KVConfig
from skylarkmq.broker.namesrv.processor import NamesrvProcessor
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import ConnectionMaker, PeerLimits, RemotingServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.net.tls_context import ServerContexts, server_contexts
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import DiskFiles
from skylarkmq.common.table_file import TableWriter
from skylarkmq.common.worker import ThreadWorker

_NAME: Final = "namesrv"
"""In lines of the audit log."""


class NamesrvController:
    """A name server, alone in its process or beside a broker. Loop thread.

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
        contexts: ServerContexts | None = None,
        access_files: AccessFiles | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            connect: makes what stands for a peer that has connected.
            contexts: those of a broker in this process, which keeps them; None: its own.
            access_files: of the broker beside; None: this name server's own, if it has any.
        """
        self._own_contexts = None if contexts else server_contexts(config.tls, clock)
        contexts = contexts or self._own_contexts
        assert contexts is not None
        self.tls = TlsGate(config.tls.tls_server_mode, contexts, clock)
        self.routes = RouteInfoManager(clock)
        self.kv = KVConfig()
        self._worker: ThreadWorker | None = None
        self.listen_address: tuple[str, int] = (config.bind_address, config.listen_port)
        self.config = config
        stats = BrokerStats()
        processor = NamesrvProcessor(self.routes, self.kv, config)
        self._clock = clock
        self._access: AccessControl | None = None
        self._access_files = access_files
        self._own_access_files: AccessFiles | None = None
        if config.acl_enable:
            self._access = AccessControl(rights.NAME_SERVER, stats, clock)
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
        cls,
        config: BrokerConfig,
        clock: Clock,
        connect: ConnectionMaker,
        contexts: ServerContexts,
        access_files: AccessFiles | None = None,
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
                acl_enable=config.acl_enable,
                audit_log_path=config.audit_log_path,
                rocketmq_home=config.rocketmq_home,
            ),
            clock,
            connect,
            contexts,
            access_files,
        )

    async def start(self) -> None:
        """Serve.

        Raises:
            ConfigError: a file of TLS or of access control cannot be used.
            CorruptFileError: the file of the KV configuration cannot be read.
            OSError: the address is taken or not of this machine.
        """
        if self._own_contexts is not None and self.tls.mode != "disabled":
            self._own_contexts.load()
            self._own_contexts.start()
        if self.config.kv_config_path is not None:
            files = _FolderMaker()
            self.kv.open(files, self.config.kv_config_path, TableWriter(files, self._thread()))
        self._router.audit = self._audit()
        if self._access is not None:
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
            self._worker = ThreadWorker("skylarkmq-namesrv", call_soon)
        return self._worker

    def _audit(self) -> Audit:
        path = self.config.audit_log_path
        if path is None:
            return Audit(_NAME, rights.NAME_SERVER, self._clock)
        files, worker = _FolderMaker(), self._thread()
        return Audit(_NAME, rights.NAME_SERVER, self._clock, path, files, worker)

    def _load_access(self, access: AccessControl) -> None:
        files, home = self._access_files, self.config.rocketmq_home
        if files is None:
            assert home is not None  # as the configuration has checked
            files = AccessFiles(home, DiskFiles(), self._thread(), self._clock)
            files.load()
            files.start()
            self._own_access_files = files
        files.serve(access)

    def abort(self, reason: str) -> None:
        """Cut every connection now; `stop` follows."""
        self._server.abort(reason)

    async def stop(self) -> None:
        """Serve no more."""
        if self._own_contexts is not None:
            self._own_contexts.stop()
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
