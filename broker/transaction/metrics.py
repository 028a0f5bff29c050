"""Metrics of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.transaction.ledger import TransactionLedger


def transaction_families(ledger: TransactionLedger, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield what is open, how the others ended, and how many questions were asked."""
    stats = ledger.stats
    yield ours.gauge(
        "skylarkmq_transactions_open",
        "Half messages that are neither committed nor rolled back.",
        ledger.pending_count,
    )
    yield ours.counters(
        "skylarkmq_transactions_ended",
        "Transactions by how they ended; those given up are in TRANS_CHECK_MAX_TIME_TOPIC.",
        ("outcome",),
        [
            (("committed",), stats.committed),
            (("rolled_back",), stats.rolled_back),
            (("given_up",), stats.given_up),
        ],
    )
    yield ours.counters(
        "skylarkmq_transaction_checks",
        "Questions to producer groups; `nobody` are those that no client was there for.",
        ("outcome",),
        [(("asked",), stats.asked), (("nobody",), stats.nobody)],
    )
    yield ours.counter(
        "skylarkmq_transactions_postponed",
        "Half messages stored anew because CHECK_IMMUNITY_TIME_IN_SECONDS lets nobody ask yet.",
        stats.postponed,
    )
    yield ours.counter(
        "skylarkmq_transaction_verdicts_refused",
        "Commits and rollbacks that name no open half message.",
        stats.refused,
    )
