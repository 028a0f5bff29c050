"""Starts and stops a broker, in the right order.

    start   metrics and health, store and tables (recovery), listeners, held pulls and timed
            services, the port for slaves (a slave follows its master), registration
    stop    registration, the master, listeners and peers, held pulls, delays, tables, slaves, store

A store that fails keeps the broker up for reads for 5 s; then `ended` is set to 74 and its caller
ends the process, so that a supervisor restarts it into recovery.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from typing import TYPE_CHECKING, Literal

from skylarkmq.broker.access.outgoing import outgoing_client
from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.loop_lag import LoopLagService
from skylarkmq.broker.base.process import memory_size
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.broker_pages import make_pages
from skylarkmq.broker.components import BrokerParts, make_server
from skylarkmq.broker.config.config_file import ConfigOrigin
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.grpc.needs import check_grpc
from skylarkmq.broker.namesrv.built_in import BuiltInNamesrv
from skylarkmq.broker.namesrv.controller import Beside, NamesrvController
from skylarkmq.broker.net.addresses import port_of, resolve
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import ConnectionMaker, RemotingServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.net.tls_context import OutgoingTls, ServerContexts, server_contexts
from skylarkmq.broker.pages.http import MetricsServer
from skylarkmq.broker.ports import Ports
from skylarkmq.broker.registration.registration import Registration
from skylarkmq.broker.registration.service import RegistrationService
from skylarkmq.broker.replication.ha.slave_sync import SlaveSync
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.common.first_use import on_first_use
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.progress import Progress

if TYPE_CHECKING:
    import skylarkmq.broker.draining.draining as draining
    import skylarkmq.broker.grpc_service as grpc_service
else:  # by the first drain, and where there is a port for gRPC
    draining = on_first_use("skylarkmq.broker.draining.draining")
    grpc_service = on_first_use("skylarkmq.broker.grpc_service")

log = logging.getLogger(__name__)

MetricsPages = Literal["listen", "adopt", "none"]

EXIT_STORE_FAILED = 74  # EX_IOERR
EXIT_NAMESRV_FAILED = 70  # EX_SOFTWARE
FAILED_READS_S = 5.0


class BrokerController:
    """One broker. Every method runs on the loop thread.

    Its size is one idea: the order in which all parts begin and end, wherever a start has failed.

    Attributes:
        has_started: it serves, or did.
        listen_address: where clients connect.
        advertised: where they are told to.
        ha_port: where slaves connect; None on a slave.
        grpc_address: where clients of RocketMQ 5 connect.
        ended: set to an exit code when the process is to end.
        store_host: packed; in the records of this broker.
        since_ms: when this process first served; a replica gives it to its next life.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        with_namesrv: bool | Literal["thread"] = False,
        files: Files | None = None,
        clock: Clock | None = None,
        origin: ConfigOrigin | None = None,
        metrics: MetricsPages = "listen",
        peer_clock: Clock | None = None,
        connect: ConnectionMaker = Connection,
    ) -> None:
        """Take the configuration; nothing is opened yet.

        Args:
            with_namesrv: run a name server beside, on `namesrvListenPort`; "thread": on a thread of
                its own, which answers while a disk holds up this loop.
            metrics: "listen": serve the metrics pages; "adopt": only to connections that
                `adopt_page` hands over; "none": no pages.
            peer_clock: what peers and the loop's lateness are measured by; None: `clock`. A test
                that sets `clock` forward hands the real one in here: its clients wait for real.
            connect: makes what stands for a peer that has connected.
            origin: where the configuration came from.
        """
        self.config = config
        self.has_started = False
        self._origin = origin or ConfigOrigin()
        self.listen_address: tuple[str, int] = (config.bind_address, 0)
        self.advertised: HostAddress | None = None
        self.ha_port: int | None = None
        self.metrics_address: tuple[str, int] | None = None
        self.grpc_address: tuple[str, int] | None = None
        self.ended: asyncio.Future[int] | None = None
        self._with_namesrv = with_namesrv
        self._built_in: BuiltInNamesrv | None = None
        is_off = metrics == "listen" and config.metrics_prom_exporter_port is None
        self._metrics_pages: MetricsPages = "none" if is_off else metrics
        self._peer_clock = peer_clock
        self._connect = connect
        self._files: Files = files or DiskFiles()
        self._clock = clock
        self.server: RemotingServer | None = None
        self.router: Router | None = None
        self._metrics: MetricsServer | None = None
        self.registration: RegistrationService | None = None
        self._draining: draining.Draining | None = None
        self._slave_sync: SlaveSync | None = None
        self.ports = Ports()
        self.store_host = b""
        self.since_ms = 0

    @property
    def namesrv(self) -> NamesrvController | None:
        """The built-in name server, whose tables are for its own loop; None without one."""
        return None if self._built_in is None else self._built_in.controller

    @property
    def namesrv_address(self) -> tuple[str, int] | None:
        """Where the built-in name server listens, None without one."""
        return None if self.namesrv is None else self.namesrv.listen_address

    async def start(self, progress: Progress | None = None) -> None:
        """Recover and serve.

        Args:
            progress: told how far a long recovery is.

        Raises:
            StartEnded: `progress` ended the start.
            ConfigError: a file of TLS or of access control cannot be used.
            StoreError: the folder cannot be used as it is.
            OSError: an address is taken, or the disk failed.
        """
        await self.open(progress)
        try:
            self.parts.load_tables()
            await self.serve()
        except BaseException:
            await self.abandon()
            raise

    async def open(self, progress: Progress | None = None) -> None:
        """Take the addresses and the store, and recover the store; nobody is served yet.

        Raises:
            As `start`.
        """
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        clock = self.clock = self._clock or SystemClock(loop)
        self._workers = StoreWorkers.threads(loop.call_soon_threadsafe)
        self.peer_clock = self._peer_clock or clock
        self.parts = BrokerParts(
            self.config,
            self._files,
            clock,
            self._workers,
            memory_size() // self.config.brokers,  # the others have their share
            self.peer_clock,
        )
        self.parts.live_config.origin = self._origin
        self.parts.find_draining = self._find_draining
        self._lag = LoopLagService(
            self.peer_clock, self.parts.stats.loop_lag, self.parts.fast_failure.ticked
        )
        contexts = server_contexts(self.config.tls, self.peer_clock)
        self._contexts = [contexts]  # their files are watched until the broker stops
        self.tls = TlsGate(self.config.tls.tls_server_mode, contexts, self.peer_clock)
        self.parts.tls_gates["broker"] = self.tls
        try:
            # First what can be refused without touching the store.
            self._load_access(contexts)
            self._bind()
            if self._metrics_pages != "none":  # before the store: probes are answered meanwhile
                await self._start_metrics()
            self.parts.store.load(progress)
            self.parts.store.failure_listeners.append(self._store_failed)
        except BaseException:
            await self.abandon()
            raise

    def _load_access(self, contexts: ServerContexts) -> None:
        """Read the files of access control and of TLS.

        Raises:
            ConfigError: one of them cannot be used, or a package is not installed.
        """
        config = self.config
        if config.grpc_listen_port is not None:
            check_grpc(config)
        if self.parts.access_files is not None:
            self.parts.access_files.load()
        if self.tls.mode != "disabled":
            contexts.load()
            contexts.start()
        self._outgoing_tls: OutgoingTls | None = None
        calls_others = config.namesrv_addr or config.grpc_listen_port is not None
        if config.tls.uses_client_tls and (calls_others or config.store.is_slave):
            self._outgoing_tls = OutgoingTls(config.tls, self.peer_clock)

    def _bind(self) -> None:
        config, ports = self.config, self.ports
        ports.bind(config, takes_slaves=self.parts.ha_server is not None)
        self.listen_address = config.bind_address, ports.main
        self.advertised = HostAddress(ports.find_host(config), ports.main)
        if ports.slaves is not None:
            self.ha_port = port_of(ports.slaves)
        if ports.grpc is not None:
            self.grpc_address = config.bind_address, port_of(ports.grpc)

    async def _start_metrics(self) -> None:
        listens = self._metrics_pages == "listen"
        self._metrics = make_pages(self, self._lag, listens=listens)
        self.metrics_address = await self._metrics.start()
        if self._metrics.tls is not None:
            self.parts.tls_gates["metrics"] = self._metrics.tls

    async def serve(self) -> None:
        """Serve clients, after `open` and `BrokerParts.load_tables`.

        Raises:
            OSError: an address is taken, or the disk failed.
        """
        config, parts, clock, ports = self.config, self.parts, self.clock, self.ports
        assert self.advertised is not None, "serving comes after opening"
        host = self.advertised.ip
        if self._with_namesrv:
            await self._start_namesrv()
        parts.store.start()
        self.store_host = HostAddress(resolve(host), ports.main).pack()
        self.server, self.router = make_server(
            parts, clock, self.store_host, random.Random(), self._connect
        )
        await self.server.serve(*ports.clients, tls=self.tls)
        if ports.grpc is not None:
            self._make_grpc(self.router, ports.grpc, host)
        parts.start_services()
        if parts.grpc is not None:
            await parts.grpc.started()
        if parts.ha_server is not None and ports.slaves is not None:
            await parts.ha_server.serve(ports.slaves)
        if parts.ha_client is not None:
            parts.ha_client.start()
        self._lag.start()
        said = Registration(config, parts.topics, str(self.advertised), self.ha_port)
        self.registration = RegistrationService(
            said,
            parts.topics,
            self.peer_clock,
            self._built_in,
            self._outgoing_tls,
            parts.access_files,
            parts.master,
        )
        parts.find_routes = self.registration.routes
        parts.as_registered = said.as_registered
        parts.find_grpc = self.registration.grpc_places
        await self.registration.start()
        if config.store.is_slave:
            self._slave_sync = SlaveSync(
                parts.context,
                parts.delay_offsets,
                parts.timer,
                parts.master,
                outgoing_client(self.peer_clock, self._outgoing_tls, parts.access_files),
                self._workers.tables,
                self.peer_clock,
            )
            self._slave_sync.start()
        self.has_started = True
        self.since_ms = self.since_ms or clock.now_ms()

    async def _start_namesrv(self) -> None:
        """Serve as a name server, too."""
        config, parts, loop = self.config, self.parts, asyncio.get_running_loop()

        def disk_failed(error: BaseException) -> None:
            loop.call_soon_threadsafe(parts.store.fail, error)

        lent = Beside(self._files, disk_failed, parts.access_files)
        self._built_in = BuiltInNamesrv(
            lambda clock: NamesrvController.beside(config, clock, self._connect, lent),
            None if self._with_namesrv == "thread" else self.peer_clock,
            self._namesrv_failed,
        )
        parts.tls_gates["namesrv"] = self._built_in.controller.tls
        await self._built_in.start()

    def _namesrv_failed(self) -> None:
        log.critical("ending the process, because its name server has ended")
        self._end(EXIT_NAMESRV_FAILED)

    def _make_grpc(self, router: Router, bound: socket.socket, host: str) -> None:
        """Make what serves clients of RocketMQ 5."""
        tls, clock = self.config.tls, self.peer_clock
        contexts = server_contexts(tls, clock, quiet=True, alpn=("h2",))
        gate = TlsGate(tls.tls_server_mode, contexts, clock)
        if gate.mode != "disabled":
            contexts.load()
            contexts.start()
            self._contexts.append(contexts)
        own = HostAddress(host, port_of(bound))
        outgoing = None
        if tls.uses_client_tls and self.config.grpc_proxy_mode == "CLUSTER":
            outgoing = OutgoingTls(tls, clock, alpn=("h2",), quiet=True)
        endpoint = self.parts.grpc = grpc_service.make_endpoint(
            self.parts, router, str(own), outgoing
        )
        endpoint.open(bound, gate)
        self.parts.tls_gates["grpc"] = gate

    def _find_draining(self) -> draining.Draining | None:
        """Return what moves clients away; None before the start is over."""
        if self._draining is None and self.registration is not None and self.has_started:
            parts, config = self.parts, self.config
            sources = draining.DrainSources(
                config.broker_name,
                config.broker_cluster_name,
                parts.topics,
                parts.store,
                parts.offsets,
                parts.consumers,
                parts.holding,
                parts.pop.receiver,
                parts.stats,
                lambda: parts.replica,
            )
            self._draining = draining.Draining(sources, self.registration, self.peer_clock)
        return self._draining

    def adopt_page(self, connection: socket.socket) -> None:
        """Serve the metrics pages to a connection that a supervisor has made. Any thread."""
        if self._metrics is None:
            connection.close()
        else:
            self._metrics.adopt(connection)

    async def known(self, limit_s: float) -> None:
        """Wait until clients can find this broker by a name server, at most `limit_s`."""
        if self.registration is not None:
            await self.registration.known(limit_s)

    def register_again(self) -> None:
        """Tell every name server about this broker soon: one of them may have lost its tables."""
        if self.registration is not None:
            self.registration.register_again()

    async def stop(self) -> None:
        """Stop serving and make everything durable; may be called once, after `start`."""
        await self.drain()
        await self.close()

    async def drain(self) -> None:
        """Stop serving, answer who waits, and save what services hold; the store still runs."""
        parts, store = self.parts, self.parts.store
        await self._leave()
        if parts.grpc is not None:
            parts.grpc.stop_reading()
        if self.server is not None:
            self.server.stop_reading()
            # Until the sends that were read are answered, or cannot be.
            await result_of(lambda done: store.settle(lambda _: done(None, None)))
            await parts.topics.flush()  # acknowledgements of new topics wait for it
            parts.holding.stop()
            parts.pop.receiver.end_polls()
            if self.router is not None:
                await self.router.stop()
            if parts.grpc is not None:
                await parts.grpc.stop()
            await self.server.stop()
        if store.state is StoreState.RUNNING:
            # What services save waits until all is synced, or cannot be; else for the interval.
            await result_of(lambda done: store.sync(lambda: done(None, None)))
            await parts.stop_services()
        if parts.ha_server is not None:
            await parts.ha_server.stop()

    async def _leave(self) -> None:
        """Do no more with name servers, with a master, and with clients that are to move."""
        for contexts in self._contexts:
            contexts.stop()
        for service in (self._draining, self.registration, self._slave_sync, self.parts.ha_client):
            if service is not None:
                await service.stop()
        self._lag.stop()
        self.parts.housekeeping.stop()

    async def close(self) -> None:
        """Make everything durable, and let the store go; after `drain`."""
        self.parts.store.stop_writing()
        await self._close_store()
        if self._metrics is not None:
            await self._metrics.stop()
        if self._built_in is not None:
            await self._built_in.stop()
        if self.failed:
            log.error("the broker has stopped, its store not cleanly: the next start recovers it")
        elif self.has_started:
            log.info("the broker has stopped")

    async def kill(self) -> None:
        """End as a killed process does: nothing is answered or written any more. For tests.

        What was written stays, and so does the mark of an unclean stop. Timers of services are
        left: the caller owns the clocks, and forgets what is planned on them. Whatever came due
        would find no log: "no sound record is where it should be".
        """
        parts = self.parts
        await self._leave()
        if parts.grpc is not None:
            parts.grpc.abort("killed")
        if self.server is not None:
            self.server.abort("killed")
        if parts.ha_server is not None:
            parts.ha_server.abort()
        parts.holding.stop()
        if self.router is not None:
            await self.router.stop(limit_s=0)
        if self._built_in is not None:
            await self._built_in.stop(cut="killed")
        if self._metrics is not None:
            await self._metrics.stop()
        parts.store.stop_writing()
        parts.store.state = StoreState.FAILED  # so that `close` finishes nothing
        await self._close_store()

    @property
    def failed(self) -> bool:
        """True when the disk has failed, so that the store is not stopped cleanly."""
        return self.parts.store.state is StoreState.FAILED

    async def _close_store(self) -> None:
        """End the workers, let their results in, then close; the disk work is off the loop."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._workers.stop)
        await asyncio.sleep(0)  # the workers' last results were queued on the loop before this
        self.parts.store.close()

    async def abandon(self) -> None:
        """Undo a start that failed half-way."""
        await self.stop()
        self.ports.close()

    def _store_failed(self, error: BaseException) -> None:
        if not self.config.store.store_failure_exit and not self.config.is_replica:
            log.critical("storeFailureExit is false: staying up for reads")
            return
        log.critical("ending the process in %.0f s, for a restart into recovery", FAILED_READS_S)
        clock = self.clock
        clock.call_at(clock.monotonic() + FAILED_READS_S, self._end, EXIT_STORE_FAILED)

    def _end(self, code: int) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(code)
