"""Every public call, cancelled at each of its suspension points: nothing is left behind, and what
it was called on works, or ends, as before."""

from __future__ import annotations

import inspect

import pytest

from skylarkmq import client
from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    PeekReader,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
    Transaction,
)
from skylarkmq.client.admin.reading import MessageScan
from tests.client.cancel_consumes import CONSUMES
from tests.client.cancel_place import Row, swept
from tests.client.cancel_pops import POPS
from tests.client.cancel_sends import SENDS
from tests.client.test_cancel_admin_calls import CALLS, OWN_LIFE
from tests.support.cancelling import Cut, Way

ROWS = [*SENDS, *CONSUMES, *POPS]
POINTS_MAX = 400
CLASSES = (
    Admin, Client, Consumer, MessageScan, PeekReader, Producer, ReceivedMessage,
    SimpleConsumer, Transaction,
)  # fmt: skip
INSIDE = {
    "Membership.pushed", "ReceivedMessage._retry", "Services.leave_producer",
    "Services.send_heartbeats",
}  # fmt: skip
"""Rows of calls that are not public."""
ASYNC_RESULTS = (
    "AbstractAsyncContextManager",
    "asyncio.Future",
    "Coroutine",
    "Transaction",
    "AsyncIterator",
)


def is_public_async(owner: type, name: str) -> bool:
    """Whether the attribute makes something to be awaited, entered or iterated."""
    value = inspect.getattr_static(owner, name)
    if not inspect.isfunction(value):
        return False
    if inspect.iscoroutinefunction(inspect.unwrap(value)) or inspect.isasyncgenfunction(value):
        return not name.startswith("_") or name in ("__aenter__", "__aexit__", "__anext__")
    returns = str(value.__annotations__.get("return", ""))
    return not name.startswith("_") and returns.startswith(ASYNC_RESULTS)


def public_calls() -> set[str]:
    return {
        f"{owner.__name__}.{name}"
        for owner in CLASSES
        for name in dir(owner)
        if is_public_async(owner, name)
    }


def test_every_public_call_has_a_row() -> None:
    admin = [name if "." in name else f"Admin.{name}" for name in {**CALLS, **OWN_LIFE}]
    rows = {name.partition(" (")[0] for name in [*(row.name for row in ROWS), *admin]}
    calls = public_calls()
    assert len(calls) > 90
    assert calls - rows == set(), "without a row"
    assert rows - calls == INSIDE, "rows of what is no more"
    public = [value for value in vars(client).values() if inspect.isclass(value)]
    others = [
        owner.__name__
        for owner in public
        if owner not in CLASSES and any(is_public_async(owner, name) for name in dir(owner))
    ]
    assert others == [], "classes that nobody looks at"


async def points_of(row: Row, way: Way, stride: int) -> int:
    """Cut one point later each time, until the call ends before it; return how many there were."""
    first = 1 if way == "step" else 0  # before its first turn it has not even begun
    for count, at in enumerate(range(first, POINTS_MAX, stride)):
        if not (await swept(row, Cut(way, at))).reached:
            return count
    pytest.fail(f"{row.name} never ends")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_each_suspension_point(row: Row) -> None:
    for way in ("waiting", "woken", "timeout"):
        await points_of(row, way, 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_some_turns(row: Row) -> None:
    await points_of(row, "step", 7)


@pytest.mark.fault
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_every_turn(row: Row) -> None:
    await points_of(row, "step", 1)
