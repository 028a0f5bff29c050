"""The simulator of brokers notices what is broken: each broken broker here must be caught."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skylarkmq.broker.delay import delay_offsets
from skylarkmq.broker.delay.due_times import DueTimes
from skylarkmq.broker.groups import consumer_offset
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net import handlers
from skylarkmq.broker.tables import persist
from skylarkmq.broker.timer import deliveries
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.broker.transaction import check_service, ledger
from skylarkmq.store.log_history import LogHistory
from skylarkmq.store.timer import rules as timer_rules
from skylarkmq.store.timer.checkpoint import CHECKPOINT_NAME
from tests.simulation.test_broker_simulator import explore
from tests.support.crash_explorer import CrashFailure

SEEDS = 1000  # the first that notices a checkpoint ahead of the disk is number 358
Patch = pytest.MonkeyPatch


def written_as(patch: Patch, name: str, write: Callable[[Any, Any], Awaitable[None]]) -> None:
    """Let one of the tables that follow the log go to the disk in another way."""
    proper = persist.FollowingTable._write_text

    async def broken(self: Any, text: Any) -> None:
        await (write if self._path.name == name else proper)(self, text)

    patch.setattr(persist.FollowingTable, "_write_text", broken)


def ahead_of_the_disk(patch: Patch, name: str) -> None:
    """Let one of them not wait for the log."""

    async def write(self: Any, text: Any) -> None:
        await persist.TableFile._write_text(self, text)
        if self._on_written is not None:
            self._on_written()

    written_as(patch, name, write)


def consumer_offsets_ahead_of_the_disk(patch: Patch) -> None:
    ahead_of_the_disk(patch, consumer_offset.OFFSETS_FILE)


def delay_progress_ahead_of_the_disk(patch: Patch) -> None:
    ahead_of_the_disk(patch, delay_offsets.FILE_NAME)


def delays_come_at_once(patch: Patch) -> None:
    patch.setattr(DueTimes, "wait_s", lambda self, *_: 0.0)


def timer_checkpoint_ahead_of_the_disk(patch: Patch) -> None:
    """It says how long the log was: that must not be looked at, or it is noticed at the start."""
    ahead_of_the_disk(patch, CHECKPOINT_NAME)
    patch.setattr(LogHistory, "log_end", 0)


def timers_come_early(patch: Patch) -> None:
    due_ms = timer_rules._deliver_ms
    patch.setattr(timer_rules, "_deliver_ms", lambda *given: due_ms(*given) - 1000)


def cancels_are_passed_over(patch: Patch) -> None:
    async def broken(self: Any, due_ms: int) -> None:
        cancels = self._state.cancels
        cancels.take(deliveries.key(due_ms + 1, 0), 1000, 1 << 62)
        cancels.confirm(len(cancels.hand))

    patch.setattr(deliveries.Deliveries, "_take_cancels", broken)


def ends_without_op_messages(patch: Patch) -> None:
    async def broken(table: Any, halves: Any, ops: Any, begin: int, end: int) -> None:
        return

    patch.setattr(ledger, "load_table", broken)


def nobody_is_asked(patch: Patch) -> None:
    patch.setattr(check_service.TransactionCheckService, "start", lambda self: None)


def groups_acked_before_the_disk(patch: Patch) -> None:
    acked_before_the_disk(patch, SubscriptionGroupManager)


def topics_acked_before_the_disk(patch: Patch) -> None:
    acked_before_the_disk(patch, TopicConfigManager)


def acked_before_the_disk(patch: Patch, kind: type) -> None:
    durable = handlers.durable

    async def broken(*tables: Any) -> None:
        await durable(*(table for table in tables if not isinstance(table, kind)))

    patch.setattr(handlers, "durable", broken)


def offsets_never_written(patch: Patch) -> None:
    async def broken(self: Any, text: Any) -> None:
        return

    written_as(patch, consumer_offset.OFFSETS_FILE, broken)


MUTATIONS: list[Callable[[Patch], None]] = [
    consumer_offsets_ahead_of_the_disk,
    delay_progress_ahead_of_the_disk,
    delays_come_at_once,
    timer_checkpoint_ahead_of_the_disk,
    timers_come_early,
    cancels_are_passed_over,
    ends_without_op_messages,
    nobody_is_asked,
    groups_acked_before_the_disk,
    topics_acked_before_the_disk,
    offsets_never_written,
]


@pytest.mark.fault
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_broken_broker_is_caught(mutate: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(SEEDS):
            try:
                asyncio.run(explore(seed))
            except CrashFailure:
                return
    raise AssertionError(f"{mutate.__name__} went unnoticed for {SEEDS} seeds")
