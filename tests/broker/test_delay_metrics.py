"""Metrics of delayed messages, as a scrape shows them."""

from __future__ import annotations

import pytest
from prometheus_client.core import Metric

from skylarkmq.broker.broker_metrics import delay_families
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.common.table_file import TableWriter
from tests.broker.timer.timer_rig import TOPIC, TimerRig
from tests.store.support import inner, refuse_bodies


def figures(families: list[Metric]) -> dict[str, float]:
    """Values by name and kind."""
    return {
        sample.name.removeprefix("skylarkmq_delayed_")
        + "".join(f"/{value}" for name, value in sample.labels.items() if name == "kind"): (
            sample.value
        )
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_delayed_messages_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TimerRig()
    writer = TableWriter(rig.files, rig.workers.tables)
    table = DelayOffsetTable(rig.files, writer, rig.clock, rig.store)
    levels = ScheduleMessageService(rig.store, rig.clock, table)
    rig.start()
    levels.start()

    def seen() -> dict[str, float]:
        return figures([*delay_families(levels, rig.service, FamilyMaker({"broker": "b"}))])

    assert set(seen().values()) == {0}
    for level in (1, 1, 5):
        message = inner(TOPIC, 2, properties=b"DELAY\x01%d" % level)
        rig.store.put_message(rig.store.delay_levels.redirect(message, level), rig.results.append)
    due_ms = rig.clock.now_ms() + 3000
    rig.at(due_ms, b"a", b"\x02UNIQ_KEY\x01K")
    rig.at(due_ms, b"b")
    rig.at(due_ms + 60_000, b"c")
    rig.cancel(due_ms, b"K")
    await rig.advance(0.5)
    before = seen()
    assert (before["messages/level"], before["messages/timer"]) == (3, 3)
    await rig.advance(4)
    assert seen() == {
        "messages/level": 1,
        "messages/timer": 1,
        "lag_seconds/level": 0,
        "lag_seconds/timer": 0,
        "delivered_total/level": 2,
        "delivered_total/timer": 1,
        "skipped_total/level": 0,
        "skipped_total/timer": 0,
        "cancelled_total": 1,
        "stored_again_total": 0,
    }
    refuse_bodies(monkeypatch, 0)
    await rig.advance(70, step_s=1)
    after = seen()
    assert (after["messages/level"], after["messages/timer"]) == (1, 1)
    assert after["lag_seconds/level"] > 5
    assert after["lag_seconds/timer"] > 5
