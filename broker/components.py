"""The parts of one broker, made in the order in which they need each other.

`controller.py` tells when they start and stop.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from skylarkmq.broker.access import rights
from skylarkmq.broker.access.audit import Audit
from skylarkmq.broker.access.control import AccessControl
from skylarkmq.broker.access.files import AccessFiles
from skylarkmq.broker.base.logs import set_levels
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.filter.pull_subscription import PullSubscriptions
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.earlier_lives import EarlierLives
from skylarkmq.broker.groups.offset_moved import OffsetMovedEvents
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.groups.subscription_group import GROUPS_FILE, SubscriptionGroupManager
from skylarkmq.broker.housekeeping import ClientHousekeepingService
from skylarkmq.broker.metrics.lag import ConsumerLag
from skylarkmq.broker.metrics.rates import BrokerRates
from skylarkmq.broker.metrics.runtime_info import GrpcPlaces, RuntimeInfo
from skylarkmq.broker.metrics.windows import StatsWindows
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.fast_failure import FastFailure
from skylarkmq.broker.net.handlers import Handler
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import ConnectionMaker, PeerLimits, RemotingServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.pop.journal import JournalMode, PopJournal
from skylarkmq.broker.pop.service import PopService
from skylarkmq.broker.processor.admin.access import AdminAccessProcessor
from skylarkmq.broker.processor.admin.broker import AdminBrokerProcessor
from skylarkmq.broker.processor.admin.client_call import ClientCallProcessor
from skylarkmq.broker.processor.admin.drain import AdminDrainProcessor
from skylarkmq.broker.processor.admin.group import AdminGroupProcessor
from skylarkmq.broker.processor.admin.offset import AdminOffsetProcessor
from skylarkmq.broker.processor.admin.replica import AdminReplicaProcessor
from skylarkmq.broker.processor.admin.stats import AdminStatsProcessor
from skylarkmq.broker.processor.admin.topic import AdminTopicProcessor
from skylarkmq.broker.processor.assignment import AssignmentProcessor, Routes
from skylarkmq.broker.processor.client_manage import ClientManageProcessor
from skylarkmq.broker.processor.consumer_manage import ConsumerManageProcessor, LockProcessor
from skylarkmq.broker.processor.end_transaction import EndTransactionProcessor
from skylarkmq.broker.processor.plain_pulls import PlainPulls
from skylarkmq.broker.processor.pop import PopMessageProcessor
from skylarkmq.broker.processor.pull import PullProcessor
from skylarkmq.broker.processor.query import (
    QueryConsumeQueueProcessor,
    QueryProcessor,
)
from skylarkmq.broker.processor.recall import RecallProcessor
from skylarkmq.broker.processor.reply import ReplyProcessor
from skylarkmq.broker.processor.send import SendProcessor
from skylarkmq.broker.processor.send_back import SendBackProcessor
from skylarkmq.broker.processor.send_checks import SendChecks
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.broker.replication.failover.replica_rules import while_following
from skylarkmq.broker.replication.failover.replica_status import Replicated
from skylarkmq.broker.replication.ha.ha_client import HaClient
from skylarkmq.broker.replication.ha.ha_server import HaServer
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.replication.ha.replica_acks import wait_for_slaves
from skylarkmq.broker.replication.ha.slave_rules import slave_refusals
from skylarkmq.broker.replication.metadata.metadata_log import MetadataLog, MetadataTables
from skylarkmq.broker.replication.metadata.metadata_tables import (
    ConfigRows,
    DelayRows,
    DeletingRows,
    GroupRows,
    OffsetRows,
    TimerRows,
    TopicRows,
)
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.broker.tables.live_config import LiveConfig
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.broker.topics.deduplication import DeduplicationService
from skylarkmq.broker.topics.topic_config import TOPICS_FILE, TopicConfigManager
from skylarkmq.broker.topics.topic_deletion import TopicDeletion
from skylarkmq.broker.transaction.check_service import (
    TransactionCheckService,
)
from skylarkmq.broker.transaction.ledger import TransactionLedger
from skylarkmq.broker.transaction.verdicts import Verdicts
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter
from skylarkmq.common.worker import StoreWorkers, Worker
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import reply_topic
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from skylarkmq.broker.draining.draining import Draining
    from skylarkmq.broker.grpc.endpoint import GrpcEndpoint
    from skylarkmq.broker.replication.failover.replica_status import Replicated

log = logging.getLogger(__name__)

BODY_MAX = 1 << 20
"""Bytes of a body that is no message: a heartbeat of a thousand subscriptions has a tenth."""


async def _nowhere(address: str) -> GrpcPlaces | None:
    return None


class BrokerParts:
    """The store, tables, clients and services of one broker, whatever its address is.

    Its size is one idea: an attribute is one part, and who needs another is made after it.
    """

    find_draining: Callable[[], Draining | None] | None = None  # what moves clients away
    find_grpc: Callable[[str], Awaitable[GrpcPlaces | None]] = staticmethod(_nowhere)
    """Asks another broker where it is found by gRPC."""
    find_routes: Routes | None = None  # asks the name servers, while this broker is registered
    send: SendProcessor  # of the server, once it is made

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        clock: Clock,
        workers: StoreWorkers,
        memory_size: int,
        peer_clock: Clock | None = None,
    ) -> None:
        """Make everything; nothing is opened yet.

        Args:
            peer_clock: what peers' silence and their locks are measured by; None: `clock`.
        """
        self.config = config
        self.peer_clock = peers = peer_clock or clock
        self.stats = BrokerStats()
        self.fast_failure = FastFailure(config, self.stats)
        self.audit = Audit(
            config.broker_name, rights.BROKER, clock, config.audit_log_path, files, workers.tables
        )
        self.access_files: AccessFiles | None = None  # without access control
        if config.acl_enable and config.rocketmq_home is not None:
            self.access_files = AccessFiles(config.rocketmq_home, files, workers.reads, clock)
        self.store = MessageStore(config.store, files, clock, workers, memory_size=memory_size)
        if config.is_replica:
            self.store.follows = True  # until it leads
            self.store.gate()
        writer = TableWriter(files, workers.tables, self.store.fail)
        self.ha_server = _ha_server(config, self.store, clock, peers)
        self.master = MasterAddress(config)
        self.ha_client: HaClient | None = None  # follows a master that is configured
        if config.store.is_slave:
            self.ha_client = HaClient(self.store, peers, lambda: self.master.ha_address)
        # Each takes what those before it have made.
        self._make_tables(files, writer, workers.timer, clock)
        self._make_clients(clock)
        self._make_views(clock)
        self._make_admin(files, workers, clock)
        tables = MetadataTables(
            TopicRows(self.topics),
            GroupRows(self.groups),
            OffsetRows(self.offsets),
            DelayRows(self.delay_offsets),
            TimerRows(self.timer),
            ConfigRows(self.live_config),
            DeletingRows(self.deletion, self.topics),
        )
        self.metadata = MetadataLog(self.store, clock, tables)
        self.tls_gates: dict[str, TlsGate] = {}  # of the listeners, by their names
        self.grpc: GrpcEndpoint | None = None  # for clients of RocketMQ 5
        self.as_registered: Callable[[TopicConfig], TopicConfig] = lambda topic: topic  # to clients
        self.leads = False  # what stores messages of its own runs
        self.replica: Replicated | None = None  # among those that elect their master

    def _make_tables(
        self, files: Files, writer: TableWriter, timer_worker: Worker, clock: Clock
    ) -> None:
        """Make topics, groups and offsets, and the messages that wait for their time."""
        config = self.config
        self.topics = TopicConfigManager(config, files, writer, clock)
        self.topics.add_deletion_listener(self.stats.forget_topic)
        self.deduplication = DeduplicationService(config, self.store, self.topics, clock)
        self.groups = SubscriptionGroupManager(config, files, writer, clock)
        self.offsets = ConsumerOffsetManager(config, files, writer, clock, self.store)
        self.delay_offsets = DelayOffsetTable(files, writer, clock, self.store)
        self.schedule = ScheduleMessageService(self.store, clock, self.delay_offsets)
        self.timer = TimerMessageService(self.store, files, clock, timer_worker, writer)

    def _make_clients(self, clock: Clock) -> None:
        """Make what knows the clients, and what they wait for or hold."""
        config, peers = self.config, self.peer_clock
        self.client_calls = ClientCalls(self._may_notify)
        self.consumers = ConsumerManager(peers, self.client_calls.notify_consumer_ids_changed)
        self.filters = ConsumerFilterManager(config, clock)
        self.consumers.on_subscribed = self.filters.register
        self.consumers.on_group_gone = self.filters.unregister
        self.producers = ProducerManager(peers)
        self.transactions = TransactionLedger(self.store, self.topics, self.offsets, clock)
        self.checks = TransactionCheckService(config, self.transactions, self.producers, clock)
        self.lag = ConsumerLag(
            self.store, self.topics, self.offsets, self.consumers, self.stats, clock
        )
        self.locks = RebalanceLockManager(peers)
        self.housekeeping = ClientHousekeepingService(
            peers, self.consumers, self.producers, self.locks
        )
        self.holding = PullRequestHoldService(
            self.store, peers, long_polling=config.long_polling_enable
        )
        self.earlier = EarlierLives(self.store, self.consumers, self.offsets, self.stats, peers)
        self.topics.add_deletion_listener(self.earlier.forget_topic)

    def _make_views(self, clock: Clock) -> None:
        """Make what measures and describes this broker."""
        config = self.config
        self.traffic = BrokerRates(self.stats, self.store.stats, clock)
        self.windows = StatsWindows(
            self.stats, self.store.stats, self.traffic, config.broker_cluster_name, clock
        )
        self.info = RuntimeInfo(config, self.store, self.schedule, self.traffic, clock)

    def _make_admin(self, files: Files, workers: StoreWorkers, clock: Clock) -> None:
        """Make what answers requests over all of that, and changes it."""
        self.live_config = LiveConfig(self.config, files, workers.tables, clock)
        self.live_config.listeners += (self.topics.config_changed, self._levels_changed)
        store, config = self.store, self.config.store
        self.context = Context(
            self.config,
            clock,
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.consumers,
            self.producers,
            self.earlier,
        )
        mode = JournalMode(
            is_sync=config.flush_disk_type == "SYNC_FLUSH",
            interval_s=config.flush_interval_commit_log / 1000,
        )
        journal = PopJournal(store.paths.pop, files, workers.pop, clock, mode, store.fail)
        self.pop = PopService(self.context, journal, self.peer_clock, self.stats)
        self.admin_broker = AdminBrokerProcessor(
            self.context, self.live_config, self.info, files, workers.tables
        )
        self.deletion = TopicDeletion(store, self.topics, self.offsets, self.holding, clock)

    def load_tables(self) -> None:
        """Read what is beside the log, which is loaded and not cut any more. Blocks.

        Raises:
            StoreError: a table is damaged.
            OSError: the disk failed.
        """
        if not self.groups.load():
            self._warn_of_lost_groups()
        for table in (self.topics, self.offsets, self.delay_offsets):
            table.load()
        self.deletion.load()
        self.timer.load()
        if not self.store.follows:
            self.deduplication.load()
        self.pop.load()
        self.earlier.begin()
        self._warn_of_unknown_topics()

    def start_services(self) -> None:
        """Start what works by the clock. The store has started, the listeners are open."""
        if self.access_files is not None:
            self.access_files.start()
        self.deletion.start()
        self.holding.start()
        self.housekeeping.start()
        self.traffic.start()
        self.windows.start()
        self.groups.start()
        self.offsets.start()
        if not self.store.follows:
            self.start_master_services()
        elif self.grpc is not None and self.grpc.forwards:
            self.grpc.start()

    def start_master_services(self) -> None:
        """Start what stores messages of its own: the log of all others is their master's."""
        self.deduplication.start()
        self.schedule.start()
        self.timer.start()
        self.transactions.start()
        self.checks.start()
        self.pop.start()
        self.leads = True
        if self.grpc is not None:
            self.grpc.start()

    async def stop_master_services(self) -> None:
        """End what stores messages of its own; those that have not started are none the wiser."""
        self.leads = False
        self.pop.receiver.end_polls()
        if self.grpc is not None and not self.grpc.forwards:
            await self.grpc.stop()
        self.deduplication.stop()
        await self.pop.stop()
        await self.checks.stop()
        await self.transactions.stop()
        await self.schedule.stop()
        await self.timer.stop()

    async def stop_services(self) -> None:
        """End what writes messages and tables by itself, and save where it stands.

        Call while the store still writes; holding and housekeeping end before, with the listeners.
        """
        if self.access_files is not None:
            self.access_files.stop()
        self.traffic.stop()
        self.windows.stop()
        await self.stop_master_services()
        await self.pop.close()
        await self.offsets.stop()
        await self.groups.flush()

    def _levels_changed(self, keys: frozenset[str]) -> None:
        if "logLevel" in keys:
            set_levels(self.config.log_level)

    def _warn_of_lost_groups(self) -> None:
        """Say that there is no table of groups beside a log with messages."""
        if self.store.commit_log.max_offset > self.store.commit_log.min_offset:
            log.warning(
                "%s is missing or empty, and the log holds messages: %s, until a saved copy of the "
                "file is put back while the broker is stopped",
                self.store.paths.config / GROUPS_FILE,
                "groups get the default settings when their consumers come"
                if self.config.auto_create_subscription_group
                else "consumers of groups are refused until these are made again",
            )

    def _warn_of_unknown_topics(self) -> None:
        """Log which topics have messages and no settings: `topics.json` was lost."""
        unknown = self.deletion.unknown_topics()
        if unknown:
            log.warning(
                "%d topics have messages in the store and no entry in %s: %s; clients are told "
                "that they do not exist until the file is put back or they are made again",
                len(unknown),
                self.store.paths.config / TOPICS_FILE,
                ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else ""),
            )

    def _may_notify(self, group: str) -> bool:
        settings = self.groups.table.get(group)
        return self.config.notify_consumer_ids_changed_enable and (
            settings is None or settings.notify_consumer_ids_changed_enable
        )

    async def measure(self) -> None:
        """Measure what a scrape of the metrics shows and no counter has."""
        self.info.earliest.begin()
        await self.lag.measure()

    def store_offsets(self) -> dict[str, int]:
        """Return places in the commit log by mark, bytes."""
        store, log = self.store, self.store.commit_log
        offsets = {
            "min": log.min_offset,
            "max": log.max_offset,
            "wrote": log.wrote_offset,
            "flushed": log.flushed_offset,
            "dispatched": store.writer.published_offset,
        }
        if self.config.store.message_index_enable:
            offsets["indexed"] = log.max_offset - store.index.behind_bytes
        return offsets

    def pool_buffers(self) -> dict[str, int]:
        """Return the buffers of the transient pool by state; none without a pool."""
        pool = self.store.commit_log.pool
        if pool is None:
            return {}
        available = pool.available_count
        return {"available": available, "in_use": pool.buffer_count - available}


