"""The text of /metrics for a fixed scenario, and the rules that hold for every series."""

import platform
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from skylarkmq import __version__, kernel
from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.base.stats import FINISH_BOUNDS_S, SIZE_BOUNDS, BrokerStats
from skylarkmq.broker.broker_metrics import BrokerCollector, build_registry
from skylarkmq.broker.metrics.families import lines_of
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.broker.metrics.sources import PART_SIZE, MetricsSources
from skylarkmq.common.files import DiskSpace
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.store.stats import StoreStats

BUILD = (
    f'kernel="{kernel.road}",loop="asyncio",platform="{platform.system()} {platform.machine()}",'
    f'python="{platform.python_implementation()} {platform.python_version()}",'
    f'store_format="rocketmq-4.9",version="{__version__}"'
)


def a_scenario(**changes: object) -> MetricsSources:
    """A broker that stored three messages, handed out one and lost one connection."""
    broker, store = BrokerStats(), StoreStats()
    orders = broker.topic_in("orders")
    orders.add(1024)
    orders.add(5000)
    delayed = broker.topic_in("orders", "delay")
    delayed.add(4_194_305)
    broker.topic_in("SCHEDULE_TOPIC_XXXX").add(1)
    out = broker.topic_out("orders", "billing")
    out.count, out.bytes = 1, 150
    broker.frames_in[SerializeType.ROCKETMQ].count = 3
    broker.frames_in[SerializeType.ROCKETMQ].bytes = 900
    broker.protocol_errors["too_large"] = 1
    broker.pull_results["found"] = 1
    broker.connections_opened = 2
    broker.connection_closed("peer")
    broker.request(RequestCode.SEND_MESSAGE_V2).observe_many(0.0007, 3)
    broker.loop_lag.observe(0.002)
    store.append_duration.observe(0.00003)
    store.fsync_commit_log.observe(0.004)
    store.group_commit_size.observe(3)
    store.ack_wait.observe_many(0.005, 3)
    store.messages_appended, store.bytes_appended = 4, 800
    store.late_allocations = 1
    store.fsync_errors = 1
    store.cold_reads, store.corrupt_records, store.log_files_deleted = 6, 1, 2
    store.disk_used_percent.update(commitlog=81, consumequeue=-1)
    store.disk_space["commitlog"] = DiskSpace(8100, 1900)
    store.recovery_mode = "abnormal"
    store.recovery_duration_s = 0.25
    store.recovery_truncated_bytes["commitlog"] = 17
    sources = {
        "cluster": "DefaultCluster",
        "broker": "broker-a",
        "loop": "asyncio",
        "broker_stats": broker,
        "store_stats": store,
        "store_offsets": lambda: {
            "min": 100,
            "max": 1000,
            "flushed": 600,
            "dispatched": 900,
            "indexed": 850,
        },
        "pool_buffers": lambda: {"available": 3, "in_use": 2},
        "health": HealthChecks(ready={"store": lambda: "", "route": lambda: "not registered"}),
        "started_at_ms": lambda: 1_700_000_000_500,
        "connections": lambda: {"producer": 1, "consumer": 0},
        "longpoll_waiting": lambda: 4,
        "topic_count": lambda: 7,
        "group_count": lambda: 2,
        "permission": lambda: 6,
        "lag": lambda: [
            Lag("orders", "billing", 7, 1500), Lag("%RETRY%billing", "billing", 1, None),
        ],
    }  # fmt: skip
    return MetricsSources(**{**sources, **changes})  # type: ignore[arg-type]


def text_of(sources: MetricsSources) -> str:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(sources))
    return generate_latest(registry).decode()


def family(text: str, name: str) -> list[str]:
    """The lines of one family, without its help."""
    return [
        line
        for line in text.splitlines()
        if line.startswith((f"# TYPE {name} ", f"{name}{{", f"{name}_"))
    ]


