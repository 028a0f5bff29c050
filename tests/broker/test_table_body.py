"""Whole tables as answers: encoded once for each state, in slices, shared by all who wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from skylarkmq.broker.tables.json_table import ROWS_PER_CALL, TableBody
from skylarkmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper, SubscriptionGroupWrapper
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import GroupRig, request
from tests.support.manual_clock import settle

ROWS = 3 * ROWS_PER_CALL


class Table:
    """Many rows of one number, and how often they were taken."""

    def __init__(self) -> None:
        self.number = 0
        self.taken = 0
        self.body = TableBody("rows", lambda: self.number, self._take)

    def _take(self) -> Iterable[tuple[str, Any]]:
        self.taken += 1
        number = self.number
        return [(str(row), number) for row in range(ROWS)]

    def ask(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(answer(self.body))


async def answer(body: TableBody) -> bytes:
    pending = body.answer(request(21))
    reply = pending if isinstance(pending, RemotingCommand) else await pending
    return reply.body


def number_of(body: bytes) -> int:
    """What all rows say."""
    rows = json.loads(body)["rows"]
    assert len(rows) == ROWS
    (number,) = set(rows.values())
    return int(number)


async def test_a_table_is_encoded_once_for_each_state() -> None:
    table = Table()
    for number in (0, 0, 1, 1):
        table.number = number
        assert number_of(await answer(table.body)) == number
    assert table.taken == 2


async def test_others_have_their_turn_while_it_is_encoded() -> None:
    table = Table()
    asked = table.ask()
    await settle(2)
    assert not asked.done()
    table.number = 5
    assert number_of(await asked) == 0, "as it was when it was taken"


async def test_who_asks_meanwhile_shares_the_next_one_and_sees_every_change() -> None:
    table = Table()
    first = table.ask()
    await settle(2)
    table.number = 1
    others = [table.ask() for _ in range(20)]
    await settle(1)
    for number in range(2, 6):
        table.number = number
        await settle(1)
    assert number_of(await first) == 0
    assert all(number_of(body) >= 1 for body in await asyncio.gather(*others))
    assert table.taken == 2


async def test_one_that_is_cancelled_leaves_the_others_their_answer() -> None:
    table = Table()
    first, second = table.ask(), table.ask()
    await settle(2)
    first.cancel()
    assert number_of(await second) == 0
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_the_bytes_are_those_of_the_body_classes() -> None:
    rig = GroupRig()
    rig.start()
    rig.topic("orders")
    rig.groups.find("g")
    rig.offsets.keep("x", "g", "orders", 2, 5)
    rig.offsets.keep("x", "h", "orders", 0, 7)
    expected = {
        rig.topics.body: TopicConfigSerializeWrapper(
            data_version=rig.topics.data_version, topic_config_table=rig.topics.table
        ),
        rig.groups.body: SubscriptionGroupWrapper(
            data_version=rig.groups.data_version, subscription_group_table=rig.groups.table
        ),
        rig.offsets.body: ConsumerOffsetSerializeWrapper(
            offset_table={"orders@g": {2: 5}, "orders@h": {0: 7}}
        ),
    }
    for body, wrapper in expected.items():
        assert await answer(body) == encode_body(wrapper)
    rig.offsets.keep("x", "h", "orders", 0, 8)
    assert json.loads(await answer(rig.offsets.body))["offsetTable"]["orders@h"] == {"0": 8}