def _ha_server(
    config: BrokerConfig, store: MessageStore, clock: Clock, peers: Clock
) -> HaServer | None:
    """Return what gives slaves the log, which sends to a SYNC_MASTER wait for.

    None on a slave, and on a replica, which has links of its own.
    """
    if config.store.is_slave or config.is_replica:
        return None
    server = HaServer(config, store, peers)
    if config.store.broker_role == "SYNC_MASTER":
        wait_for_slaves(store, server, clock)
    return server


def _processors(
    parts: BrokerParts, clock: Clock, store_host: bytes, rng: random.Random
) -> tuple[SendProcessor, PlainPulls, tuple[Processor, ...]]:
    """Return the processor of sends and the fast path of pulls, which the router knows, and more.

    The others handle decoded requests.
    """
    context, stats, transactions = parts.context, parts.stats, parts.transactions
    checks = SendChecks(parts.config, parts.topics, parts.groups, rng)
    send = SendProcessor(
        parts.config, parts.store, parts.topics, checks, stats, store_host, transactions.expect
    )

    def settle() -> None:
        if send.gathering:
            send.commit()

    pulls = PlainPulls(context, stats, parts.peer_clock, settle)
    return (
        send,
        pulls,
        (
            PullProcessor(
                context,
                PullSubscriptions(parts.config, parts.consumers, parts.filters),
                parts.holding,
                OffsetMovedEvents(parts.config.broker_name, parts.store, clock, store_host),
                stats,
                parts.peer_clock,
                pulls,
            ),
            ClientManageProcessor(context, parts.locks, stats),
            ConsumerManageProcessor(context),
            LockProcessor(context, parts.locks),
            AssignmentProcessor(
                context, lambda: parts.find_routes, lambda topic: parts.as_registered(topic)
            ),
            PopMessageProcessor(context, parts.pop, parts.peer_clock),
            QueryProcessor(context),
            QueryConsumeQueueProcessor(context, parts.filters),
            SendBackProcessor(context, rng, stats),
            EndTransactionProcessor(
                context, transactions, Verdicts(parts.store, transactions, clock, stats)
            ),
            RecallProcessor(context, store_host),
            ReplyProcessor(context, checks, parts.client_calls, stats, store_host),
            parts.admin_broker,
            AdminAccessProcessor(context, parts.access_files, str(HostAddress.unpack(store_host))),
            AdminTopicProcessor(context, parts.deletion, parts.deduplication),
            AdminGroupProcessor(context, parts.delay_offsets, stats, parts.timer),
            AdminStatsProcessor(context, parts.windows, stats, store_host),
            AdminOffsetProcessor(context, parts.client_calls),
            AdminReplicaProcessor(context, lambda: parts.replica, stats),
            AdminDrainProcessor(
                context, lambda: parts.find_draining and parts.find_draining(), parts.peer_clock
            ),
            ClientCallProcessor(context, parts.client_calls),
        ),
    )


