"""Groups that are far behind may be turned off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.groups import slow_consumers
from skylarkmq.broker.groups.slow_consumers import SlowConsumerService
from tests.broker.group_rig import GroupRig
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock, advance_async
from tests.support.raw_client import RawClient, pull_fields, send_fields

BODY = bytes(1000)


class Rig(GroupRig):
    def __init__(self, messages: int = 5, **config: Any) -> None:
        settings = {
            "disable_consume_if_consumer_read_slowly": True,
            "consumer_fallbehind_threshold": 3000,
        }
        super().__init__(**{**settings, **config})
        self.start()
        self.slow = SlowConsumerService(self.config, self.store, self.groups, self.clock)
        self.groups.find("cg")
        for _ in range(messages):
            self.put("T", body=BODY)

    def may_consume(self, group: str = "cg") -> bool:
        return self.groups.table[group].consume_enable


async def test_a_group_too_far_behind_is_turned_off_at_the_next_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.slow.start()
    rig.slow.note("cg", "T", 0, 1)
    rig.clock.advance(170)
    assert rig.may_consume()
    rig.clock.advance(20)
    assert not rig.may_consume()
    assert "group cg is" in caplog.text
    assert rig.groups.pending, "on its way to the disk"
    rig.slow.stop()


async def test_a_group_that_has_caught_up_goes_on() -> None:
    rig = Rig()
    rig.slow.note("cg", "T", 0, 1)
    rig.slow.note("cg", "T", 0, 4)
    rig.slow.scan()
    assert rig.may_consume()


async def test_a_group_that_was_turned_on_again_has_time_to_catch_up() -> None:
    rig = Rig()
    rig.slow.note("cg", "T", 0, 1)
    rig.slow.scan()
    rig.groups.update(msgspec.structs.replace(rig.groups.table["cg"], consume_enable=True))
    rig.slow.scan()
    assert rig.may_consume()


async def test_unknown_groups_and_queues_do_no_harm() -> None:
    rig = Rig()
    rig.slow.note("nobody", "T", 0, 1)
    rig.slow.note("cg", "T", 9, 1)
    rig.slow.note("cg", "T", 0, 0)
    rig.slow.scan()
    assert rig.may_consume()
    assert "nobody" not in rig.groups.table


async def test_the_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_consumers, "NOTES_MAX", 1)
    rig = Rig()
    rig.groups.find("late")
    rig.slow.note("cg", "T", 0, 5)
    rig.slow.note("late", "T", 0, 1)
    rig.slow.note("cg", "T", 0, 1)
    rig.slow.scan()
    assert rig.may_consume("late")
    assert not rig.may_consume()


@pytest.mark.parametrize(
    "config",
    [{"disable_consume_if_consumer_read_slowly": False}, {"disk_fall_recorded": False}],
)
async def test_it_is_off_unless_both_keys_are_on(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    assert not rig.slow.enabled
    pending = rig.clock.pending_count
    rig.slow.start()
    assert rig.clock.pending_count == pending


async def test_pulls_of_a_slow_group_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {
        "disable_consume_if_consumer_read_slowly": True, "consumer_fallbehind_threshold": 3000,
    }  # fmt: skip
    async with live_broker(tmp_path, clock=clock, **settings) as broker:
        client = await RawClient.open(broker.listen_address)
        for _ in range(5):
            await client.call(310, send_fields("T"), BODY)
        slow = pull_fields("T", 0, 0, sysFlag="4", maxMsgNums="1")
        fast = pull_fields("T", 0, 4, sysFlag="4", consumerGroup="fast")
        for fields in (slow, fast):
            assert (await client.call(11, fields)).code == 0
        broker.parts.slow_consumers.scan()
        assert [(await client.call(11, fields)).code for fields in (slow, fast)] == [16, 0]
        await client.close()
        await advance_async(clock, 2)
