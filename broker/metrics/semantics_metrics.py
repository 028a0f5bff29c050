"""Metrics of what applications rely on beside sends and pulls: delayed messages, requests to
clients, queue locks; and of topics on their way out.

Families for `broker_metrics.py`, each a function of its sources and of the maker that labels them.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.net.client_calls import ClientCalls
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.store.queue.topic_removal import TopicRemoval


def delay_families(
    levels: ScheduleMessageService, timers: TimerMessageService, ours: FamilyMaker
) -> Iterator[Metric]:
    """Delayed messages; kind is `level` or `timer`."""
    yield ours.gauges(
        "skylarkmq_delayed_messages",
        "Delayed messages that are stored and not delivered.",
        ("kind",),
        [(("level",), levels.waiting_count), (("timer",), timers.waiting_count)],
    )
    yield ours.gauges(
        "skylarkmq_delayed_lag_seconds",
        "How long the delayed message has been due that is most behind.",
        ("kind",),
        [(("level",), levels.lag_s), (("timer",), timers.lag_s)],
    )
    yield ours.counters(
        "skylarkmq_delayed_delivered",
        "Delayed messages delivered to their topics.",
        ("kind",),
        [(("level",), levels.delivered_count), (("timer",), timers.delivered_count)],
    )
    yield ours.counters(
        "skylarkmq_delayed_skipped",
        "Delayed messages that could not be delivered; the log names each.",
        ("kind",),
        [(("level",), levels.skipped_count), (("timer",), timers.skipped_count)],
    )
    yield ours.counter(
        "skylarkmq_delayed_cancelled",
        "Timed messages taken back by TIMER_DEL_UNIQKEY.",
        timers.cancelled_count,
    )
    yield ours.counter(
        "skylarkmq_delayed_stored_again",
        "Timed messages stored again because their log file was to go.",
        timers.rolled_count,
    )


def removal_families(removal: TopicRemoval, ours: FamilyMaker) -> Iterator[Metric]:
    """Topics that were deleted."""
    yield ours.gauges(
        "skylarkmq_deleted_topics",
        "Deleted topics by what is left of them: log, messages that have not expired; all, until "
        "the deletion has ended.",
        ("left",),
        [(("log",), len(removal.topics.entries)), (("all",), len(removal.topics.unfinished))],
    )


def lock_families(locks: RebalanceLockManager, ours: FamilyMaker) -> Iterator[Metric]:
    """Queues that members of groups keep for themselves, to consume in order."""
    yield ours.gauge(
        "skylarkmq_queue_locks", "Queue locks of ordered consumers that are held.", len(locks)
    )


def client_call_families(calls: ClientCalls, ours: FamilyMaker) -> Iterator[Metric]:
    """Requests of the broker that clients answer: replies, states, messages to consume at once."""
    yield ours.gauge(
        "skylarkmq_client_calls_waiting",
        "Requests to clients without an answer yet.",
        calls.waiting_count,
    )
    yield ours.gauge(
        "skylarkmq_client_calls_waiting_bytes",
        "Bytes of the bodies of requests to clients without an answer yet.",
        calls.waiting_size,
    )
    yield ours.counters(
        "skylarkmq_client_calls",
        "Requests to clients by outcome; refused ones found too many waiting.",
        ("outcome",),
        [((outcome,), count) for outcome, count in calls.outcomes.items()],
    )
