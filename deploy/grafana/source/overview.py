"""The board that tells whether all is well, and where to look."""

from __future__ import annotations

from deploy.grafana.style import (
    ACK,
    ANY,
    BYTES,
    BYTES_PER_SECOND,
    CORES,
    COUNT,
    DISK,
    DLQ,
    EACH,
    HERE,
    OLD,
    PER_SECOND,
    RATIO,
    READ,
    SECONDS,
    SENT,
    SLOW,
    Board,
    figure,
    graph,
    group_lag,
    listing,
    node,
    ours,
    process,
    quantile,
    rate,
)

LAG_NOW = group_lag("rocketmq_consumer_lag_messages")
OLDEST = group_lag("rocketmq_consumer_lag_latency_milliseconds")
NOW = [
    figure(
        "Brokers", "Brokers that were scraped, slaves and followers among them.",
        f"count({ours('skylarkmq_start_time_seconds')})",
    ),
    figure(
        "Parts not ready", "Parts of brokers that are not ready; /readyz?verbose says why.",
        f"count({ours('skylarkmq_ready')}) - sum({ours('skylarkmq_ready')})", steps=ANY,
    ),
    figure(
        "Messages in", "Messages stored a second.", f"sum({rate(node(SENT))})", PER_SECOND
    ),
    figure(
        "Messages out", "Messages handed to consumers a second.", f"sum({rate(node(READ))})",
        PER_SECOND,
    ),
    figure("Lag", "Messages that groups have not confirmed, all groups.", f"sum({LAG_NOW})"),
    figure(
        "Fullest disk", "Above 85 % the oldest messages go, above 90 % sends are refused.",
        f"max({ours('skylarkmq_store_disk_used_ratio')})", RATIO, DISK,
    ),
]  # fmt: skip
LAG = [
    graph(
        "Groups with the most lag", "Messages that a group has not confirmed.", COUNT,
        (f"topk(10, sum by (consumer_group) ({LAG_NOW}))", "{{consumer_group}}"),
    ),
    graph(
        "Oldest unread", "How long the oldest message that is not confirmed has been stored.",
        SECONDS,
        (f"topk(10, max by (consumer_group) ({OLDEST}) / 1000)", "{{consumer_group}}"),
        steps=OLD,
    ),
    graph(
        "Dead letters", "Messages a second that groups have given up.", PER_SECOND,
        (f"sum by (consumer_group) ({rate(node(DLQ))})", "{{consumer_group}}"),
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Messages in by broker", "Messages stored a second.", PER_SECOND,
        (f"sum by (node_id) ({rate(node(SENT))})", "{{node_id}}"),
    ),
    graph(
        "Messages out by broker", "Messages handed to consumers a second.", PER_SECOND,
        (f"sum by (node_id) ({rate(node(READ))})", "{{node_id}}"),
    ),
    graph(
        "Network", "Bytes of frames to and from clients a second.", BYTES_PER_SECOND,
        (
            f"sum by (broker, direction) ({rate(ours('skylarkmq_network_bytes_total'))})",
            "{{broker}} {{direction}}",
        ),
    ),
    graph(
        "Processor", "Cores that each process uses.", CORES,
        (process(f"{rate('process_cpu_seconds_total')}"), "{{instance}}"),
    ),
    graph(
        "Memory", "Resident memory of each process; mapped files are not all of it.", BYTES,
        (process("process_resident_memory_bytes"), "{{instance}}"),
    ),
    graph(
        "Connections", "Open client connections.", COUNT,
        (f"sum by (broker, instance) ({ours('skylarkmq_connections')})", HERE),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Acknowledgement", "Below it are 99 % of the waits from append to acknowledgement, "
        "where acknowledgements wait for the disk or for other replicas.", SECONDS,
        (quantile(0.99, ours(ACK), EACH), HERE), steps=SLOW,
    ),
    graph(
        "Requests", "Below it are 99 % of the times from a request to its answer, the waits of "
        "held pulls aside.", SECONDS,
        (
            quantile(0.99, ours("skylarkmq_request_duration_seconds_bucket"), EACH),
            HERE,
        ),
    ),
    graph(
        "Event loop", "Below it are 99 % of the delays of a 100 ms tick: the process keeps up "
        "while it is small.", SECONDS,
        (quantile(0.99, ours("skylarkmq_event_loop_lag_seconds_bucket"), EACH), HERE),
        steps=((0.25, "red"),),
    ),
]  # fmt: skip
STATE = [
    listing(
        "Brokers", "What runs where, and since when.",
        (
            "sum by (cluster, broker, instance, version) "
            f"({ours('skylarkmq_build_info')})", "Processes", COUNT,
        ),
        (
            "max by (cluster, broker, instance) "
            f"(time() - {ours('skylarkmq_start_time_seconds')})", "Up for", SECONDS,
        ),
        (
            f"min by (cluster, broker, instance) ({ours('skylarkmq_ready')})", "Ready", COUNT,
        ),
    ),
]  # fmt: skip
TROUBLE = [
    listing(
        "Alerts that fire", "Those of the rules that Prometheus has loaded.",
        (
            "count by (alertname, severity, cluster, broker, instance) "
            '(ALERTS{alertstate="firing",alertname=~"SkylarkMQ.*"})', "Series", COUNT,
        ),
    ),
    graph(
        "Refused requests", "Requests refused a second, by cause.", PER_SECOND,
        (
            "sum by (broker, kind, cause) "
            f"({rate(ours('skylarkmq_requests_rejected_total'))})",
            "{{broker}} {{kind}} {{cause}}",
        ),
    ),
    graph(
        "Not ready", "1 while a part of a broker is not ready.", COUNT,
        (f"1 - {ours('skylarkmq_ready')}", "{{broker}} {{instance}} {{component}}"),
    ),
    graph(
        "Name servers that do not know a broker", "1 while a name server has not taken the "
        "broker's last registration; those in the broker's own process are not shown.", COUNT,
        (
            f"1 - {ours('skylarkmq_nameserver_registered')}",
            "{{broker}} {{instance}} at {{nameserver}}",
        ),
    ),
    graph(
        "Errors of the disk", "Failed writes and flushes; one ends the writing.", COUNT,
        (
            f"sum by ({EACH}, operation) ({ours('skylarkmq_store_errors_total')})",
            "{{broker}} {{instance}} {{operation}}",
        ),
        steps=ANY,
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-overview", "SkylarkMQ: overview", "Whether all is well, and where to look.",
    [
        ("Now", NOW), ("Lag", LAG), ("Load", LOAD), ("Latency", LATENCY), ("State", STATE),
        ("Trouble", TROUBLE),
    ],
)  # fmt: skip
