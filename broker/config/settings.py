"""Configuration of the broker and of the name server: RocketMQ's keys in snake_case.

An attribute's type says which values its key takes and what it does here. A key that would promise
what is not built takes its default alone. One that only tunes something which works otherwise here,
or which other values leave out, takes any value, and the start names those that somebody set.
How the values come from file, environment and command line is in `config_file.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../BrokerConfig.java,
common/.../namesrv/NamesrvConfig.java, remoting/.../netty/NettyServerConfig.java
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from skylarkmq.broker.base.addresses import AddressError, AddressList
from skylarkmq.broker.base.endpoints import read_endpoints
from skylarkmq.broker.base.ha_protocol import PART_SIZE_MAX
from skylarkmq.broker.base.logs import parse_levels
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.common.config_fields import (
    INT_MAX,
    Bytes,
    ConfigError,
    Count,
    Effect,
    Interval,
    Limits,
    Live,
    Long,
    Milliseconds,
    NotBuilt,
    Port,
    Positive,
    T,
    Unused,
    check_values,
)
from skylarkmq.protocol.flags import MASTER_ID, RMQ_SYS_TRACE_TOPIC, PermName
from skylarkmq.store.config import StoreConfig

QUEUES_MAX: Final = 1024
"""Queues that a topic may get."""
READ_WRITE: Final = PermName.PERM_READ | PermName.PERM_WRITE
BROKERS_MAX: Final = 64
"""Broker processes below one supervisor."""
FAST_PORT_DISTANCE: Final = 2
"""The fast port is this much below the listen port."""
HA_PORT_DISTANCE: Final = 1
"""The port for slaves is this much above the listen port, unless haListenPort says another."""

ProxyMode = Literal["LOCAL", "CLUSTER"]
_CPUS: Final = os.cpu_count() or 1
_SEND_THREADS: Final = min(_CPUS, 4)

# Room for two frames of the largest size.
BrokerCount = Annotated[int, Limits(1, BROKERS_MAX)]
BufferTotal = Annotated[int, Limits(32 << 20, INT_MAX)]
QueueCount = Annotated[int, Limits(1, QUEUES_MAX)]
Permission = Annotated[int, Limits(0, PermName.PERM_READ | PermName.PERM_WRITE)]
OfFastFailure = Annotated[T, Effect(needs={"brokerFastFailureEnable": True})]
OfShortPolling = Annotated[T, Effect(is_live=True, needs={"longPollingEnable": False})]
NoAddressServer = Annotated[
    T, Effect(not_built="it is not supported yet; name them in namesrvAddr")
]
OfAccessControl = Annotated[T, Effect(needs={"aclEnable": True})]
AllInSync = Annotated[
    T, Effect(not_built="an acknowledgement always waits for all that are in sync; remove the key")
]
LeaseSeconds = Annotated[int, Limits(2, 3600)]
ReplicaCount = Annotated[int, Limits(1, 64)]

# Older spellings that RocketMQ's documentation still shows.
ALIASES: Final = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
# Keys of ours that there were, with what to use instead.
GONE: Final = {
    "drainTokenFile": "/drainz is for this machine alone: remove the key, and drain from afar by "
    "`skylarkmq cluster drain BROKER --wait 120`, with an admin's account",
    "metricsCompat": "the names of RocketMQ 5 are always beside ours: remove the key; for those of "
    "Apache's rocketmq-exporter run that",
}
# Keys of Java brokers and of widely copied files that have no attribute here; any value is taken.
JAVA_ONLY: Final = frozenset(
    {
        "abortFile", "brokerConfigPath", "checkTransactionMessageEnable",
        "clientManagerThreadPoolQueueCapacity", "consumerManagerThreadPoolQueueCapacity",
        "debugLockEnable", "endTransactionPoolQueueCapacity", "endTransactionThreadPoolNums",
        "filterServerNums", "heartbeatThreadPoolNums", "heartbeatThreadPoolQueueCapacity",
        "highSpeedMode", "processReplyMessageThreadPoolNums", "putMessageFutureThreadPoolNums",
        "putMsgIndexHightWater", "putThreadPoolQueueCapacity", "replyThreadPoolQueueCapacity",
        "serverPooledByteBufAllocatorEnable", "serverSocketBacklog",
        "storeCheckpoint", "storePathConsumeQueue", "storePathIndex",
        "writeBufferHighWaterMark", "writeBufferLowWaterMark",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Values of the keys that brokers and name servers share, checked; those of TLS in `tls`."""

    tls: TlsConfig = field(default_factory=TlsConfig)

    # Connections
    bind_address: str = "127.0.0.1"  # brokers: brokerIP1 where this machine has it
    max_connections: Positive = 10_000  # ours
    max_connections_per_address: Count = 0  # ours; 0: half of max_connections
    server_channel_max_idle_time_seconds: Positive = 120  # s

    # Routes
    order_message_enable: bool = False  # routes carry the queues of ordered topics

    # Access control
    acl_enable: bool = False
    rocketmq_home: OfAccessControl[Path | None] = None  # has conf/plain_acl.yml
    audit_log_path: Path | None = None  # ours; administrators' changes; None: in the log

    # Logs
    log_level: Live[str] = "INFO"  # ours; for all, or INFO,skylarkmq.broker.net=DEBUG

    # Threads and buffers of the Java server
    server_worker_threads: Unused[Count] = 8
    server_selector_threads: Unused[Count] = 3
    server_callback_executor_threads: Unused[Count] = 0
    server_oneway_semaphore_value: Unused[Positive] = 256
    server_async_semaphore_value: Unused[Positive] = 64
    server_socket_snd_buf_size: Unused[Bytes | None] = None  # None: the system's
    server_socket_rcv_buf_size: Unused[Bytes | None] = None  # None: the system's
    use_epoll_native_selector: Unused[bool] = False

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: a value is outside of its limits, or lacks another one.
        """
        check_values(self)
        _check_word("bindAddress", self.bind_address)
        try:
            parse_levels(self.log_level)
        except ValueError as error:
            raise ConfigError("logLevel", self.log_level, str(error)) from error
        if self.acl_enable and self.rocketmq_home is None:
            cure = "say where conf/plain_acl.yml is: set rocketmqHome, or ROCKETMQ_HOME"
            raise ConfigError("aclEnable", "true", cure)

    @property
    def connections_per_address(self) -> int:
        """How many connections one address may have, so that others find room."""
        return self.max_connections_per_address or (self.max_connections + 1) // 2


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(ServerConfig):
    """Values of a broker's keys, checked; those of its store are in `store`."""

    store: StoreConfig

    # Identity
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "DEFAULT_BROKER"  # the loader's default is the host name
    broker_id: Long = MASTER_ID  # 0: master; each slave of it has its own above 0
    broker_ip1: str | None = None  # what clients are told; None: found from bindAddress
    broker_ip2: str | None = None  # the replication address; None: as brokerIP1
    region_id: str = "DefaultRegion"
    broker_permission: Live[Permission] = READ_WRITE  # 4 read + 2 write

    brokers: BrokerCount = 1  # ours; processes that `serve` and `broker` run, each a whole broker
    hung_process_timeout_seconds: Count = 60  # ours; of `brokers`; 0: none is killed

    # Where it listens; 0 picks a free port
    listen_port: Port = 10911  # the fast port is 2 below
    namesrv_listen_port: Port = 9876  # of the built-in name server
    grpc_listen_port: Port | None = None  # for clients of RocketMQ 5, 8081 there; off: nowhere
    grpc_advertised_address: str | None = None  # ours; host:port; None: as clients reached it
    grpc_proxy_mode: ProxyMode = "LOCAL"  # ours; CLUSTER: calls of other brokers are forwarded
    metrics_prom_exporter_port: Port | None = 5557  # off: no pages of metrics and health
    metrics_prom_exporter_host: str | None = None  # None: as bindAddress
    max_inbound_buffered: BufferTotal = 256 << 20  # ours; bytes that came and were not handled
    max_outbound_buffered: BufferTotal = 256 << 20  # ours; bytes that peers leave unread

    # Name servers
    namesrv_addr: str | None = None  # `host:port`, several separated by `;`
    fetch_namesrv_addr_by_address_server: NoAddressServer[bool] = False
    register_name_server_period: Interval = 30_000  # ms, used within 10 to 60 s
    register_broker_timeout_mills: Interval = 6000  # ms
    force_register: Live[bool] = True  # False: only when the name server has another version
    compressed_register: Live[bool] = False

    # Topics and groups
    auto_create_topic_enable: Live[bool] = True
    auto_create_subscription_group: Live[bool] = True
    grpc_auto_create_topic_enable: Live[bool] = False  # ours; by who asks for its route
    default_topic_queue_nums: QueueCount = 8  # of TBW102, so the most that a new topic gets
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = RMQ_SYS_TRACE_TOPIC
    max_topics: Live[Positive] = 50_000  # ours
    max_groups: Live[Positive] = 50_000  # ours
    max_deduplication_keys: Live[Positive] = 1_000_000  # ours; of all topics' windows together
    # Not counted with access control.
    new_names_per_second: Count = 100  # ours; topics and groups by use, of one address; 0: any
    # The whole table is written each time: at 1 s, 10,000 groups of 8 queues make 132 GB a day.
    flush_consumer_offset_interval: Interval = 5000  # ms

    # Sending and pulling
    start_accept_send_request_time_stamp: Live[Long] = 0  # ms since the epoch
    reject_transaction_message: Live[bool] = False
    long_polling_enable: bool = True
    short_polling_time_mills: OfShortPolling[Interval] = 1000  # ms
    notify_consumer_ids_changed_enable: Live[bool] = True
    pop_inflight_max_per_queue: Positive = 10_000  # ours; handed out by pop, not acknowledged
    pop_inflight_max_per_group: Positive = 100_000  # ours
    pop_inflight_max: Positive = 1_000_000  # ours; of all groups
    enable_retry_topic_v2: bool = False  # 5.x's; pop retries in %RETRY%group+topic, both are read
    consume_young_queue_from_first: bool = True  # ours; RocketMQ's rule for groups that are new
    slave_read_enable: Live[bool] = False
    transfer_msg_by_heap: Unused[bool] = True
    disable_consume_if_consumer_read_slowly: Unused[bool] = False
    consumer_fallbehind_threshold: Unused[Long] = 17_179_869_184  # bytes
    store_reply_message_enable: Live[bool] = True
    trace_on: Live[bool] = True  # answers of sends say so to the clients' tracing

    # Flow control
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: OfFastFailure[Milliseconds] = 200  # ms
    wait_time_mills_in_pull_queue: OfFastFailure[Milliseconds] = 5000  # ms
    wait_time_mills_in_heartbeat_queue: OfFastFailure[Milliseconds] = 31_000  # ms
    wait_time_mills_in_transaction_queue: OfFastFailure[Milliseconds] = 3000  # ms

    # Replication
    ha_allowed_addresses: str | None = None  # ours; a white list of who may copy the log

    # Replicas that elect their master
    controller_endpoints: str | None = None  # ours; etcd's client URLs, several with commas
    controller_user: str = ""  # ours; empty: etcd asks nobody who they are
    controller_password_file: Path | None = None  # ours; one line, the password
    controller_lease_ttl: LeaseSeconds = 10  # ours; s; a master's silence until then
    min_in_sync_replicas: ReplicaCount = 1  # fewer in sync: sends are refused
    all_ack_in_sync_state_set: AllInSync[bool] = True
    ha_max_time_slave_not_catchup: Interval = 15_000  # ms behind, then out of sync
    broker_election_priority: Count = 2_147_483_647  # the lower goes first

    # Transactions
    transaction_time_out: Interval = 6000  # ms
    transaction_check_max: Positive = 15
    transaction_check_interval: Interval = 60_000  # ms

    # Filters
    enable_property_filter: bool = False  # SQL92
    enable_calc_filter_bit_map: Unused[bool] = False
    expect_consumer_num_use_filter: Unused[Count] = 32
    max_error_rate_of_bloom_filter: Unused[Count] = 20  # %
    filter_support_retry: bool = False
    filter_data_clean_time_span: Unused[Long] = 86_400_000  # ms

    # Statistics
    enable_detail_stat: Unused[bool] = True
    auto_delete_unused_stats: Unused[bool] = False

    # Threads and buffers of the Java broker
    send_message_thread_pool_nums: Unused[Positive] = _SEND_THREADS
    pull_message_thread_pool_nums: Unused[Positive] = 16 + 2 * _CPUS
    query_message_thread_pool_nums: Unused[Positive] = 8 + _CPUS
    admin_broker_thread_pool_nums: Unused[Positive] = 16
    client_manage_thread_pool_nums: Unused[Positive] = 32
    consumer_manage_thread_pool_nums: Unused[Positive] = 32
    send_thread_pool_queue_capacity: Positive = 10_000
    pull_thread_pool_queue_capacity: Positive = 100_000
    query_thread_pool_queue_capacity: Positive = 20_000

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: a value is outside of its limits.
        """
        super().__post_init__()
        _check_word("brokerName", self.broker_name)
        _check_word("brokerClusterName", self.broker_cluster_name)
        if 0 < self.listen_port <= FAST_PORT_DISTANCE:
            raise ConfigError(
                "listenPort", self.listen_port, "use 0 or at least 3: the fast port is 2 below"
            )
        parse_namesrv_addresses(self.namesrv_addr)
        if self.grpc_advertised_address and not _is_address(self.grpc_advertised_address):
            raise ConfigError(
                "grpcAdvertisedAddress", self.grpc_advertised_address, "write host:port"
            )
        self._check_role()
        self._check_replication()

    @property
    def is_replica(self) -> bool:
        """True when replicas elect their master, so that nobody's role is configured."""
        return self.controller_endpoints is not None

    def _check_role(self) -> None:
        role = self.store.broker_role
        if self.is_replica:
            if self.store.is_slave:
                cure = "replicas elect their master: remove the key, or controllerEndpoints"
                raise ConfigError("brokerRole", role, cure)
            if self.broker_id == MASTER_ID:
                cure = "use 1 or more, another one for each replica: its id while it follows"
                raise ConfigError("brokerId", self.broker_id, cure)
            return
        if self.store.is_slave and self.broker_id == MASTER_ID:
            cure = f"{MASTER_ID} is the master's id; use 1 or more, another one for each slave"
            raise ConfigError("brokerId", self.broker_id, cure)
        if not self.store.is_slave and self.broker_id != MASTER_ID:
            cure = f"with brokerRole={role} it is {MASTER_ID}; or set brokerRole=SLAVE"
            raise ConfigError("brokerId", self.broker_id, cure)

    def _check_replication(self) -> None:
        store = self.store
        if self.controller_endpoints is not None:
            try:
                read_endpoints(self.controller_endpoints)
            except ValueError as error:
                raise ConfigError(
                    "controllerEndpoints", self.controller_endpoints, str(error)
                ) from error
            if store.ha_master_address is not None:
                cure = "replicas find their master in etcd: remove the key"
                raise ConfigError("haMasterAddress", store.ha_master_address, cure)
        if store.ha_master_address is not None and not _is_address(store.ha_master_address):
            raise ConfigError("haMasterAddress", store.ha_master_address, "write host:port")
        if store.ha_transfer_batch_size > PART_SIZE_MAX:
            raise ConfigError(
                "haTransferBatchSize",
                store.ha_transfer_batch_size,
                f"use at most {PART_SIZE_MAX}, which is what slaves read at once",
            )
        if self.ha_allowed_addresses is not None:
            try:
                AddressList([self.ha_allowed_addresses])
            except AddressError as error:
                raise ConfigError(
                    "haAllowedAddresses", self.ha_allowed_addresses, str(error)
                ) from error

    def server_count(self, *, with_namesrv: bool) -> int:
        """Return how many servers have `maxConnections` each, in the process of this broker."""
        return 1 + with_namesrv + (self.grpc_listen_port is not None)

    def ha_port(self, listen_port: int) -> int:
        """Return where slaves connect, for a broker that listens on `listen_port`."""
        return self.store.ha_listen_port or listen_port + HA_PORT_DISTANCE

    @property
    def metrics_host(self) -> str:
        """The address that the metrics are served on."""
        return self.metrics_prom_exporter_host or self.bind_address


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig(ServerConfig):
    """Values of a name server's keys, checked."""

    # Address and files
    listen_port: Port = 9876  # 0 picks a free one
    cluster_test: NotBuilt[bool] = False
    product_env_name: Unused[str] = "center"
    kv_config_path: Path | None = None  # None: in memory alone; the loader gives a default
    config_store_path: Unused[str | None] = None


def parse_namesrv_addresses(text: str | None) -> list[str]:
    """Return the addresses in `namesrvAddr`, each `host:port`, each once.

    Raises:
        ConfigError: a part is no host with a port.
    """
    addresses: dict[str, None] = {}
    for part in (text or "").split(";"):
        address = part.strip()
        if not address:
            continue
        if not _is_address(address):
            raise ConfigError("namesrvAddr", text, "write host:port, several separated by `;`")
        addresses[address] = None
    return list(addresses)


def _is_address(text: str) -> bool:
    """Return whether a text is `host:port`."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def _check_word(key: str, value: str) -> None:
    if not value or not value.isprintable() or " " in value:
        raise ConfigError(key, repr(value), "use a name without blanks")
