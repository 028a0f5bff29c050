"""A group that was moved leaves a message of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.groups import offset_moved
from skylarkmq.broker.groups.offset_moved import OffsetMovedEvents
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.tags_code import tags_code
from tests.broker.group_rig import GroupRig
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

TOPIC = "OFFSET_MOVED_EVENT"


def header(offset: int = 7, group: str = "cg") -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group=group, topic="T", queue_id=2, queue_offset=offset, max_msg_nums=1,
        sys_flag=0, commit_offset=0, suspend_timeout_millis=0, sub_version=0,
    )  # fmt: skip


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.events = OffsetMovedEvents("b", self.store, self.clock, bytes(8))
        self.start()

    def stored(self) -> int:
        self.clock.advance(0)
        self.workers.run_all()
        return self.store.max_offset(TOPIC, 0)


async def test_the_event_says_who_was_moved_and_where_to() -> None:
    rig = Rig()
    rig.events.note(header(), 3)
    assert rig.stored() == 1
    unit = rig.store.queue_units(TOPIC, 0, 0, 1)[0]
    message = rig.store.look_message(unit.commit_offset)
    assert message is not None
    assert json.loads(message.body) == {
        "consumerGroup": "cg",
        "messageQueue": {"brokerName": "b", "queueId": 2, "topic": "T"},
        "offsetNew": 3,
        "offsetRequest": 7,
    }
    assert message.properties == {"KEYS": "cg", "TAGS": "cg", "DELAY": "0"}
    assert unit.tags_code == tags_code("cg")


async def test_the_message_is_stored_in_a_turn_of_its_own() -> None:
    rig = Rig()
    rig.events.note(header(), 3)
    assert rig.store.commit_log.max_offset == 0


async def test_a_client_that_asks_and_asks_does_not_fill_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offset_moved, "BURST", 5.0)
    rig = Rig()
    for _ in range(100):
        rig.events.note(header(), 3)
    assert rig.stored() == 5
    rig.clock.advance(2.0)
    rig.events.note(header(), 3)
    assert rig.stored() == 6
    assert "95 events of moved offsets were left out" in caplog.text
    rig.clock.advance(1000.0)
    for _ in range(100):
        rig.events.note(header(), 3)
    assert rig.stored() == 11, "no more than a burst is saved up"


async def test_a_store_that_takes_nothing_costs_the_event_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.store.stop_writing()
    rig.events.note(header(), 3)
    rig.clock.advance(0)
    assert "an event of a moved offset is lost" in caplog.text


async def test_consumers_can_listen_to_the_events(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(310, send_fields("T"), b"x")
        assert (await client.call(11, pull_fields("T", 0, 50, sysFlag="4"))).code == 21
        assert (await client.call(11, pull_fields("T", 0, 0, sysFlag="4"))).code == 0
        answer = await client.call(
            11, pull_fields(TOPIC, 0, 0, sysFlag="6", suspendTimeoutMillis="5000")
        )
        (message,) = decode_messages(answer.body)
        event = json.loads(message.body)
        assert event["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        assert (event["offsetRequest"], event["offsetNew"]) == (50, 1)
        await client.close()
