"""What waits on the brokers, as far as the protocol lets anybody see it.

    delayed by level   each level has a queue of SCHEDULE_TOPIC_XXXX, and brokers tell the offset in
                       it that is delivered next (`scheduleMessageOffset_3: 7,9`), so the numbers
                       cost nothing
    the messages       `Admin.delayed` and `Admin.open_transactions` read them all, which takes long
                       where millions wait: then the page says so

RocketMQ's brokers let nobody read which transactions have ended since they last checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from skylarkmq.client.admin import Admin, DelayedMessage, OpenTransaction
from skylarkmq.client.admin.topics import QueueStats
from skylarkmq.client.admin.waiting import delivered_by_level
from skylarkmq.client.errors import RocketMQError, RouteNotFound
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC

T = TypeVar("T")
READ_MAX: Final = 500
SHOWN_MAX: Final = 50
READ_LIMIT_S: Final = 8.0
TOO_MANY: Final = (
    f"So many wait that they cannot be read within {READ_LIMIT_S:.0f} seconds. `skylarkmq delay "
    "list` and `skylarkmq tx list` take their time."
)


@dataclass(frozen=True, slots=True)
class Level:
    """A delay level on one broker, in which messages wait."""

    broker: str
    number: int
    delay: str
    """As it is configured, `10s`; empty: the broker did not tell."""
    count: int
    messages: tuple[DelayedMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """All that waits; of what is None, `note` says why."""

    levels: tuple[Level, ...] | None
    timed: tuple[DelayedMessage, ...] | None
    transactions: tuple[OpenTransaction, ...] | None
    note: str = ""


async def waiting(admin: Admin) -> Waiting:
    """Return what waits.

    Raises:
        RocketMQError: the cluster does not answer.
    """
    brokers = [broker.name for broker in (await admin.cluster()).brokers]
    parked, why = await _read(_parked(admin))
    by_broker = parked or {}
    levels, (delayed, note), (transactions, other_note) = await asyncio.gather(
        asyncio.gather(*(_levels(admin, name, by_broker.get(name, [])) for name in brokers)),
        _read(admin.delayed(limit=READ_MAX)),
        _read(admin.open_transactions(limit=READ_MAX)),
    )
    return Waiting(
        None
        if parked is None
        else tuple(_with_messages(level, delayed or ()) for found in levels for level in found),
        None if delayed is None else tuple(one for one in delayed if not one.level),
        transactions,
        why or note or other_note,
    )


async def _read(work: Coroutine[Any, Any, T]) -> tuple[T | None, str]:
    """Return what was read, or why it was not."""
    try:
        return await asyncio.wait_for(work, READ_LIMIT_S), ""
    except TimeoutError:
        return None, TOO_MANY
    except RocketMQError as error:
        return None, str(error)


async def _parked(admin: Admin) -> dict[str, list[QueueStats]]:
    """Return the queues of the delay levels that hold something, by broker."""
    try:
        queues = (await admin.describe_topic(RMQ_SYS_SCHEDULE_TOPIC)).queues
    except RouteNotFound:  # nothing was ever delayed
        return {}
    found: dict[str, list[QueueStats]] = {}
    for each in queues:
        if each.end > each.begin:
            found.setdefault(each.queue.broker_name, []).append(each)
    return found


async def _levels(admin: Admin, broker: str, queues: list[QueueStats]) -> list[Level]:
    offsets = await _delivered(admin, broker) if queues else {}
    places = [
        (each.queue.queue_id + 1, each.end - begin)
        for each in queues
        # A broker tells no offset of a level from which it has delivered nothing yet.
        if (begin := max(each.begin, offsets.get(each.queue.queue_id + 1, 0))) < each.end
    ]
    delays = await _delays(admin, broker) if places else []
    return [
        Level(broker, number, delays[number - 1] if number <= len(delays) else "", count)
        for number, count in places
    ]


async def _delivered(admin: Admin, broker: str) -> dict[int, int]:
    """Return the offset that is delivered next by level, as far as the broker tells."""
    try:
        values = (await admin.broker_runtime(broker)).values
    except RocketMQError:
        return {}
    return delivered_by_level(values)


async def _delays(admin: Admin, broker: str) -> list[str]:
    try:
        return (await admin.broker_config(broker)).get("messageDelayLevel", "").split()
    except RocketMQError:
        return []


def _with_messages(level: Level, delayed: tuple[DelayedMessage, ...]) -> Level:
    mine = [one for one in delayed if (one.broker, one.level) == (level.broker, level.number)]
    return Level(level.broker, level.number, level.delay, level.count, tuple(mine[:SHOWN_MAX]))