def _access_control(parts: BrokerParts) -> AccessControl | None:
    if parts.access_files is None:
        return None
    topic = reply_topic(parts.config.broker_cluster_name)
    control = AccessControl(
        rights.BROKER,
        parts.stats,
        reply_topic=topic,
        topics_of_retries=parts.pop.registry.topics_of_retries,
    )
    parts.access_files.serve(control)
    return control


def make_server(
    parts: BrokerParts,
    clock: Clock,
    store_host: bytes,
    rng: random.Random,
    connect: ConnectionMaker = Connection,
) -> tuple[RemotingServer, Router]:
    """Return the server over the parts of a broker, and the router with every code that it answers.

    Args:
        store_host: packed advertised address; goes into every record and message id.
        connect: makes what stands for a peer that has connected.
    """
    config, stats = parts.config, parts.stats
    send, pulls, processors = _processors(parts, clock, store_host, rng)
    parts.send = send
    handlers: dict[int, Handler] = {}
    for processor in processors:
        handlers.update(processor.handlers())
    router = Router(
        handlers,
        stats,
        parts.peer_clock,
        send=send,
        pulls=pulls,
        waiting_max=config.query_thread_pool_queue_capacity,
        body_max=BODY_MAX,
        access=_access_control(parts),
    )
    router.ignores_signatures = not config.acl_enable
    router.audit = parts.audit
    if config.store.is_slave:
        router.refuse(slave_refusals(config.broker_name))
    elif config.is_replica:  # until it says what it is
        router.refuse(while_following(config.broker_name, reads=False))
    server = RemotingServer(
        router,
        parts.peer_clock,
        stats,
        limits=PeerLimits.of(config),
        gate=parts.fast_failure,
        connect=connect,
    )
    if parts.access_files is not None:
        parts.access_files.add_revoker(server.revoke)
    return server, router