OURS = 'broker="broker-a",cluster="DefaultCluster"'
NODE = 'cluster="DefaultCluster",node_id="broker-a",node_type="broker"'
DISK = 'storage_medium="disk",storage_type="local"'

SIZE_LABELS = ("1024.0", "4096.0", "524288.0", "1048576.0", "2097152.0", "4194304.0", "+Inf")


def sizes_of_orders(message_type: str, counts: list[int], total: str) -> list[str]:
    """The lines of the sizes of the scenario's records; counts are cumulated."""
    rest = f'message_type="{message_type}",node_id="broker-a",node_type="broker",topic="orders"'
    name, labels = "rocketmq_message_size", 'cluster="DefaultCluster",is_system="false"'
    return [
        *(
            f'{name}_bucket{{{labels},le="{bound}",{rest}}} {count}.0'
            for bound, count in zip(SIZE_LABELS, counts, strict=True)
        ),
        f"{name}_count{{{labels},{rest}}} {counts[-1]}.0",
        f"{name}_sum{{{labels},{rest}}} {total}",
    ]


EXACT = {
    "rocketmq_consumer_lag_messages": [
        "# TYPE rocketmq_consumer_lag_messages gauge",
        'rocketmq_consumer_lag_messages{cluster="DefaultCluster",consumer_group="billing",'
        'is_retry="false",is_system="false",node_id="broker-a",node_type="broker",'
        'topic="orders"} 7.0',
        'rocketmq_consumer_lag_messages{cluster="DefaultCluster",consumer_group="billing",'
        'is_retry="true",is_system="false",node_id="broker-a",node_type="broker",'
        'topic="%RETRY%billing"} 1.0',
    ],
    "rocketmq_consumer_lag_latency_milliseconds": [
        "# TYPE rocketmq_consumer_lag_latency_milliseconds gauge",
        'rocketmq_consumer_lag_latency_milliseconds{cluster="DefaultCluster",'
        'consumer_group="billing",is_retry="false",is_system="false",node_id="broker-a",'
        'node_type="broker",topic="orders"} 1500.0',
    ],
    "skylarkmq_build_info": [
        "# TYPE skylarkmq_build_info gauge",
        f"skylarkmq_build_info{{{OURS},{BUILD}}} 1.0",
    ],
    "skylarkmq_start_time_seconds": [
        "# TYPE skylarkmq_start_time_seconds gauge",
        f"skylarkmq_start_time_seconds{{{OURS}}} 1.7000000005e+09",
    ],
    "skylarkmq_ready": [
        "# TYPE skylarkmq_ready gauge",
        f'skylarkmq_ready{{{OURS},component="store"}} 1.0',
        f'skylarkmq_ready{{{OURS},component="route"}} 0.0',
    ],
    "skylarkmq_connections": [
        "# TYPE skylarkmq_connections gauge",
        f'skylarkmq_connections{{{OURS},role="producer"}} 1.0',
        f'skylarkmq_connections{{{OURS},role="consumer"}} 0.0',
        f"skylarkmq_connections_opened_total{{{OURS}}} 2.0",
        f'skylarkmq_connections_closed_total{{{OURS},reason="peer"}} 1.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="error"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="protocol_error"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="idle_timeout"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="slow_reader"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="slow_sender"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="shutdown"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="limit"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="revoked"}} 0.0',
        f'skylarkmq_connections_closed_total{{{OURS},reason="other"}} 0.0',
    ],
    "skylarkmq_network_bytes_total": [
        "# TYPE skylarkmq_network_bytes_total counter",
        f'skylarkmq_network_bytes_total{{{OURS},codec="json",direction="in"}} 0.0',
        f'skylarkmq_network_bytes_total{{{OURS},codec="rocketmq",direction="in"}} 900.0',
        f'skylarkmq_network_bytes_total{{{OURS},codec="msgpack",direction="in"}} 0.0',
        f'skylarkmq_network_bytes_total{{{OURS},codec="json",direction="out"}} 0.0',
        f'skylarkmq_network_bytes_total{{{OURS},codec="rocketmq",direction="out"}} 0.0',
        f'skylarkmq_network_bytes_total{{{OURS},codec="msgpack",direction="out"}} 0.0',
    ],
    "skylarkmq_request_duration_seconds": [
        "# TYPE skylarkmq_request_duration_seconds histogram",
        *(
            f"skylarkmq_request_duration_seconds_bucket{{{OURS},"
            f'le="{bound}",outcome="ok",request="send_message_v2"}} {count}'
            for bound, count in [
                ("0.0005", "0.0"),
                *(
                    (bound, "3.0")
                    for bound in (
                        "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1",
                        "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf",
                    )
                ),
            ]
        ),
        f"skylarkmq_request_duration_seconds_count{{{OURS},"
        'outcome="ok",request="send_message_v2"} 3.0',
        f"skylarkmq_request_duration_seconds_sum{{{OURS},"
        'outcome="ok",request="send_message_v2"} 0.0021',
    ],
    "skylarkmq_longpoll_waiting": [
        "# TYPE skylarkmq_longpoll_waiting gauge",
        f"skylarkmq_longpoll_waiting{{{OURS}}} 4.0",
    ],
    "rocketmq_messages_in_total": [
        "# TYPE rocketmq_messages_in_total counter",
        'rocketmq_messages_in_total{cluster="DefaultCluster",is_system="false",'
        'message_type="delay",node_id="broker-a",node_type="broker",topic="orders"} 1.0',
        'rocketmq_messages_in_total{cluster="DefaultCluster",is_system="false",'
        'message_type="normal",node_id="broker-a",node_type="broker",topic="orders"} 2.0',
    ],
    "rocketmq_message_size": [
        "# TYPE rocketmq_message_size histogram",
        *sizes_of_orders("delay", [0, 0, 0, 0, 0, 0, 1], "4.194305e+06"),
        *sizes_of_orders("normal", [1, 1, 2, 2, 2, 2, 2], "6024.0"),
    ],
    "rocketmq_throughput_out_total": [
        "# TYPE rocketmq_throughput_out_total counter",
        'rocketmq_throughput_out_total{cluster="DefaultCluster",consumer_group="billing",'
        'is_system="false",node_id="broker-a",node_type="broker",topic="orders"} 150.0',
    ],
    "rocketmq_topic_number": [
        "# TYPE rocketmq_topic_number gauge",
        f"rocketmq_topic_number{{{NODE}}} 7.0",
    ],
    "skylarkmq_store_offset_bytes": [
        "# TYPE skylarkmq_store_offset_bytes gauge",
        f'skylarkmq_store_offset_bytes{{{OURS},mark="min"}} 100.0',
        f'skylarkmq_store_offset_bytes{{{OURS},mark="max"}} 1000.0',
        f'skylarkmq_store_offset_bytes{{{OURS},mark="flushed"}} 600.0',
        f'skylarkmq_store_offset_bytes{{{OURS},mark="dispatched"}} 900.0',
        f'skylarkmq_store_offset_bytes{{{OURS},mark="indexed"}} 850.0',
    ],
    "rocketmq_storage_size": [
        f"rocketmq_storage_size_bytes{{{NODE},{DISK}}} 8100.0",
        "# TYPE rocketmq_storage_size gauge",
        f"rocketmq_storage_size{{{NODE},{DISK}}} 8100.0",
    ],
    "rocketmq_storage_flush_behind_bytes": [
        "# TYPE rocketmq_storage_flush_behind_bytes gauge",
        f"rocketmq_storage_flush_behind_bytes{{{NODE},{DISK}}} 400.0",
    ],
    "skylarkmq_store_appended_messages_total": [
        "# TYPE skylarkmq_store_appended_messages_total counter",
        f"skylarkmq_store_appended_messages_total{{{OURS}}} 4.0",
    ],
    "skylarkmq_store_appended_bytes_total": [
        "# TYPE skylarkmq_store_appended_bytes_total counter",
        f"skylarkmq_store_appended_bytes_total{{{OURS}}} 800.0",
    ],
    "skylarkmq_store_late_allocations_total": [
        "# TYPE skylarkmq_store_late_allocations_total counter",
        f"skylarkmq_store_late_allocations_total{{{OURS}}} 1.0",
    ],
    "skylarkmq_store_errors_total": [
        "# TYPE skylarkmq_store_errors_total counter",
        f'skylarkmq_store_errors_total{{{OURS},operation="write"}} 0.0',
        f'skylarkmq_store_errors_total{{{OURS},operation="fsync"}} 1.0',
    ],
    "skylarkmq_store_disk_used_ratio": [
        "# TYPE skylarkmq_store_disk_used_ratio gauge",
        f'skylarkmq_store_disk_used_ratio{{{OURS},kind="commitlog"}} 0.81',
    ],
    "skylarkmq_store_files_deleted_total": [
        "# TYPE skylarkmq_store_files_deleted_total counter",
        f'skylarkmq_store_files_deleted_total{{{OURS},kind="commitlog"}} 2.0',
        f'skylarkmq_store_files_deleted_total{{{OURS},kind="consumequeue"}} 0.0',
    ],
    "skylarkmq_store_pool_buffers": [
        "# TYPE skylarkmq_store_pool_buffers gauge",
        f'skylarkmq_store_pool_buffers{{{OURS},state="available"}} 3.0',
        f'skylarkmq_store_pool_buffers{{{OURS},state="in_use"}} 2.0',
    ],
    "skylarkmq_store_index_behind_bytes": [
        "# TYPE skylarkmq_store_index_behind_bytes gauge",
        f"skylarkmq_store_index_behind_bytes{{{OURS}}} 150.0",
    ],
    "skylarkmq_store_corrupt_records_total": [
        "# TYPE skylarkmq_store_corrupt_records_total counter",
        f"skylarkmq_store_corrupt_records_total{{{OURS}}} 1.0",
    ],
    "skylarkmq_store_recovery_duration_seconds": [
        "# TYPE skylarkmq_store_recovery_duration_seconds gauge",
        f'skylarkmq_store_recovery_duration_seconds{{{OURS},mode="abnormal"}} 0.25',
    ],
    "skylarkmq_store_recovery_truncated_bytes": [
        "# TYPE skylarkmq_store_recovery_truncated_bytes gauge",
        f'skylarkmq_store_recovery_truncated_bytes{{{OURS},kind="commitlog"}} 17.0',
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_text_of_a_family(name: str) -> None:
    assert family(text_of(a_scenario()), name) == EXACT[name]


def test_every_family_of_the_first_set_is_there() -> None:
    names = [
        line.split()[2] for line in text_of(a_scenario()).splitlines() if line.startswith("# TYPE")
    ]
    assert names == [
        "skylarkmq_build_info",
        "skylarkmq_start_time_seconds",
        "skylarkmq_ready",
        "skylarkmq_event_loop_lag_seconds",
        "skylarkmq_metrics_series_dropped_total",
        "skylarkmq_consumer_filters",
        "skylarkmq_connections",
        "skylarkmq_connections_opened_total",
        "skylarkmq_connections_closed_total",
        "skylarkmq_heartbeats_refused_total",
        "skylarkmq_network_bytes_total",
        "skylarkmq_frames_total",
        "skylarkmq_protocol_errors_total",
        "skylarkmq_auth_failures_total",
        "skylarkmq_acl_reload_failures_total",
        "skylarkmq_requests_rejected_total",
        "skylarkmq_request_duration_seconds",
        "skylarkmq_longpoll_waiting",
        "skylarkmq_pull_results_total",
        "skylarkmq_store_append_duration_seconds",
        "skylarkmq_store_fsync_duration_seconds",
        "skylarkmq_store_commit_duration_seconds",
        "skylarkmq_store_group_commit_size",
        "skylarkmq_store_ack_wait_seconds",
        "skylarkmq_store_appended_messages_total",
        "skylarkmq_store_appended_bytes_total",
        "skylarkmq_store_late_allocations_total",
        "skylarkmq_store_errors_total",
        "skylarkmq_store_clock_steps_total",
        "skylarkmq_store_cold_reads_total",
        "skylarkmq_store_corrupt_records_total",
        "skylarkmq_filter_records_total",
        "skylarkmq_store_index_entries_total",
        "skylarkmq_store_index_records_read_total",
        "skylarkmq_store_disk_used_ratio",
        "skylarkmq_store_files_deleted_total",
        "skylarkmq_store_pool_buffers",
        "skylarkmq_store_offset_bytes",
        "skylarkmq_store_index_behind_bytes",
        "skylarkmq_store_recovery_duration_seconds",
        "skylarkmq_store_recovery_truncated_bytes",
        "rocketmq_broker_permission",
        "rocketmq_topic_number",
        "rocketmq_consumer_group_number",
        "rocketmq_messages_in_total",
        "rocketmq_throughput_in_total",
        "rocketmq_message_size",
        "rocketmq_messages_out_total",
        "rocketmq_throughput_out_total",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_lag_latency_milliseconds",
        "rocketmq_consumer_lag_latency",
        "rocketmq_consumer_inflight_messages",
        "rocketmq_consumer_ready_messages",
        "rocketmq_consumer_queueing_latency_milliseconds",
        "rocketmq_consumer_queueing_latency",
        "rocketmq_storage_size_bytes",
        "rocketmq_storage_size",
        "rocketmq_storage_flush_behind_bytes",
        "rocketmq_storage_flush_behind",
        "rocketmq_storage_dispatch_behind_bytes",
        "rocketmq_storage_dispatch_behind",
    ]


def test_nothing_is_claimed_before_it_was_counted() -> None:
    text = text_of(
        a_scenario(
            broker_stats=BrokerStats(),
            store_stats=StoreStats(),
            store_offsets=dict,
            pool_buffers=dict,
            lag=tuple,
            started_at_ms=lambda: 0,
        )
    )
    for absent in (
        "skylarkmq_start_time_seconds",
        "rocketmq_messages_in_total",
        "skylarkmq_store_offset_bytes",
        "rocketmq_storage_size_bytes",
        "skylarkmq_store_recovery_duration_seconds",
    ):
        assert absent not in text


def test_a_topic_beyond_the_limit_is_other() -> None:
    stats = BrokerStats(series_limit=1)
    for topic in ("a", "b", "c"):
        stats.topic_in(topic).count += 1
    lines = family(text_of(a_scenario(broker_stats=stats)), "rocketmq_messages_in_total")
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["2.0", "1.0"]
    assert 'topic="__other__"' in lines[1]


def test_what_grows_with_topics_comes_in_parts_for_one_turn_each() -> None:
    """Histograms, too, of which a row has many lines."""
    stats = BrokerStats()
    for number in range(600):
        stats.topic_in(f"topic-{number}").add(100)
        stats.transactions_of(f"topic-{number}").committed = 1
    sizes = Counter[str]()
    for part in BrokerCollector(a_scenario(broker_stats=stats)).collect():
        assert len(part.samples) <= PART_SIZE, part.name
        sizes[part.name] += len(part.samples)
    assert sizes["rocketmq_messages_in"] == 600
    assert sizes["rocketmq_message_size"] == 600 * lines_of(SIZE_BOUNDS)
    latency = "rocketmq_finish_message_latency_milliseconds"
    assert sizes[latency] == 600 * lines_of(FINISH_BOUNDS_S)


def test_the_whole_registry_is_valid_openmetrics() -> None:
    text = generate_openmetrics(build_registry(a_scenario())).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert "skylarkmq_build" in families
    assert "process_open_fds" in families
