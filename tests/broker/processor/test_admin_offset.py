"""Where groups stand: what members say, what the store knows; one group put where another is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from skylarkmq.broker.groups.consumer_offset import OFFSETS_FILE
from skylarkmq.broker.groups.subscription_group import GROUPS_FILE
from skylarkmq.broker.processor.admin.offset import (
    STATUS_SIZE_MAX,
    STATUS_TIMEOUT_S,
    AdminOffsetProcessor,
)
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.calls_rig import CallsRig
from tests.broker.group_rig import FakeConnection, ask, begin, request
from tests.support.manual_clock import settle

STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
SPANS = RequestCode.QUERY_CONSUME_TIME_SPAN
CORRECTION = RequestCode.QUERY_CORRECTION_OFFSET
CLONE = RequestCode.CLONE_GROUP_OFFSET
HELD = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:7}}'


class Rig(CallsRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.processor = AdminOffsetProcessor(self.context, self.client_calls)

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        return await ask(self, self.processor, FakeConnection(), request(code, fields))

    async def begin(self, code: int, **fields: Any) -> asyncio.Task[RemotingCommand]:
        """Ask, and go on until the members have been asked."""
        pending: asyncio.Task[RemotingCommand]
        pending = begin(self.processor, FakeConnection(), request(code, fields))
        await settle(5)
        return pending


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic("T", queues=2)
    rig.group()
    return rig


def clients(answer: RemotingCommand) -> dict[str, dict[int, int]]:
    """Offsets by queue by client."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    table = lenient_json.loads(answer.body)["consumerTable"]
    return {
        client: {queue.as_dict()["queueId"]: offset for queue, offset in queues.items()}
        for client, queues in table.items()
    }


async def test_members_are_asked_together_and_the_silent_are_left_out(rig: Rig) -> None:
    says, fails, leaves, silent, babbles = (
        rig.join("T", name=f"192.0.2.1:{port}") for port in range(1, 6)
    )
    pending = await rig.begin(STATUS, topic="T", group="g")
    for member in (says, fails, leaves, silent, babbles):
        (asked,) = member.asked
        assert (asked.code, asked.is_oneway) == (221, False)
        assert asked.ext_fields == {"topic": "T", "group": "g"}
    says.answer(0, body=HELD)
    fails.answer(1, "I can not")
    babbles.answer(0, body=b"<html>")
    leaves.close()
    await settle(5)
    assert not pending.done()
    rig.clock.advance(STATUS_TIMEOUT_S)
    assert clients(await pending) == {"client@192.0.2.1:1": {1: 7}}
    assert rig.client_calls.waiting_count == 0
    counts = {"ok": 2, "error": 1, "gone": 1, "timeout": 1, "refused": 0}
    assert rig.client_calls.outcomes == counts


async def test_a_member_that_says_too_much_is_not_listened_to(rig: Rig) -> None:
    first, second = (rig.join("T", name=f"192.0.2.1:{port}") for port in (1, 2))
    pending = await rig.begin(STATUS, topic="T", group="g")
    first.answer(0, body=HELD + b" " * STATUS_SIZE_MAX)
    second.answer(0, body=HELD + b" " * 9)
    assert clients(await pending) == {"client@192.0.2.1:2": {1: 7}}


async def test_one_member_is_asked_when_it_is_named(rig: Rig) -> None:
    first, second = (rig.join("T", name=f"192.0.2.1:{port}") for port in (1, 2))
    pending = await rig.begin(STATUS, topic="T", group="g", clientAddr="client@192.0.2.1:2")
    assert not first.asked
    second.answer(0, body=HELD)
    assert clients(await pending) == {"client@192.0.2.1:2": {1: 7}}


async def test_status_of_nobody_and_of_old_members(rig: Rig) -> None:
    answer = await rig.ask(STATUS, topic="T", group="g")
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [g]")
    old = rig.join("T", version=1)
    answer = await rig.ask(STATUS, topic="T", group="g")
    assert "does not support this feature. version=1" in str(answer.remark)
    assert not old.asked


async def spans(rig: Rig, **fields: Any) -> dict[int, dict[str, int]]:
    answer = await rig.ask(SPANS, **{"topic": "T", "group": "g", **fields})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    rows = json.loads(answer.body)["consumeTimeSpanSet"]
    return {row.pop("messageQueue")["queueId"]: row for row in rows}


