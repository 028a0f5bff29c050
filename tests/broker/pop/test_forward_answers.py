"""A dead letter that a client asks for is answered, whatever comes between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.protocol.errors import RemoteProtocolError
from tests.broker.pop.pop_rig import DEAD, GROUP, TOPIC, PopRig
from tests.support.manual_clock import settle


async def test_a_forward_whose_message_is_reset_under_way_is_answered() -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    task = asyncio.create_task(rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt))
    await settle(5)  # the topic of dead letters is being written
    assert DEAD in rig.topics.table
    rig.offsets.keep("admin", GROUP, TOPIC, 0, 1)
    await rig.rest()
    await rig.advance(30)
    assert task.done()
    with pytest.raises(RemoteProtocolError):
        await task
    assert not rig.pop.settlement._forwarding


async def test_a_forward_that_fails_while_pop_stops_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start()
    rig.send(b"x")
    (one,) = await rig.receive()
    gate = asyncio.Event()

    async def fails(moves: Any) -> Any:
        await gate.wait()
        raise OSError("the disk")

    monkeypatch.setattr(rig.pop.moves, "_with_topics", fails)
    task = asyncio.create_task(rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, one.receipt))
    await rig.rest()
    stopping = asyncio.create_task(rig.pop.stop())
    await rig.rest()
    gate.set()
    await rig.rest()
    assert stopping.done()
    assert task.done()
    with pytest.raises(RemoteProtocolError):
        await task


async def test_a_failure_after_an_answer_loses_no_other_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PopRig().start()
    rig.send_all(2)
    (one,) = await rig.receive(1, invisible_ms=10_000)
    await rig.receive(1, invisible_ms=100)
    real, sizes = rig.pop.moves._with_topics, []

    async def fails(moves: Any) -> Any:
        sizes.append(len(moves))
        if len(sizes) > 1:
            return await real(moves)
        for move in moves:
            move.answer(False)  # as where a topic cannot be made
        raise OSError("the table of topics is not written")

    monkeypatch.setattr(rig.pop.moves, "_with_topics", fails)
    rig.clock.advance(0.3)  # two is to be moved
    consumption = rig.pop.registry.find(GROUP, TOPIC)
    delivery = consumption.main.queues[0].in_flight[0]
    ended = rig.pop.settlement._forward(consumption, delivery, one.receipt)
    await rig.rest()
    assert sizes[0] == 2
    assert ended.done() and not ended.result()
    await rig.advance(3)
    (again,) = await rig.receive()
    assert again.attempt == 2


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_waits_for_a_deleted_topic_is_a_dead_letter_once(stopped: bool) -> None:
    old = "%RETRY%G"
    rig = PopRig().start()
    rig.topic("U", 1)
    rig.topic(old, 1)
    await rig.receive()
    await rig.receive(topic="U")
    rig.send(b"u", topic=old, properties=b"RETRY_TOPIC\x01U\x02UNIQ_KEY\x01u")
    for _ in range(6):
        assert await rig.receive() == []
    group = rig.pop.registry.groups[GROUP]
    assert group.parked.get("U"), group.parked
    if stopped:
        stopping = asyncio.create_task(rig.pop.stop())
        await rig.rest()
        assert stopping.done()
    rig.topics.delete("U")
    await rig.rest()
    if stopped:
        rig.pop.start()
    await rig.advance(5)
    rig.send(b"other")
    await rig.receive()
    await rig.advance(20)
    assert [m.body for m in rig.stored(DEAD)] == [b"u"]
