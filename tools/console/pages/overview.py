"""The first page: brokers with roles and rates, name servers, and what is wrong. The search box."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin
from skylarkmq.client.admin.status import BrokerRuntime, BrokerStatus
from skylarkmq.client.errors import RocketMQError
from skylarkmq.tools.console.checks import LOOKS
from skylarkmq.tools.console.history import History, rates_of
from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.doctor.checks import of_problems
from skylarkmq.tools.doctor.findings import arranged

FOUND_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker name on the page: its processes, and what its master counts."""

    status: BrokerStatus
    put: float | None = None
    got: float | None = None
    put_today: int | None = None
    got_today: int | None = None


async def overview(visit: Visit) -> Response:
    """Show the cluster."""
    admin, history = await visit.admin(), visit.access.history
    status, topics, groups = await asyncio.gather(
        admin.cluster_status(), admin.list_topics(), admin.list_groups()
    )
    rows = await asyncio.gather(*(_row(admin, broker) for broker in status.brokers))
    checks, sets = visit.access.checks, {each.name for each in status.brokers if each.failover}
    gone = [  # a set knows its own members
        one.finding() for one in history.registered.gone() if one.broker not in sets
    ]
    await checks.first()
    lags = [(last.value, group) for group in groups if (last := history.last("group", group))]
    return visit.page(
        "overview.html",
        cluster=status,
        brokers=rows,
        findings=arranged([*gone, *of_problems(status.problems()), *checks.found]),
        checked_at=checks.at,
        looks=LOOKS,
        clusters=sorted({broker.cluster for broker in status.brokers}),
        topic_count=len(topics),
        group_count=len(groups),
        put=sum(row.put or 0 for row in rows),
        got=sum(row.got or 0 for row in rows),
        lag=_total(history, groups),
        worst=[(group, lag) for lag, group in sorted(lags, reverse=True)[:5] if lag],
        history=history,
    )


async def search(visit: Visit) -> Response:
    """Show topics and groups by a part of their names, or go to a message."""
    wanted = visit.asked("q")
    if not wanted:
        return visit.go("/")
    admin = await visit.admin()
    topics, groups = await asyncio.gather(
        admin.list_topics(system=True, groups=True), admin.list_groups()
    )
    folded = wanted.casefold()
    return visit.page(
        "search.html",
        wanted=wanted,
        topics=[name for name in topics if folded in name.casefold()][:FOUND_MAX],
        groups=[name for name in groups if folded in name.casefold()][:FOUND_MAX],
    )


async def _row(admin: Admin, broker: BrokerStatus) -> BrokerRow:
    try:
        runtime = await admin.broker_runtime(broker.name)
    except RocketMQError:  # the row says it by its processes
        return BrokerRow(broker)
    put, got = rates_of(runtime)
    return BrokerRow(broker, put, got, _today(runtime, "Put"), _today(runtime, "Get"))


def _today(runtime: BrokerRuntime, what: str) -> int | None:
    values = runtime.values
    try:
        total = int(values[f"msg{what}TotalTodayNow"])
        return max(0, total - int(values[f"msg{what}TotalTodayMorning"]))
    except (KeyError, ValueError):
        return None


def _total(history: History, groups: list[str]) -> float | None:
    known = [last.value for group in groups if (last := history.last("group", group))]
    return sum(known) if known or not groups else None
