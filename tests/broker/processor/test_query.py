"""Offsets and times of queues."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.processor.query import QueryProcessor
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request

UNKNOWN = {29: ("offset", "0"), 30: ("offset", "0"), 31: ("offset", "0"), 32: ("timestamp", "-1")}


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__()
        self.processor = QueryProcessor(self.context)

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        return await ask(self, self.processor, FakeConnection(), request(code, fields))


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_what_a_queue_answers(rig: Rig) -> None:
    times: list[int] = []
    for _ in range(3):
        times.append(rig.clock.now_ms())
        rig.put("T", 1)
        rig.clock.advance(10)
    assert (await rig.ask(30, topic="T", queueId=1)).ext_fields == {"offset": "3"}
    assert (await rig.ask(31, topic="T", queueId=1)).ext_fields == {"offset": "0"}
    answer = await rig.ask(32, topic="T", queueId=1)
    assert answer.ext_fields == {"timestamp": str(times[0])}
    for asked, offset in (
        (0, 0), (times[1], 1), (times[1] + 5000, 1), (times[1] + 5001, 2), (times[2] + 10**9, 2),
    ):  # fmt: skip
        answer = await rig.ask(29, topic="T", queueId=1, timestamp=asked)
        assert (answer.code, answer.ext_fields) == (0, {"offset": str(offset)}), asked


@pytest.mark.parametrize("code", [29, 30, 31, 32])
@pytest.mark.parametrize(
    ("topic", "queue_id"), [("unknown", 0), ("T", 5), ("T", -1), ("../T", 0), ("", 2**31 - 1)]
)
async def test_unknown_queues_answer_as_empty_ones_and_allocate_nothing(
    rig: Rig, code: int, topic: str, queue_id: int
) -> None:
    rig.put("T", 0)
    answer = await rig.ask(code, topic=topic, queueId=queue_id, timestamp=5)
    name, value = UNKNOWN[code]
    assert (answer.code, answer.ext_fields) == (0, {name: value})
    assert list(rig.store.queues.queues) == [("T", 0)]


@pytest.mark.parametrize("code", [29, 30, 31, 32])
async def test_missing_and_ill_typed_fields_are_answered_with_1(rig: Rig, code: int) -> None:
    answer = await rig.ask(code, topic="T", timestamp=5)
    assert answer.code == 1
    assert "queueId" in (answer.remark or "")
    assert (await rig.ask(code, topic="T", queueId="\u0661", timestamp=5)).code == 1
