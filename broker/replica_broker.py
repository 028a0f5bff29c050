"""A broker whose replicas elect their master: one process, which takes part in an election.

`replica_lives.py` has the broker that it is, one life after the other; `replica_home.py` what the
driver does with it, `replica_role.py` what clients are told, `replica_admin.py` what administrators
ask.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing
from dataclasses import replace

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.base.endpoints import read_endpoints
from skylarkmq.broker.config.settings import HA_PORT_DISTANCE, BrokerConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc.needs import bind_for_grpc
from skylarkmq.broker.net.addresses import bind_three, port_of
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.broker.replica_admin import ReplicaAdmin
from skylarkmq.broker.replica_home import EXIT_FAILED, BrokerHome
from skylarkmq.broker.replica_lives import Lives, MakeLife, Stage
from skylarkmq.broker.replica_role import ReplicaRole
from skylarkmq.broker.replication.failover.coordinated_state import AliveRecord
from skylarkmq.broker.replication.failover.coordination import Coordination
from skylarkmq.broker.replication.failover.etcd import Etcd, EtcdConfig, prefix_of
from skylarkmq.broker.replication.failover.joining import join_set
from skylarkmq.broker.replication.failover.replica_driver import ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import FailoverRules, State
from skylarkmq.broker.replication.failover.replica_id import ReplicaFile, boot_id
from skylarkmq.broker.replication.failover.replica_links import LinkOptions, ReplicaLinks
from skylarkmq.broker.replication.failover.replica_protocol import Identity
from skylarkmq.broker.replication.ha.ha_server import bind_for_slaves
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.progress import Progress

log = logging.getLogger(__name__)


class ReplicaBroker:
    """One replica. Every method runs on the loop thread.

    Attributes:
        lives: the broker that it is.
        admin: what administrators ask.
        ended: set to an exit code when the process is to end.
    """

    def __init__(
        self,
        config: BrokerConfig,
        make_life: MakeLife,
        *,
        files: Files | None = None,
        coordination: Coordination | None = None,
    ) -> None:
        """Take the configuration; nothing is opened yet.

        Args:
            make_life: returns a broker that was not opened.
            coordination: the engine; None: etcd at controllerEndpoints.
        """
        self.ended: asyncio.Future[int] | None = None
        self._files: Files = files or DiskFiles()
        self.lives = Lives(
            config, make_life, self._files, on_end=self._end, on_failure=self._store_failed
        )
        self.home = BrokerHome(self.lives, self._end)
        self._coordination = coordination
        self._leaving: asyncio.Task[None] | None = None  # after the store has failed
        self._joining: asyncio.Task[None] | None = None
        self._etcd_tls: OutgoingTls | None = None

    @property
    def life(self) -> BrokerController:
        """The broker as it is now."""
        return self.lives.now

    # As a `BrokerController`

    async def start(self, progress: Progress | None = None) -> None:
        """Recover the store, and take part from now on; another replica may come to lead.

        Raises:
            As `BrokerController.start`.
        """
        self.ended = asyncio.get_running_loop().create_future()
        config = self.lives.config
        if config.listen_port:
            ha_socket = bind_for_slaves(config)
        else:  # later lives come back to the same ports
            main, fast, ha_socket = bind_three(config.bind_address, HA_PORT_DISTANCE)
            config = self.lives.config = replace(config, listen_port=port_of(main))
            main.close()
            fast.close()
        if config.grpc_listen_port == 0:
            with closing(bind_for_grpc(config, 0)) as bound:
                self.lives.config = replace(config, grpc_listen_port=port_of(bound))
        try:
            await self.lives.begin(progress)
        except BaseException:
            ha_socket.close()
            raise
        try:
            await self._take_part(port_of(ha_socket))
            await self.links.serve(ha_socket)
        except BaseException:
            ha_socket.close()
            await self.life.abandon()
            raise
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _take_part(self, ha_port: int) -> None:
        """Make what outlives a life."""
        config, life = self.lives.config, self.life
        store, clock = life.parts.store, life.peer_clock
        assert life.advertised is not None and store.recovery is not None
        keeps_all = store.recovery.clean or config.store.flush_disk_type == "SYNC_FLUSH"
        self._file = ReplicaFile(self._files, store.paths.replica, boot_id())
        self._file.load(keeps_all=keeps_all)
        me = self._file.id
        if self._coordination is None:
            self._coordination = self._etcd()
        rules = FailoverRules(
            lease_s=config.controller_lease_ttl,
            not_caught_up_s=config.ha_max_time_slave_not_catchup / 1000,
            min_in_sync=config.min_in_sync_replicas,
            turn_s=config.controller_lease_ttl / 20,
            silent_s=config.controller_lease_ttl * 0.4,
        )
        host = str(life.advertised).rpartition(":")[0]
        alive = AliveRecord(
            str(life.advertised),
            f"{config.broker_ip2 or host}:{ha_port}",
            store.commit_log.stored_offset,
            config.broker_election_priority,
        )
        self._alive = alive
        self.driver = ReplicaDriver(me, alive, rules, self._coordination, self.home, clock)
        allowed = config.ha_allowed_addresses
        self.links = self.driver.links = ReplicaLinks(
            Identity(
                config.broker_cluster_name,
                config.broker_name,
                me,
                config.store.mapped_file_size_commit_log,
            ),
            clock,
            LinkOptions(
                None if allowed is None else AddressList([allowed]),
                config.acl_enable or config.tls.tls_server_mode == "enforcing",
                rules.lease_s,
                config.store.ha_transfer_batch_size,
            ),
            self.driver.heard,
            self.driver.lost,
        )
        role = self.role = ReplicaRole(self.lives, self.driver)
        self.home.driver, self.home.links, self.home.role = self.driver, self.links, role
        self.admin = ReplicaAdmin(self.lives, self.driver, role)
        self.lives.take_part(self.admin, self.links)

    def _etcd(self) -> Etcd:
        config = self.lives.config
        endpoints = read_endpoints(config.controller_endpoints or "")
        if any(each.is_tls for each in endpoints):
            self._etcd_tls = OutgoingTls(config.tls, self.life.peer_clock)
            self._etcd_tls.contexts.start()
        password = ""
        if config.controller_password_file is not None:
            password = config.controller_password_file.read_text("utf-8").strip()
        return Etcd(
            EtcdConfig(
                endpoints=endpoints,
                user=config.controller_user,
                password=password,
                request_limit_s=min(2.0, config.controller_lease_ttl / 4),
            ),
            prefix_of(config.broker_cluster_name, config.broker_name),
            self.life.peer_clock,
            None if self._etcd_tls is None else self._etcd_tls.client,
        )

    async def stop(self) -> None:
        """Let another member lead, if one can, then stop as any broker."""
        self.lives.is_stopping = True
        self.home.shown.set()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        if self.driver.state.state is State.MASTER and not self.failed:
            try:
                await self.admin.switch_over("")
            except RemoteProtocolError as error:
                log.info("nobody takes over: %s", error.remark)
        self.driver.end_jobs()
        if self.driver.state.state is not State.MASTER:
            self.home.stop_leading("it stops")
            await self.driver.stop()
        if self.lives.stage is not Stage.CLOSED:
            await self.life.drain()  # what a master stores meanwhile waits for the others
        is_open = self.lives.stage is not Stage.CLOSED
        self.lives.shut()
        await self.driver.stop()
        await self.links.stop()
        if is_open:
            self.life.parts.metadata.stop_as_master()
            await self.life.close()
            self.life.ports.close()
        if self._etcd_tls is not None:
            self._etcd_tls.contexts.stop()
        if isinstance(self._coordination, Etcd):
            self._coordination.close()

    async def kill(self) -> None:
        """End as a killed process does; the lease ends by itself. For tests."""
        self.lives.is_stopping = True
        self.home.shown.set()
        self.links.abort()
        self.home.stop_leading("it is killed")
        await self.driver.abort()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        await self.life.kill()

    @property
    def failed(self) -> bool:
        """True when the disk has failed, so that the store is not stopped cleanly."""
        return self.life.failed

    @property
    def listen_address(self) -> tuple[str, int]:
        """Where clients connect."""
        return self.life.listen_address

    def adopt_page(self, connection: socket.socket) -> None:
        """Serve the metrics pages to a connection that a supervisor has made. Any thread."""
        self.life.adopt_page(connection)

    async def known(self, limit_s: float) -> None:
        """Return at once: clients find this replica when it follows or leads."""

    def register_again(self) -> None:
        """Tell every name server about this broker soon: one of them may have lost its tables."""
        self.life.register_again()

    async def _join(self) -> None:
        """Take part once the engine knows this replica; end where it cannot be one of its set."""
        assert self._coordination is not None
        try:
            await join_set(
                self._coordination,
                self.lives.config,
                self._file,
                self._alive,
                self.life.peer_clock,
            )
        except (StoreError, OSError) as error:
            log.critical("%s", error)
            self._end(EXIT_FAILED)
            return
        self.driver.start()

    def _store_failed(self, error: BaseException) -> None:
        """Let others lead at once: this store takes nothing any more, and the process ends."""
        self.role.halted = f"the store has failed: {error}"
        self.role.tell()
        self._leaving = asyncio.get_running_loop().create_task(self.driver.stop())

    def _end(self, code: int) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(code)
