"""The board of programs that use the SDK, as `Client(metrics=registry)` in them reports."""

from __future__ import annotations

from deploy.grafana.style import (
    ANY,
    BYTES,
    COUNT,
    PER_SECOND,
    SECONDS,
    Board,
    chosen,
    figure,
    graph,
    quantile,
    rate,
)


def sdk(name: str, **matchers: str) -> str:
    """Return a metric of the SDK, of the chosen applications."""
    return chosen(f"skylarkmq_client_{name}", job="$application", instance="$instance", **matchers)


SENDS = sdk("send_duration_seconds_count")
FAILED = sdk("send_duration_seconds_count", outcome="!ok")
HANDLED = sdk("consume_duration_seconds_count")
RECEIVES = sdk("receive_duration_seconds_count")
SETTLED = sdk("settle_duration_seconds_count")
NOT_SETTLED = sdk("settle_duration_seconds_count", outcome="!ok")
NOT_HANDLED = sdk("consume_duration_seconds_count", outcome="!ok")
NOW = [
    figure("Sends", "Sends that ended, a second.", f"sum({rate(SENDS)})", PER_SECOND),
    figure(
        "Sends that did not end well", "In the last hour: failed, or stored without the durability "
        "that was asked for.", f"sum(increase({FAILED}[1h])) or vector(0)", steps=ANY,
    ),
    figure(
        "Handled", "Messages that handlers have ended with, a second.", f"sum({rate(HANDLED)})",
        PER_SECOND,
    ),
    figure(
        "Handled without success", "In the last hour: given back, or given up.",
        f"sum(increase({NOT_HANDLED}[1h])) or vector(0)", steps=ANY,
    ),
    figure(
        "Held messages", "Messages that consumers hold, those at their handlers included.",
        f"sum({sdk('buffered_messages')})",
    ),
    figure(
        "Held bytes", "Their bodies.", f"sum({sdk('buffered_bytes')})", BYTES
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Sends", "A second, by how they ended.", PER_SECOND,
        (f"sum by (job, topic, outcome) ({rate(SENDS)})", "{{job}} {{topic}} {{outcome}}"),
    ),
    graph(
        "Handled", "Messages a second, by how their handlers ended.", PER_SECOND,
        (
            f"sum by (job, consumer_group, outcome) ({rate(HANDLED)})",
            "{{job}} {{consumer_group}} {{outcome}}",
        ),
    ),
    graph(
        "Receives", "Of SimpleConsumers, a second, by how they ended.", PER_SECOND,
        (
            f"sum by (job, consumer_group, outcome) ({rate(RECEIVES)})",
            "{{job}} {{consumer_group}} {{outcome}}",
        ),
    ),
    graph(
        "Received", "Messages a second that SimpleConsumers received.", PER_SECOND,
        (
            f"sum by (job, consumer_group) ({rate(sdk('received_messages_total'))})",
            "{{job}} {{consumer_group}}",
        ),
    ),
    graph(
        "Acknowledged", "Acknowledgements of SimpleConsumers a second, and changes of invisible "
        "times.", PER_SECOND,
        (
            f"sum by (job, consumer_group, operation) ({rate(SETTLED)})",
            "{{job}} {{consumer_group}} {{operation}}",
        ),
    ),
    graph(
        "Held messages", "Messages that consumers hold. At their limit (prefetch) handlers are the "
        "bottleneck, at zero the broker or the group has no more.", COUNT,
        (
            f"sum by (job, consumer_group) ({sdk('buffered_messages')})",
            "{{job}} {{consumer_group}}",
        ),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Sends", "Below it are 99 % of the sends, with all their tries.", SECONDS,
        (
            quantile(0.99, sdk("send_duration_seconds_bucket"), "job, topic"),
            "{{job}} {{topic}}",
        ),
    ),
    graph(
        "Handlers", "Below it are 99 % of the times that handlers take.", SECONDS,
        (
            quantile(0.99, sdk("consume_duration_seconds_bucket"), "job, consumer_group"),
            "{{job}} {{consumer_group}}",
        ),
    ),
    graph(
        "Waits for a handler", "Below it are 99 % of the times from the arrival of a message to "
        "its handler.", SECONDS,
        (
            quantile(0.99, sdk("receive_to_process_seconds_bucket"), "job, consumer_group"),
            "{{job}} {{consumer_group}}",
        ),
    ),
    graph(
        "Receive to acknowledgement", "Below it are 99 % of the times for which SimpleConsumers "
        "have a message. Near its invisible time: messages come again that are still at work.",
        SECONDS,
        (
            quantile(0.99, sdk("receive_to_ack_seconds_bucket"), "job, consumer_group"),
            "{{job}} {{consumer_group}}",
        ),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Tries that failed", "Tries of sends a second; the SDK tries again.", PER_SECOND,
        (f"sum by (job, reason) ({rate(sdk('send_retries_total'))})", "{{job}} {{reason}}"),
    ),
    graph(
        "Acknowledgements that failed", "Of SimpleConsumers, a second, with changes of invisible "
        "times; `ReceiptExpired`: the message took longer than it was hidden.", PER_SECOND,
        (
            f"sum by (job, consumer_group, outcome) ({rate(NOT_SETTLED)})",
            "{{job}} {{consumer_group}} {{outcome}}",
        ),
    ),
    graph(
        "Rebalances", "Changes of a member's queues in an hour. Many: members come and go, or "
        "cannot be reached.", COUNT,
        (
            f"sum by (job, consumer_group) (increase({sdk('rebalances_total')}[1h]))",
            "{{job}} {{consumer_group}}",
        ),
    ),
    graph(
        "Connections made again", "In an hour, to brokers and name servers.", COUNT,
        (
            f"sum by (job, peer_kind) (increase({sdk('reconnects_total')}[1h]))",
            "{{job}} {{peer_kind}}",
        ),
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-applications", "SkylarkMQ: applications",
    "Programs that use the SDK, as `Client(metrics=registry)` in them reports.",
    [("Now", NOW), ("Load", LOAD), ("Latency", LATENCY), ("Trouble", TROUBLE)],
    (
        ("application", "label_values(skylarkmq_client_send_duration_seconds_count, job)"),
        (
            "instance",
            "label_values(skylarkmq_client_send_duration_seconds_count"
            '{job=~"$application"}, instance)',
        ),
    ),
)  # fmt: skip