async def test_queues_in_time(rig: Rig) -> None:
    times = rig.fill("T", 0, 4)
    rig.stand("T", {0: 2})
    now_ms = rig.clock.now_ms()
    assert await spans(rig) == {
        0: {
            "minTimeStamp": times[0],
            "maxTimeStamp": times[3],
            "consumeTimeStamp": times[1],
            "delayTime": now_ms - times[2],
        },
        1: {"minTimeStamp": -1, "maxTimeStamp": -1, "consumeTimeStamp": -1, "delayTime": 0},
    }
    rig.stand("T", {0: 4})
    done = (await spans(rig))[0]
    assert (done["consumeTimeStamp"], done["delayTime"]) == (times[3], 0)
    rig.stand("T", {0: 0})
    fresh = (await spans(rig))[0]
    assert (fresh["consumeTimeStamp"], fresh["delayTime"]) == (times[0], now_ms - times[0])
    rows = await spans(rig, group="never")
    assert rows[0]["consumeTimeStamp"] == times[0], "a group that never came is at the start"
    assert ("T", "never") not in rig.offsets.table


async def test_time_spans_of_an_unknown_topic(rig: Rig) -> None:
    answer = await rig.ask(SPANS, topic="nope", group="g")
    assert (answer.code, answer.remark) == (17, "topic['nope'] not exist")


async def corrections(rig: Rig, compare: str, without: str | None = None) -> dict[str, int]:
    fields = {"topic": "T", "compareGroup": compare}
    if without is not None:
        fields["filterGroups"] = without
    answer = await rig.ask(CORRECTION, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    table: dict[str, int] = json.loads(answer.body)["correctionOffsets"]
    return table


async def test_how_far_all_groups_have_come(rig: Rig) -> None:
    rig.stand("T", {0: 5, 1: 9}, "a")
    rig.stand("T", {0: 7, 1: 3}, "b")
    rig.stand("T", {0: 6, 1: 4}, "c")
    table = {key: dict(queues) for key, queues in rig.offsets.table.items()}
    assert await corrections(rig, "a") == {"0": 5, "1": 3}
    assert await corrections(rig, "nobody") == {"0": 5, "1": 3}
    assert await corrections(rig, "a", "b") == {"0": 5, "1": 4}
    assert await corrections(rig, "c", "a,b") == {"0": 6, "1": 4}
    # The group itself is further back than all others: nobody has to wait for them.
    assert await corrections(rig, "a", "a") == {"0": 2**63 - 1, "1": 3}
    assert rig.offsets.table == table, "those left out are not forgotten"


async def test_offsets_below_what_is_stored_do_not_count(rig: Rig) -> None:
    rig.fill("T", 0, 3)
    rig.stand("T", {0: 1}, "a")
    rig.stand("T", {0: 3}, "b")
    rig.store.min_offset = lambda topic, queue_id: 2  # type: ignore[method-assign]
    assert await corrections(rig, "nobody") == {"0": 3}


async def test_a_clone_is_on_the_disk_with_the_group_that_it_made(rig: Rig) -> None:
    rig.topic("U", queues=1)
    rig.stand("T", {0: 5, 1: 9})
    rig.stand("U", {0: 2})
    answer = await rig.ask(CLONE, srcGroup="g", destGroup="h", topic="T", offline="false")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert rig.offsets.of("h", "T") == {0: 5, 1: 9}
    assert rig.offsets.of("h", "U") == {}
    config = rig.store.paths.config
    offsets = json.loads(rig.files.read_all(config / OFFSETS_FILE))["offsetTable"]
    assert offsets["T@h"] == {"0": 5, "1": 9}
    groups = json.loads(rig.files.read_all(config / GROUPS_FILE))["subscriptionGroupTable"]
    assert "h" in groups
    rig.stand("T", {0: 6})
    assert rig.offsets.of("h", "T") == {0: 5, 1: 9}, "a copy"


async def test_without_a_topic_all_of_them_are_cloned(rig: Rig) -> None:
    for topic in ("U", "V"):
        rig.topic(topic, queues=1)
    for topic in ("T", "U", "gone"):
        rig.stand(topic, {0: 4})
    await rig.ask(CLONE, srcGroup="g", destGroup="h", offline="false")
    assert {topic for topic, group in rig.offsets.table if group == "h"} == {"T", "U"}


@pytest.mark.parametrize(("offline", "cloned"), [("false", {"T"}), ("true", {"T", "U"})])
async def test_topics_that_members_do_not_consume_any_more(
    rig: Rig, offline: str, cloned: set[str]
) -> None:
    rig.topic("U", queues=1)
    for topic in ("T", "U"):
        rig.stand(topic, {0: 4})
    rig.join("T")
    await rig.ask(CLONE, srcGroup="g", destGroup="h", offline=offline)
    assert {topic for topic, group in rig.offsets.table if group == "h"} == cloned


async def test_a_clone_makes_no_group_where_groups_are_not_made_on_demand() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.start()
    rig.topic("T")
    rig.stand("T", {0: 4})
    answer = await rig.ask(CLONE, srcGroup="g", destGroup="h", topic="T", offline="true")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = await rig.ask(CLONE, srcGroup="g", destGroup="a b", topic="T", offline="true")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert set(rig.offsets.table) == {("T", "g")}
