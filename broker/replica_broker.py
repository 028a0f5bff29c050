"""A broker whose replicas elect their master: one process, and one life of a broker after another.

    opened      the store is loaded and its log stands still: another replica's may be longer
    following   the log is the master's; reads are answered as far as all in sync have it
    leading     everything is served

A life is a `BrokerController` from its opening to its stop. From following to leading it goes in
place. A replica that leads no more, or must cut its log while it is open, ends its life as a
broker that stops, and begins another one: so everything that was derived from the log is made from
what the log says now. Meanwhile `ReplicaDriver` and the links to other replicas go on.

What is refused meanwhile is in `replication/failover/replica_rules.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.base.endpoints import read_endpoints
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.base.waiting import result_of, synced
from skylarkmq.broker.config.settings import HA_PORT_DISTANCE, BrokerConfig
from skylarkmq.broker.controller import EXIT_STORE_FAILED, BrokerController
from skylarkmq.broker.grpc.needs import bind_for_grpc
from skylarkmq.broker.net.addresses import bind_three, port_of
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.broker.registration import RegisteredRole
from skylarkmq.broker.replication.failover.coordinated_state import AliveRecord, ClusterView
from skylarkmq.broker.replication.failover.coordination import Coordination
from skylarkmq.broker.replication.failover.etcd import Etcd, EtcdConfig, prefix_of
from skylarkmq.broker.replication.failover.joining import join_set, set_aside
from skylarkmq.broker.replication.failover.replica_driver import LogPlaces, ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import (
    FailoverRules,
    ForceFailover,
    Sends,
    State,
    SwitchOver,
    Tick,
)
from skylarkmq.broker.replication.failover.replica_id import ReplicaFile, boot_id
from skylarkmq.broker.replication.failover.replica_links import LinkOptions, ReplicaLinks
from skylarkmq.broker.replication.failover.replica_protocol import Identity
from skylarkmq.broker.replication.failover.replica_rules import (
    NONE,
    Refusals,
    while_following,
    while_taking_over,
    while_too_few,
)
from skylarkmq.broker.replication.failover.replica_status import OtherReplica, ReplicaStatus
from skylarkmq.broker.replication.failover.terms import Lineage, TermsFile, TermStart
from skylarkmq.broker.replication.ha.ha_server import bind_for_slaves
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.common.refusal import refusal
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.remoting.waiting import sleep, wait_event
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.log_walk import LogWalk
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.progress import Progress

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
RETRY_S: Final = 0.5
MakeLife = Callable[[BrokerConfig], BrokerController]


class Stage(Enum):
    """How far a life is."""

    CLOSED = "closed"
    OPENED = "opened"
    FOLLOWING = "following"
    LEADING = "leading"


class ReplicaBroker:
    """One replica. Every method runs on the loop thread.

    Attributes:
        life: the broker as it is now.
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
        self.config = config
        self.ended: asyncio.Future[int] | None = None
        self.life = make_life(config)
        self._make_life = make_life
        self._files: Files = files or DiskFiles()
        self._coordination = coordination
        self._stage = Stage.CLOSED
        self._is_stopping = False
        self._is_switching = False
        self._places = LogPlaces()  # of the last life, between two
        self._recovered_end = 0  # of the log, when this life began
        self._serves = False  # what a master runs has started
        self._has_followed = False  # in this life
        self._stats: BrokerStats | None = None  # of the last life
        self._leaving: asyncio.Task[None] | None = None  # after the store has failed
        self._role: tuple[object, ...] = ()  # what clients were told last
        self._changed = asyncio.Event()  # what clients are told
        self._shown = asyncio.Event()  # more of the log is confirmed, or this replica leads no more
        self._joining: asyncio.Task[None] | None = None
        self._halted = ""
        self._etcd_tls: OutgoingTls | None = None

    # As a `BrokerController`

    async def start(self, progress: Progress | None = None) -> None:
        """Recover the store, and take part from now on; another replica may come to lead.

        Raises:
            As `BrokerController.start`.
        """
        self.ended = asyncio.get_running_loop().create_future()
        config = self.config
        if config.listen_port:
            ha_socket = bind_for_slaves(config)
        else:  # later lives come back to the same ports
            main, fast, ha_socket = bind_three(config.bind_address, HA_PORT_DISTANCE)
            config = self.config = replace(config, listen_port=port_of(main))
            main.close()
            fast.close()
        if config.grpc_listen_port == 0:
            with closing(bind_for_grpc(config, 0)) as bound:
                self.config = replace(config, grpc_listen_port=port_of(bound))
        try:
            await self._begin_life(progress)
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
        config, life = self.config, self.life
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
        self.driver = ReplicaDriver(me, alive, rules, self._coordination, self, clock)
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
        self._begun(life)

    def _etcd(self) -> Etcd:
        config = self.config
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
        self._is_stopping = True
        self._shown.set()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        if self.driver.state.state is State.MASTER and not self.failed:
            try:
                await self.switch_over("")
            except RemoteProtocolError as error:
                log.info("nobody takes over: %s", error.remark)
        self.driver.end_jobs()
        if self.driver.state.state is not State.MASTER:
            self.stop_leading("it stops")
            await self.driver.stop()
        if self._stage is not Stage.CLOSED:
            await self.life.drain()  # what a master stores meanwhile waits for the others
        # From here on the log is closed, and nobody may be told where it ends.
        self._places, stage, self._stage = self.places(), self._stage, Stage.CLOSED
        self.links.attach(None)
        await self.driver.stop()
        await self.links.stop()
        if stage is not Stage.CLOSED:
            self.life.parts.metadata.stop_as_master()
            await self.life.close()
            self.life.let_ports_go()
        if self._etcd_tls is not None:
            self._etcd_tls.contexts.stop()
        if isinstance(self._coordination, Etcd):
            self._coordination.close()

    async def kill(self) -> None:
        """End as a killed process does; the lease ends by itself. For tests."""
        self._is_stopping = True
        self._shown.set()
        self.links.abort()
        self.stop_leading("it is killed")
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

    # One life after the other

    async def _begin_life(self, progress: Progress | None = None) -> None:
        if self.life.ended is not None or self.life.config is not self.config:
            since_ms = self.life.since_ms
            self.life = self._make_life(self.config)
            self.life.since_ms = since_ms
        life = self.life
        await life.open(progress)
        store = life.parts.store
        try:
            self._terms = TermsFile(self._files, store.paths.terms)
            self._terms.load(store.commit_log.wrote_offset)
        except BaseException:
            await life.abandon()
            raise
        assert life.ended is not None
        life.ended.add_done_callback(partial(self._life_ended, life))
        self._recovered_end = store.commit_log.wrote_offset
        life.parts.store.failure_listeners.append(self._store_failed)
        self._serves = self._has_followed = False
        self._role = ()
        self._stage = Stage.OPENED

    def _begun(self, life: BrokerController) -> None:
        """Let a life know this replica, and the links its log."""
        stats = life.parts.stats
        if self._stats is not None:  # they tell of this process
            stats.forced_failovers = self._stats.forced_failovers
            stats.messages_at_risk = self._stats.messages_at_risk
        self._stats = stats
        life.parts.replica = self
        self.links.attach(life.parts.store)

    def _store_failed(self, error: BaseException) -> None:
        """Let others lead at once: this store takes nothing any more, and the process ends."""
        self._halted = f"the store has failed: {error}"
        self._tell_clients()
        self._leaving = asyncio.get_running_loop().create_task(self.driver.stop())

    async def _next_life(self) -> None:
        """End this life, and begin another one with what the disk has."""
        log.info("its broker stops and begins anew in this process, to follow")
        await self._end_life()
        await self._begin_life()
        self._begun(self.life)

    async def _end_life(self) -> None:
        self._places = self.places()
        self._stage = Stage.CLOSED
        self.life.parts.metadata.stop_as_master()
        self.links.attach(None)
        await asyncio.sleep(0)  # connections that it cut have let go of the log's files then
        await self.life.stop()
        if self.failed:
            raise StoreError(f"the store has failed: {self._store.failure}")

    def _life_ended(self, life: BrokerController, ended: asyncio.Future[int]) -> None:
        if life is self.life and not ended.cancelled():
            self._end(ended.result())

    def _end(self, code: int) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(code)

    @property
    def _store(self) -> MessageStore:
        return self.life.parts.store

    async def _join(self) -> None:
        """Take part once the engine knows this replica; end where it cannot be one of its set."""
        assert self._coordination is not None
        try:
            await join_set(
                self._coordination, self.config, self._file, self._alive, self.life.peer_clock
            )
        except (StoreError, OSError) as error:
            log.critical("%s", error)
            self._end(EXIT_FAILED)
            return
        self.driver.start()

    # As a `ReplicaHome`

    def places(self) -> LogPlaces:
        if self._stage is Stage.CLOSED:
            return self._places
        found = self._store.commit_log
        return LogPlaces(found.min_offset, found.wrote_offset, found.stored_offset)

    def lineage(self) -> Lineage:
        return self._terms.rows

    async def cut_back(self, offset: int, lineage: Lineage, *, anew: bool) -> Lineage:
        self.forget_part()
        has_log = self._store.commit_log.wrote_offset > self._store.commit_log.min_offset
        if self._stage is Stage.FOLLOWING:
            if not anew and offset == self._store.commit_log.wrote_offset:
                await self._synced()
                await self._granted(partial(self._keep, lineage), self._goes_on)
                return self.lineage()
            await self._next_life()
        if anew and has_log:
            await self._begin_anew()
        is_cut = await self._granted(partial(self._cut, offset, anew=anew), self._goes_on)
        if is_cut and await self._granted(partial(self._keep, lineage), self._goes_on):
            await self._follow()
        return self.lineage()

    async def _cut(self, offset: int, *, anew: bool) -> None:
        if not anew and offset < self._store.commit_log.wrote_offset:
            self._store.cut_back(offset)
            self._recovered_end = offset

    async def _keep(self, lineage: Lineage) -> None:
        await asyncio.to_thread(self._terms.keep, lineage)

    def _goes_on(self) -> bool:
        return not self._is_stopping

    async def _granted(
        self,
        attempt: Callable[[], Awaitable[None]],
        is_wanted: Callable[[], bool],
        limit_s: float = math.inf,
    ) -> bool:
        """Do something as soon as the machine has what it takes.

        Returns False when it is no longer wanted before.

        Raises:
            StoreError, OSError: it has failed for good, or is refused for `limit_s`.
        """
        clock, told = self.life.peer_clock, False
        until_s = clock.monotonic() + limit_s
        while True:
            try:
                await attempt()
                return True
            except (StoreFullError, OSError) as error:
                is_final = isinstance(error, OSError) and refusal(error) is None
                if is_final or clock.monotonic() >= until_s:
                    raise
                if not told:
                    told = True
                    log.error("this replica stores nothing and waits for its machine: %s", error)
            await sleep(clock, RETRY_S)
            if not is_wanted():
                return False

    async def _begin_anew(self) -> None:
        """Put the store aside: its log is no part of the master's, or too old to go on with."""
        paths = self._store.paths
        await self._end_life()
        aside = await asyncio.to_thread(set_aside, paths.root, paths.commit_log, paths.replica)
        log.warning(
            "this replica's log does not go on in its master's: what it had is in %s, and it "
            "follows from the beginning; remove that folder when nothing in it is missed",
            aside,
        )
        await self._begin_life()
        self._begun(self.life)

    async def _follow(self) -> None:
        """From opened to following: the log is the master's up to its end."""
        parts = self.life.parts
        parts.load_tables()
        parts.metadata.fold()
        parts.metadata.follow()
        parts.groups.follows = True
        await self._serve()
        parts.metadata.finish_removals()
        self._stage = Stage.FOLLOWING
        self._stored(self._store.commit_log.stored_offset)
        self._tell_clients()

    async def _serve(self) -> None:
        await self.life.serve()
        if self.life.router is not None:
            self.life.router.guard = self._look_at_time

    def _look_at_time(self) -> None:
        """Before requests are handled: after a standstill another replica may lead by now."""
        driver, now_s = self.driver, self.life.peer_clock.monotonic()
        if now_s - driver.ticked_s > driver.rules.lease_s / 10:
            driver.ticked_s = now_s
            driver.hear(Tick())

    def _stored(self, _: int) -> None:
        """Have the driver look at the log whenever more of it is stored."""
        self._store.writer.on_stored = self._stored
        self.driver.log_moved()

    async def keep_rows(self, rows: Lineage) -> None:
        for row in rows:
            await asyncio.to_thread(self._terms.append, row)

    def append(self, offset: int, data: bytes) -> None:
        if self._terms.is_behind:
            raise StoreError("the row of its term is not on the disk")
        self._store.take_records(offset, data)

    def forget_part(self) -> None:
        if self._stage is not Stage.CLOSED:
            self._store.received.forget()

    async def freeze(self) -> None:
        self.forget_part()
        if self._stage is Stage.FOLLOWING:  # else recovery has synced it
            await self._synced()

    async def _synced(self) -> None:
        """Return when all that was taken is on the disk.

        Raises:
            StoreError: the disk has failed, and who knows what is on it.
        """
        try:
            await result_of(synced(self._store))
        except Exception as error:
            raise StoreError(f"the store has failed: {error}") from error

    async def begin_term(self, row: TermStart) -> Lineage:
        # Another replica may lead where this one cannot for so long.
        begin, limit_s = partial(self._terms.append, row), self.driver.rules.lease_s
        attempt = partial(asyncio.to_thread, begin)
        await self._granted(attempt, lambda: self._may_begin(row.term), limit_s)
        return self.lineage()

    async def lead(self, term: int) -> None:
        life, parts = self.life, self.life.parts
        if self._stage is Stage.OPENED:
            parts.load_tables()
            parts.metadata.fold()
            await self._serve()
            self._stored(self._store.commit_log.stored_offset)
        if parts.store.commit_log.mapped_files.last is None:
            try:
                parts.store.commit_log.open_first()
            except StoreFullError as error:
                log.warning("leading without room for messages: %s", error)
        self._stage = Stage.LEADING
        self._tell_clients()
        end = parts.store.commit_log.wrote_offset
        while self._may_begin(term):
            try:
                await parts.metadata.start_as_master(term, life.store_host)
                break
            except StoreError as error:
                if parts.metadata.failure is not None or self.failed:
                    raise
                log.warning("this replica does not lead yet: %s; trying again", error)
            await sleep(life.peer_clock, RETRY_S)
        # What is read once at their start, such as the ends of transactions, must be shown by then.
        while self._may_begin(term) and parts.store.writer.published_offset < end:
            self._shown.clear()
            await self._shown.wait()
        await parts.deduplication.lead()
        if not self._may_begin(term):
            return
        parts.groups.follows = False
        parts.earlier.begin()
        parts.start_master_services()
        self._serves = True
        log.info("this replica leads %s in term %d", self.config.broker_name, term)
        self._tell_clients()

    def _may_begin(self, term: int) -> bool:
        """Whether this replica still leads that term, and does not stop."""
        return self.driver.state.term == term and not self._is_stopping

    def stop_leading(self, why: str) -> None:
        if self._stage is Stage.CLOSED:
            return
        self._serves = False
        self._shown.set()
        self.life.parts.metadata.stop_as_master()
        self._store.give_up_waiting()
        self._tell_clients()

    async def stopped_leading(self) -> None:
        if not self._is_stopping and self._stage is Stage.LEADING:
            await self._next_life()

    def halt(self, why: str) -> None:
        self._halted = why
        log.critical("this replica stands still: %s", why)
        self._tell_clients()

    def fail(self, error: BaseException) -> None:
        log.critical("this replica cannot go on: %s", error, exc_info=error)
        self._end(EXIT_STORE_FAILED if self.failed else EXIT_FAILED)

    def looked(self) -> None:
        shown = self.driver.state.shown
        if shown is not None and self._stage in (Stage.FOLLOWING, Stage.LEADING):
            self._store.confirm(shown)
            self._shown.set()
        self.links.confirmed = self.driver.state.confirmed
        self._tell_clients()

    # What clients are told

    def _tell_clients(self) -> None:
        """Refuse what this replica must not answer now, and say at name servers what it is."""
        life, state = self.life, self.driver.state
        if self._stage not in (Stage.FOLLOWING, Stage.LEADING) or life.router is None:
            return
        name, shown = self.config.broker_name, state.shown
        is_shown = shown is not None and shown >= self._recovered_end
        role: RegisteredRole | None = None
        if state.state is State.MASTER and self._serves and is_shown:
            role = RegisteredRole(0, state.term)
        elif self._stage is Stage.FOLLOWING:
            # Without a master it stays: what it shows is confirmed, and may be read.
            self._has_followed = self._has_followed or state.is_fed
            role = RegisteredRole(self.config.broker_id, 0) if self._has_followed else None
        if self._halted:
            role = None
        in_sync = 0 if state.in_sync is None else len(state.in_sync.members)
        facts = (life, state.state, state.sends, role, is_shown, self._halted, in_sync)
        if facts == self._role:
            return
        self._role = facts
        life.router.refuse(self._refusals(name, is_shown))
        # One that hands over, or waits for others as it begins to lead, stays known as it was.
        if life.registration is not None and (role is not None or not self._leads):
            life.registration.set_role(role)
        self._changed.set()

    def _refusals(self, name: str, is_shown: bool) -> Refusals:
        state = self.driver.state
        if self._halted or not self._leads:
            return while_following(name, reads=is_shown and not self._halted)
        if state.state is not State.MASTER:
            return while_following(name, reads=True)
        if not (self._serves and is_shown):
            return while_taking_over(name)
        if state.sends is Sends.TOO_FEW and state.in_sync is not None:
            return while_too_few(len(state.in_sync.members), self.config.min_in_sync_replicas)
        return NONE

    @property
    def _leads(self) -> bool:
        leading = (State.MASTER, State.HANDING_OVER, State.HANDED_OVER)
        return self._stage is Stage.LEADING and self.driver.state.state in leading

    # As a `Replicated`

    def status(self) -> ReplicaStatus:
        driver, state = self.driver, self.driver.state
        places, view = self.places(), driver.view
        record = None if view is None else view.state
        return ReplicaStatus(
            replica=driver.me,
            broker_id=self.config.broker_id,
            state=state.state,
            term=0 if record is None else record.term,
            master="" if record is None else record.master,
            in_sync=() if record is None else record.in_sync,
            start=0 if record is None else record.start,
            end=places.end,
            durable_end=places.durable_end,
            confirmed=state.shown or 0,
            mastership_changes=driver.mastership_changes,
            is_engine_reachable=driver.is_engine_reachable,
            halted=self._halted,
            others=() if view is None else self._others(view),
        )

    def _others(self, view: ClusterView) -> tuple[OtherReplica, ...]:
        in_sync = self.driver.state.in_sync
        found: list[OtherReplica] = []
        ids = {self.config.broker_id} | {
            record.broker_id for replica, record in view.replicas.items() if replica in view.alive
        }
        for replica in sorted({*view.alive, *view.replicas}):
            if replica == self.driver.me:
                continue
            alive, record = view.alive.get(replica), view.replicas.get(replica)
            if alive is None and record is not None and record.broker_id in ids:
                continue  # another store took its place
            durable_end = 0 if alive is None else alive.durable_end
            if in_sync is not None:
                durable_end = max(durable_end, in_sync.durable_end(replica))
            found.append(
                OtherReplica(
                    replica,
                    None if record is None else record.broker_id,
                    "" if alive is None else alive.address,
                    alive is not None,
                    durable_end,
                )
            )
        return tuple(found)

    async def switch_over(self, target: str) -> None:
        driver, clock = self.driver, self.life.peer_clock
        until_s = clock.monotonic() + driver.rules.hand_over_s
        while driver.state.state is State.MASTER and not self._serves:  # it has only begun
            self._changed.clear()
            left_s = until_s - clock.monotonic()
            if left_s <= 0 or not await wait_event(clock, self._changed, left_s):
                raise _refused("this replica has only begun to lead: try again")
        if self._is_switching:
            raise _refused("this replica hands over already")
        if driver.state.state is not State.MASTER or driver.state.in_sync is None:
            raise _refused(f"this replica does not lead {self.config.broker_name}")
        target = target or self._best()
        if not target:
            raise _refused("no other replica is alive and in sync")
        if target == driver.me or target not in driver.state.in_sync.members:
            members = ", ".join(sorted(driver.state.in_sync.members - {driver.me}))
            raise _refused(f"replica {target} is not in sync; those that are: {members}")
        log.info("handing %s over to replica %s", self.config.broker_name, target)
        life, parts = self.life, self.life.parts
        self._is_switching = True
        try:
            await parts.stop_master_services()
            await self._hand_over(target)
        finally:
            self._is_switching = False
            if self._serves and life is self.life and not self._is_stopping:
                parts.start_master_services()  # it leads on
        if driver.state.state is State.MASTER:
            raise _refused(f"{target} did not catch up, so this replica leads on")
        if driver.view is None or driver.view.state is None:
            return
        if driver.view.state.master != target:
            raise _refused(f"{target} did not take over: see its log")

    async def _hand_over(self, target: str) -> None:
        """Let all that was written go over, then the lead; return when it is decided."""
        driver, store = self.driver, self._store
        try:
            await self.life.parts.metadata.written()
        except StoreError as error:
            log.warning("the last changes of tables may not go over: %s", error)
        store.writer.commit_open()
        driver.look_at_log()
        driver.hear(SwitchOver(target))
        while driver.state.state in (State.HANDING_OVER, State.HANDED_OVER):
            self._changed.clear()
            await wait_event(self.life.peer_clock, self._changed, driver.rules.hand_over_s)

    def _best(self) -> str:
        """Return the other member that has most, empty without one that lives."""
        in_sync, view = self.driver.state.in_sync, self.driver.view
        if in_sync is None or view is None:
            return ""
        others = [each for each in in_sync.members if each != self.driver.me and each in view.alive]
        return max(others, key=lambda each: (in_sync.durable_end(each), each), default="")

    async def force(self) -> int:
        state, view = self.driver.state, self.driver.view
        if state.state not in (State.FOLLOWER, State.WAITING) or view is None:
            raise _refused(f"this replica is {state.state.value}: only one that follows is forced")
        if view.master is not None:
            raise _refused(f"replica {view.master.replica} leads: switch over instead")
        if not self.driver.is_engine_reachable:
            raise _refused("the coordination engine does not answer")
        at_risk = await asyncio.to_thread(self._count_after, state.shown or 0)
        log.warning("failover is forced: %d messages may be lost elsewhere or here", at_risk)
        self.driver.hear(ForceFailover())
        return at_risk

    def _count_after(self, offset: int) -> int:
        """Count the records from an offset on: those that not every replica may have."""
        files = self._store.commit_log.mapped_files
        begin = max(offset, self._store.commit_log.min_offset)
        return sum(1 for _ in LogWalk(files, check_crc=False).records(begin))


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
