"""The board of those who connect, and of what they are refused."""

from __future__ import annotations

from deploy.grafana.style import (
    BYTES_PER_SECOND,
    COUNT,
    HERE,
    PER_SECOND,
    SECONDS,
    Board,
    figure,
    graph,
    listing,
    node,
    ours,
    quantile,
    rate,
)

REQUESTS = "skylarkmq_request_duration_seconds"
EXPIRES = ours("skylarkmq_tls_certificate_expiry_time_seconds")
NOW = [
    figure("Connections", "Open.", f"sum({ours('skylarkmq_connections')})"),
    figure(
        "Memberships of producers", "A producer counts once at each broker.",
        f"sum({node('rocketmq_producer_connections')})",
    ),
    figure(
        "Memberships of consumers", "A consumer counts once for each group at each broker.",
        f"sum({node('rocketmq_consumer_connections')})",
    ),
    figure(
        "Held pulls", "Pulls that wait for a message.",
        f"sum({ours('skylarkmq_longpoll_waiting')})",
    ),
    figure(
        "TLS", "Open connections with TLS.", f"sum({ours('skylarkmq_tls_connections')})"
    ),
    figure(
        "First certificate ends", "Time until then.", f"min({EXPIRES}) - time()", SECONDS,
        ((0, "red"), (2 * 86400, "orange"), (14 * 86400, "green")),
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Connections", "Open, by what their heartbeats say.", COUNT,
        (f"sum by (broker, role) ({ours('skylarkmq_connections')})", "{{broker}} {{role}}"),
    ),
    graph(
        "Opened and ended", "Connections a second.", PER_SECOND,
        (
            f"sum by (broker) ({rate(ours('skylarkmq_connections_opened_total'))})",
            "{{broker}} opened",
        ),
        (
            f"sum by (broker, reason) ({rate(ours('skylarkmq_connections_closed_total'))})",
            "{{broker}} {{reason}}",
        ),
    ),
    graph(
        "Network", "Bytes of frames a second.", BYTES_PER_SECOND,
        (
            f"sum by (broker, direction) ({rate(ours('skylarkmq_network_bytes_total'))})",
            "{{broker}} {{direction}}",
        ),
    ),
    graph(
        "Frames", "Frames a second.", PER_SECOND,
        (
            f"sum by (broker, direction) ({rate(ours('skylarkmq_frames_total'))})",
            "{{broker}} {{direction}}",
        ),
    ),
    graph(
        "Requests", "Requests answered a second, sends aside.", PER_SECOND,
        (f"sum by (request) ({rate(ours(f'{REQUESTS}_count'))})", "{{request}}"),
    ),
    graph(
        "Pulls", "Outcomes of pulls a second.", PER_SECOND,
        (f"sum by (result) ({rate(ours('skylarkmq_pull_results_total'))})", "{{result}}"),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Requests", "Below it are 99 % of the times to the answer, by request.", SECONDS,
        (quantile(0.99, ours(f"{REQUESTS}_bucket"), "request"), "{{request}}"),
    ),
    graph(
        "Requests to clients", "Requests to clients without an answer yet.", COUNT,
        (ours("skylarkmq_client_calls_waiting"), HERE),
    ),
    graph(
        "Outcomes of requests to clients", "A second.", PER_SECOND,
        (f"sum by (outcome) ({rate(ours('skylarkmq_client_calls_total'))})", "{{outcome}}"),
    ),
]  # fmt: skip
STATE = [
    listing(
        "Consumers", "What members say of themselves.",
        (
            "sum by (consumer_group, language, version, consume_mode) "
            f"({node('rocketmq_consumer_connections')})", "Memberships", COUNT,
        ),
    ),
    listing(
        "Producers", "What members say of themselves.",
        (
            "sum by (language, version) "
            f"({node('rocketmq_producer_connections')})", "Memberships", COUNT,
        ),
    ),
    graph(
        "Clients of RocketMQ 5", "Their connections, and calls that are open.", COUNT,
        (
            f"sum by (broker) ({ours('skylarkmq_grpc_connections')})", "{{broker}} connections",
        ),
        (f"sum by (broker) ({ours('skylarkmq_grpc_open_calls')})", "{{broker}} open calls"),
    ),
    graph(
        "Calls by gRPC", "Answered a second, by status: 20000 is well, 40401 no message.",
        PER_SECOND,
        (
            f"sum by (rpc, code) ({rate(ours('skylarkmq_grpc_calls_total'))})",
            "{{rpc}} {{code}}",
        ),
    ),
    graph(
        "Calls handed on", "Answered a second by other brokers' endpoints, by broker and status.",
        PER_SECOND,
        (
            f"sum by (broker, to, code) ({rate(ours('skylarkmq_grpc_handed_on_calls_total'))})",
            "{{broker}} to {{to}} {{code}}",
        ),
    ),
    graph(
        "Pop: messages in hand", "Handed out and not acknowledged, by topic and group.", COUNT,
        (
            "sum by (topic, consumer_group) "
            f"({ours('skylarkmq_pop_in_flight_messages')})", "{{topic}} {{consumer_group}}",
        ),
    ),
    graph(
        "Pop: messages that wait", "That a receive would get, by topic and group.", COUNT,
        (
            "sum by (topic, consumer_group) "
            f"({ours('skylarkmq_pop_ready_messages')})", "{{topic}} {{consumer_group}}",
        ),
        (
            f"sum by (broker) ({ours('skylarkmq_pop_moving_messages')})",
            "{{broker}}: to be copied to retries",
        ),
    ),
    graph(
        "Pop: receives that wait", "For a message, by topic and group.", COUNT,
        (
            "sum by (topic, consumer_group) "
            f"({ours('skylarkmq_pop_waiting_receives')})", "{{topic}} {{consumer_group}}",
        ),
    ),
    graph(
        "Pop: handed out again", "Messages a second, by topic and group.", PER_SECOND,
        (
            "sum by (topic, consumer_group) "
            f"({rate(ours('skylarkmq_pop_redelivered_messages_total'))})",
            "{{topic}} {{consumer_group}}",
        ),
    ),
    graph(
        "Queue locks", "Queues that ordered consumers have locked.", COUNT,
        (ours("skylarkmq_queue_locks"), HERE),
    ),
    graph(
        "Open to the network", "1: any machine that reaches the broker may do anything.", COUNT,
        (ours("skylarkmq_open_to_network"), HERE),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Refused requests", "A second, by kind and cause.", PER_SECOND,
        (
            "sum by (broker, kind, cause) "
            f"({rate(ours('skylarkmq_requests_rejected_total'))})",
            "{{broker}} {{kind}} {{cause}}",
        ),
    ),
    graph(
        "Refused by access control", "Requests a second, by what was lacking.", PER_SECOND,
        (
            f"sum by (broker, reason) ({rate(ours('skylarkmq_auth_failures_total'))})",
            "{{broker}} {{reason}}",
        ),
    ),
    graph(
        "Refused heartbeats", "A second; such a client receives nothing, the log names it.",
        PER_SECOND, (rate(ours("skylarkmq_heartbeats_refused_total")), HERE),
    ),
    graph(
        "Broken protocol", "Frames a second that no client should send, by kind.", PER_SECOND,
        (
            f"sum by (broker, kind) ({rate(ours('skylarkmq_protocol_errors_total'))})",
            "{{broker}} {{kind}}",
        ),
    ),
    graph(
        "TLS", "Connections a second by what their first bytes and handshakes led to.",
        PER_SECOND,
        (
            f"sum by (listener, result) ({rate(ours('skylarkmq_tls_results_total'))})",
            "{{listener}} {{result}}",
        ),
    ),
    graph(
        "Differing subscriptions", "Different subscriptions among the members of a group.",
        COUNT,
        (
            "max by (consumer_group) "
            f"({ours('skylarkmq_consumer_group_differing_subscriptions')})",
            "{{consumer_group}}",
        ),
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-clients", "SkylarkMQ: clients", "Who is connected, and what they are refused.",
    [("Now", NOW), ("Load", LOAD), ("Latency", LATENCY), ("State", STATE), ("Trouble", TROUBLE)],
)  # fmt: skip
