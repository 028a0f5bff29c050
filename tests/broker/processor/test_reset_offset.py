"""Groups moved by time or to an offset: what members are told, and what the table holds then."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from skylarkmq.broker.groups.consumer_offset import OFFSETS_FILE
from skylarkmq.broker.processor.admin.offset import AdminOffsetProcessor
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.calls_rig import CallsRig
from tests.broker.group_rig import FakeConnection, ask, begin, request

CODE = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


class Rig(CallsRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.processor = AdminOffsetProcessor(self.context, self.client_calls)

    async def reset(
        self, *, language: LanguageCode = LanguageCode.JAVA, **fields: Any
    ) -> RemotingCommand:
        asked = {"topic": "T", "group": "g", "timestamp": -1, "isForce": "true", **fields}
        command = request(CODE, asked)
        command.language = language
        return await ask(self, self.processor, FakeConnection("192.0.2.9:9"), command)

    def places(self) -> dict[int, int]:
        return self.offsets.of("g", "T")


def targets(body: bytes) -> dict[int, int]:
    """Offsets by queue, as a map of queues holds them."""
    table = lenient_json.loads(body)["offsetTable"]
    queues = {key.as_dict()["queueId"]: offset for key, offset in table.items()}
    assert {(key.as_dict()["brokerName"], key.as_dict()["topic"]) for key in table} == {
        ("broker-a", "T")
    }
    return queues


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic("T", queues=2)
    rig.group()
    return rig


async def test_members_are_told_where_to_go_on_and_the_broker_s_table_stays(rig: Rig) -> None:
    rig.fill("T", 0, 3)
    at = rig.fill("T", 0, 3)[0]
    rig.fill("T", 1, 2)
    rig.stand("T", {0: 6, 1: 2})
    members = [rig.join("T", name=f"192.0.2.1:{port}") for port in (1, 2)]
    answer = await rig.reset(timestamp=at)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    # Everything in queue 1 is newer: nobody has consumed its first message at that time.
    assert targets(answer.body) == {0: 3, 1: 0}
    for member in members:
        (push,) = member.pushes
        assert (push.code, push.is_oneway) == (220, True)
        assert push.ext_fields == {
            "topic": "T", "group": "g", "timestamp": str(at), "isForce": "true",
        }  # fmt: skip
        assert targets(push.body) == {0: 3, 1: 0}
    assert members[0].pushes[0] is not members[1].pushes[0]
    assert rig.places() == {0: 6, 1: 2}


async def test_the_time_minus_one_skips_what_has_accumulated(rig: Rig) -> None:
    rig.fill("T", 0, 5)
    rig.stand("T", {0: 1, 1: 0})
    member = rig.join("T")
    assert targets((await rig.reset()).body) == {0: 5, 1: 0}
    assert targets(member.pushes[0].body) == {0: 5, 1: 0}


async def test_unless_forced_a_group_only_goes_back(rig: Rig) -> None:
    times = rig.fill("T", 0, 5)
    rig.stand("T", {0: 2, 1: 0})
    rig.join("T")
    assert targets((await rig.reset(isForce="false")).body) == {0: 2, 1: 0}
    assert targets((await rig.reset(timestamp=times[3], isForce="false")).body) == {0: 2, 1: 0}
    assert targets((await rig.reset(timestamp=times[1], isForce="false")).body) == {0: 1, 1: 0}
    assert targets((await rig.reset(timestamp=times[3])).body) == {0: 3, 1: 0}


async def test_by_time_without_members_is_left_to_who_asks(rig: Rig) -> None:
    rig.fill("T", 0, 3)
    rig.stand("T", {0: 3, 1: 0})
    answer = await rig.reset(timestamp=0)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "Consumer not online, so can not reset offset, Group: g Topic: T" in str(answer.remark)
    assert rig.places() == {0: 3, 1: 0}


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"topic": "Other"}, "no topic in this broker. topic=Other"),
        ({"topic": "../T"}, "topic"),
        ({"group": "a b"}, "group"),
        ({"group": "unknown"}, "THe consumer group <unknown> not exist"),
        ({"queueId": 2, "offset": 1}, "has 2 write queues"),
        ({"offset": 2**63}, ""),
        ({"timestamp": ""}, ""),
    ],
)
async def test_what_can_not_be_moved(rig: Rig, fields: dict[str, Any], remark: str) -> None:
    rig.stand("T", {0: 0, 1: 0})
    member = rig.join("T")
    table = dict(rig.offsets.table)
    answer = await rig.reset(**fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in str(answer.remark)
    assert not member.pushes
    assert rig.offsets.table == table


async def test_a_group_without_an_offset_in_one_queue_is_not_moved(rig: Rig) -> None:
    rig.stand("T", {0: 0})
    member = rig.join("T")
    answer = await rig.reset()
    assert answer.remark == "THe consumer group <g> not exist"
    assert not member.pushes


async def test_none_is_told_when_one_is_too_old(rig: Rig) -> None:
    rig.stand("T", {0: 0, 1: 0})
    new = rig.join("T", name="192.0.2.1:1")
    old = rig.join("T", name="192.0.2.1:2", version=1)
    answer = await rig.reset()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support this feature. version=1" in str(answer.remark)
    assert not new.pushes
    assert not old.pushes


@pytest.mark.parametrize("asking", [LanguageCode.JAVA, LanguageCode.CPP])
async def test_each_member_reads_its_own_form(rig: Rig, asking: LanguageCode) -> None:
    rig.fill("T", 0, 1)
    rig.stand("T", {0: 0, 1: 0})
    members = {
        language: rig.join("T", name=f"192.0.2.1:{language.value + 1}", language=language)
        for language in (LanguageCode.JAVA, LanguageCode.CPP, LanguageCode.PYTHON)
    }
    answer = await rig.reset(language=asking)
    assert targets(answer.body) == {0: 1, 1: 0}, "who asked always gets a map"
    as_list = {
        "offsetTable": [
            {"brokerName": "broker-a", "offset": 1, "queueId": 0, "topic": "T"},
            {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": "T"},
        ]
    }
    listed = [LanguageCode.CPP] + ([LanguageCode.PYTHON] if asking == LanguageCode.CPP else [])
    for language, member in members.items():
        (push,) = member.pushes
        if language in listed:
            assert json.loads(push.body) == as_list
        else:
            assert targets(push.body) == {0: 1, 1: 0}


async def test_an_offset_moves_a_group_without_members_and_is_on_the_disk(rig: Rig) -> None:
    rig.fill("T", 0, 5)
    rig.fill("T", 1, 9)
    answer = await rig.reset(offset=7, timestamp=0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert targets(answer.body) == {0: 5, 1: 7}, "never behind a queue's end"
    assert rig.places() == {0: 5, 1: 7}
    stored = json.loads(rig.files.read_all(rig.store.paths.config / OFFSETS_FILE))
    assert stored["offsetTable"]["T@g"] == {"0": 5, "1": 7}
    assert targets((await rig.reset(offset=2, queueId=1)).body) == {1: 2}
    assert rig.places() == {0: 5, 1: 2}


async def test_an_offset_that_the_disk_does_not_take_is_not_acknowledged(rig: Rig) -> None:
    rig.fill("T", 0, 5)
    rig.files.fail("rename", path=OFFSETS_FILE)
    answer = await rig.reset(offset=3)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "could not be written to the disk" in str(answer.remark)


async def test_an_offset_moves_members_by_telling_them(rig: Rig) -> None:
    rig.fill("T", 0, 5)
    member = rig.join("T")
    answer = await rig.reset(offset=3, queueId=0)
    assert targets(answer.body) == targets(member.pushes[0].body) == {0: 3}
    assert rig.places() == {}, "the members commit it"


async def test_a_topic_that_goes_meanwhile_gets_no_offsets(rig: Rig) -> None:
    rig.topic("T", queues=200)
    resetting = begin(
        rig.processor,
        FakeConnection(),
        request(
            CODE, {"topic": "T", "group": "g", "timestamp": -1, "isForce": "true", "offset": 0}
        ),
    )
    await asyncio.sleep(0)
    assert not resetting.done()
    rig.topics.delete("T")
    answer = await resetting
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no topic in this broker" in answer.remark
    assert rig.places() == {}


async def test_an_offset_for_a_group_that_nobody_made(rig: Rig) -> None:
    answer = await rig.reset(offset=0, group="nobody")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert not rig.offsets.table


async def test_a_topic_of_many_queues_lets_the_loop_turn(rig: Rig) -> None:
    rig.topic("T", queues=300)
    rig.stand("T", dict.fromkeys(range(300), 0))
    rig.join("T")
    assert targets((await rig.reset()).body) == dict.fromkeys(range(300), 0)
