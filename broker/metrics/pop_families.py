"""Metric families about pop consumption: what is in hand, what waits for clients, what came again.

How far a group is behind, with what is in hand and what is not handed out yet, is in the families
about all groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.pop.service import PopService

LABELS = ("topic", "consumer_group")


def pop_families(pop: PopService, limit: int, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield what groups that pop have in hand.

    Args:
        limit: groups and topics that have series.
    """
    shown = list(islice(pop.registry.all(), limit))
    named = [((each.topic, each.group.name), each) for each in shown]
    yield ours.gauges(
        "skylarkmq_pop_in_flight_messages",
        "Messages that clients have in hand and have not acknowledged, and those that rest or are "
        "copied to another topic.",
        LABELS,
        [(labels, each.in_flight) for labels, each in named],
    )
    yield ours.gauges(
        "skylarkmq_pop_ready_messages",
        "Messages that a receive may get: of the topic, and of its retries.",
        LABELS,
        [(labels, pop.receiver.ready_of(each)) for labels, each in named],
    )
    yield ours.gauges(
        "skylarkmq_pop_waiting_receives",
        "Receives that wait for a message.",
        LABELS,
        [(labels, each.line.count) for labels, each in named],
    )
    yield ours.counters(
        "skylarkmq_pop_redelivered_messages",
        "Messages that were handed out again.",
        LABELS,
        [(labels, each.redelivered) for labels, each in named],
    )
    yield ours.gauges(
        "skylarkmq_pop_moving_messages",
        "Messages that wait for their copies among retries or dead letters.",
        (),
        [((), pop.moves.count)],
    )
