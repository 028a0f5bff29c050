"""The board of topics and consumer groups: what is sent and read, and what is not read."""

from __future__ import annotations

from deploy.grafana.style import (
    ANY,
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    DLQ,
    MILLISECONDS,
    OLD,
    PER_SECOND,
    READ,
    SECONDS,
    SENT,
    Board,
    figure,
    graph,
    group_lag,
    listing,
    node,
    ours,
    rate,
)

CHOSEN = {"consumer_group": "$group", "topic": "$topic"}
LAG_NOW = group_lag("rocketmq_consumer_lag_messages", **CHOSEN)
OLDEST = group_lag("rocketmq_consumer_lag_latency_milliseconds", **CHOSEN)
CHOSEN_IN = node(SENT, topic="$topic")
CHOSEN_OUT = node(READ, topic="$topic", consumer_group="$group")
CHOSEN_DLQ = node(DLQ, topic="$topic", consumer_group="$group")
MEMBERS = node("rocketmq_consumer_connections", consumer_group="$group")
NOW = [
    figure("Lag", "Messages that are not confirmed.", f"sum({LAG_NOW})"),
    figure(
        "Oldest unread", "How long the oldest message that is not confirmed has been stored.",
        f"max({OLDEST}) / 1000", SECONDS, OLD,
    ),
    figure(
        "Groups with lag", "Groups in topics that have not confirmed all.",
        f"count({LAG_NOW} > 0) or vector(0)",
    ),
    figure(
        "Lag without members", "Messages of groups to which no consumer is connected.",
        f"sum(sum by (cluster, consumer_group) ({LAG_NOW}) unless "
        f"sum by (cluster, consumer_group) ({MEMBERS})) or vector(0)",
        steps=ANY,
    ),
    figure(
        "Dead letters", "Messages given up in the last hour.",
        f"sum(increase({CHOSEN_DLQ}[1h]))", steps=ANY,
    ),
    figure(
        "Groups that differ", "Groups whose members subscribe to different things: messages "
        "are lost to them.",
        f"count({ours('skylarkmq_consumer_group_differing_subscriptions')}) or vector(0)",
        steps=ANY,
    ),
]  # fmt: skip
LAG = [
    listing(
        "Groups by topic", "Lag is what is not confirmed; in flight is the part of it that "
        "members were handed, ready the rest. With slaves, the larger figure of master and "
        "slave: a slave hears of offsets every 10 s.",
        (f"sum by (consumer_group, topic) ({LAG_NOW})", "Lag", COUNT),
        (f"max by (consumer_group, topic) ({OLDEST})", "Oldest unread", MILLISECONDS),
        (
            "sum by (consumer_group, topic) "
            f"({group_lag('rocketmq_consumer_inflight_messages', **CHOSEN)})",
            "In flight", COUNT,
        ),
        (
            "sum by (consumer_group, topic) "
            f"({group_lag('rocketmq_consumer_ready_messages', **CHOSEN)})", "Ready", COUNT,
        ),
    ),
    graph(
        "Lag", "Messages that a group has not confirmed.", COUNT,
        (f"sum by (consumer_group, topic) ({LAG_NOW})", "{{consumer_group}} {{topic}}"),
    ),
    graph(
        "Oldest unread", "How long the oldest message that is not confirmed has been stored.",
        SECONDS,
        (
            f"max by (consumer_group, topic) ({OLDEST}) / 1000",
            "{{consumer_group}} {{topic}}",
        ),
        steps=OLD,
    ),
    graph(
        "In flight and ready", "What members were handed and have not confirmed, and what they "
        "were not handed yet. Much in flight: handlers are slow. Much ready: too few members.",
        COUNT,
        (
            "sum by (consumer_group) "
            f"({group_lag('rocketmq_consumer_inflight_messages', **CHOSEN)})",
            "{{consumer_group}} in flight",
        ),
        (
            "sum by (consumer_group) "
            f"({group_lag('rocketmq_consumer_ready_messages', **CHOSEN)})",
            "{{consumer_group}} ready",
        ),
    ),
]  # fmt: skip
LOAD = [
    graph(
        "In by topic", "Messages stored a second.", PER_SECOND,
        (f"sum by (topic) ({rate(CHOSEN_IN)})", "{{topic}}"),
    ),
    graph(
        "Out by group", "Messages handed out a second.", PER_SECOND,
        (f"sum by (consumer_group, topic) ({rate(CHOSEN_OUT)})", "{{consumer_group}} {{topic}}"),
    ),
    graph(
        "Bytes in by topic", "Bytes of records stored a second.", BYTES_PER_SECOND,
        (
            "sum by (topic) "
            f"({rate(node('rocketmq_throughput_in_total', topic='$topic'))})", "{{topic}}",
        ),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Waiting for a consumer", "How long the oldest message that a group was not handed yet "
        "has been stored.", MILLISECONDS,
        (
            "max by (consumer_group, topic) "
            f"({group_lag('rocketmq_consumer_queueing_latency_milliseconds', **CHOSEN)})",
            "{{consumer_group}} {{topic}}",
        ),
    ),
    graph(
        "Late delayed messages", "How long the most overdue delayed message has been due.",
        SECONDS,
        (
            f"max by (broker, kind) ({ours('skylarkmq_delayed_lag_seconds')})",
            "{{broker}} {{kind}}",
        ),
        steps=((60, "red"),),
    ),
    graph(
        "Record size", "Bytes of a record on average.", BYTES,
        (
            f"sum by (topic) ({rate(node('rocketmq_message_size_sum', topic='$topic'))}) / "
            "sum by (topic) "
            f"({rate(node('rocketmq_message_size_count', topic='$topic'))})", "{{topic}}",
        ),
    ),
]  # fmt: skip
STATE = [
    graph(
        "Members", "Members of a group; a consumer counts once at each broker.", COUNT,
        (f"max by (consumer_group) (sum by (node_id, instance, consumer_group) ({MEMBERS}))",
         "{{consumer_group}}"),
    ),
    graph(
        "Delayed messages", "Stored, and not delivered yet.", COUNT,
        (
            f"max by (broker, kind) ({ours('skylarkmq_delayed_messages')})",
            "{{broker}} {{kind}}",
        ),
    ),
    graph(
        "Open transactions", "Half messages without commit or rollback.", COUNT,
        (f"max by (broker) ({ours('skylarkmq_transactions_open')})", "{{broker}}"),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Dead letters", "Messages a second that a group has given up, by the topic that they "
        "were for.", PER_SECOND,
        (f"sum by (consumer_group, topic) ({rate(CHOSEN_DLQ)})", "{{consumer_group}} {{topic}}"),
    ),
    graph(
        "Transactions without an owner", "Questions a second about transactions for which no "
        "producer of the group was connected.", PER_SECOND,
        (
            "sum by (broker) "
            f"({rate(ours('skylarkmq_transaction_checks_total', outcome='nobody'))})",
            "{{broker}}",
        ),
    ),
    graph(
        "Series left out", "Look-ups a second that found no room for a series of their own; "
        "figures of some topics and groups are missing above.", PER_SECOND,
        (
            "sum by (broker, family) "
            f"({rate(ours('skylarkmq_metrics_series_dropped_total'))})",
            "{{broker}} {{family}}",
        ),
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-topics", "SkylarkMQ: topics and groups",
    "What is sent and read, and what is not read.",
    [
        ("Now", NOW), ("Lag", LAG), ("Load", LOAD), ("Latency", LATENCY), ("State", STATE),
        ("Trouble", TROUBLE),
    ],
    (
        *Board.variables,
        ("topic", f"label_values({node(SENT)}, topic)"),
        ("group", f"label_values({node('rocketmq_consumer_lag_messages')}, consumer_group)"),
    ),
)  # fmt: skip
