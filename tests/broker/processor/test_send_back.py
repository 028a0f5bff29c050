"""Messages that a consumer gives back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.processor.send_back import SendBackProcessor
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.results import GetMessageStatus
from tests.broker.group_rig import FakeConnection, GroupRig, ask, begin, request
from tests.store.support import BORN, HOST

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stats = BrokerStats()
        self.processor = SendBackProcessor(self.context, random.Random(1), self.stats)

    def stored(self, **changes: Any) -> int:
        """Store a message to give back; its physical offset."""
        before = len(self.results)
        self.put("T", 3, b"body", **{"properties": b"TAGS\x01TagA\x02KEYS\x01k", **changes})
        self.clock.advance(0.5)
        self.workers.run_all()
        return self.results[before].physical_offset

    async def back(self, offset: int, version: int = 409, **fields: Any) -> RemotingCommand:
        values = {"offset": offset, "group": "cg", "delayLevel": 0, **fields}
        command = request(36, values, version=version)
        return await ask(self, self.processor, FakeConnection(), command)

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        result = self.store.get_message(topic, queue_id, 0, 32)
        if result.status is not GetMessageStatus.FOUND:
            return []
        return decode_messages(b"".join(result.views))


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_the_first_return_waits_ten_seconds_on_the_schedule_topic(rig: Rig) -> None:
    offset = rig.stored(flag=9, born_timestamp=1234)
    original = rig.store.look_message(offset)
    assert original is not None
    answer = await rig.back(offset)
    assert answer.code == 0
    (parked,) = rig.messages(SCHEDULE, 2)
    assert (parked.body, parked.flag, parked.born_timestamp) == (b"body", 9, 1234)
    assert (parked.born_host.pack(), parked.store_host.pack()) == (BORN, HOST)
    assert parked.reconsume_times == 1
    assert parked.properties == {
        "TAGS": "TagA", "KEYS": "k", "RETRY_TOPIC": "T", "WAIT": "false", "DELAY": "3",
        "ORIGIN_MESSAGE_ID": original.offset_msg_id, "REAL_TOPIC": "%RETRY%cg", "REAL_QID": "0",
    }  # fmt: skip
    (unit,) = rig.store.queue_units(SCHEDULE, 2, 0, 1)
    assert unit.tags_code == parked.store_timestamp + 10_000
    retry = rig.topics.table["%RETRY%cg"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


async def test_each_return_waits_a_level_longer_and_keeps_its_origin(rig: Rig) -> None:
    offset = rig.stored(
        reconsume_times=4, properties=b"RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01ABC"
    )
    assert (await rig.back(offset)).code == 0
    (parked,) = rig.messages(SCHEDULE, 6)
    assert parked.reconsume_times == 5
    assert parked.properties["RETRY_TOPIC"] == "first"
    assert parked.properties["ORIGIN_MESSAGE_ID"] == "ABC"


async def test_what_is_given_back_is_counted_for_its_first_topic(rig: Rig) -> None:
    offset = rig.stored()
    assert (await rig.back(offset)).code == 0
    retried = rig.stored(properties=b"RETRY_TOPIC\x01origin\x02")
    assert (await rig.back(retried)).code == 0
    counted = {key: each.count for key, each in rig.stats.sent_back.items()}
    assert counted == {("T", "cg"): 1, ("origin", "cg"): 1}


async def test_a_consumer_may_name_the_level(rig: Rig) -> None:
    offset = rig.stored()
    assert (await rig.back(offset, delayLevel=1)).code == 0
    assert len(rig.messages(SCHEDULE, 0)) == 1
    assert (await rig.back(offset, delayLevel=99)).code == 0
    (last,) = rig.messages(SCHEDULE, 17)
    assert last.properties["DELAY"] == "18"


async def test_after_the_last_attempt_it_goes_to_the_dead_letters(rig: Rig) -> None:
    offset = rig.stored(reconsume_times=16)
    assert (await rig.back(offset)).code == 0
    (dead,) = rig.messages("%DLQ%cg")
    assert dead.reconsume_times == 17
    assert dead.properties["DELAY"] == "0"
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert "REAL_TOPIC" not in dead.properties
    (unit,) = rig.store.queue_units("%DLQ%cg", 0, 0, 1)
    assert unit.tags_code == tags_code("TagA")
    dlq = rig.topics.table["%DLQ%cg"]
    assert (dlq.read_queue_nums, dlq.write_queue_nums, dlq.perm) == (1, 1, 6)


async def test_a_negative_level_goes_to_the_dead_letters_at_once(rig: Rig) -> None:
    assert (await rig.back(rig.stored(), delayLevel=-1)).code == 0
    assert len(rig.messages("%DLQ%cg")) == 1


@pytest.mark.parametrize(
    ("version", "times", "dead"), [(121, 2, True), (121, 3, False), (120, 2, False)]
)
async def test_clients_since_3_4_9_say_how_many_attempts(
    rig: Rig, version: int, times: int, dead: bool
) -> None:
    offset = rig.stored(reconsume_times=2)
    assert (await rig.back(offset, version=version, maxReconsumeTimes=times)).code == 0
    assert len(rig.messages("%DLQ%cg")) == dead
    assert len(rig.messages(SCHEDULE, 4)) == (not dead)


async def test_the_group_says_how_many_attempts_otherwise(rig: Rig) -> None:
    group = rig.groups.find("cg")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, retry_max_times=1))
    assert (await rig.back(rig.stored(reconsume_times=1))).code == 0
    assert len(rig.messages("%DLQ%cg")) == 1


async def test_attempts_do_not_overflow_the_record(rig: Rig) -> None:
    offset = rig.stored(reconsume_times=2**31 - 1)
    assert (await rig.back(offset)).code == 0
    (dead,) = rig.messages("%DLQ%cg")
    assert dead.reconsume_times == 2**31 - 1
    negative = rig.stored(reconsume_times=-(2**31))
    assert (await rig.back(negative)).code == 0
    assert len(rig.messages(SCHEDULE, 2)) == 1


async def test_retries_are_spread_over_the_groups_queues(rig: Rig) -> None:
    group = rig.groups.find("cg")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, retry_queue_nums=3))
    offset = rig.stored()
    for _ in range(30):
        assert (await rig.back(offset)).code == 0
    queues = {message.properties["REAL_QID"] for message in rig.messages(SCHEDULE, 2)}
    assert queues == {"0", "1", "2"}
    assert rig.topics.table["%RETRY%cg"].write_queue_nums == 3


async def test_retries_stay_in_the_queues_that_the_topic_has(rig: Rig) -> None:
    """The group's number was raised, or the topic's lowered, after the topic was made."""
    offset = rig.stored()
    assert (await rig.back(offset)).code == 0
    group = rig.groups.find("cg")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, retry_queue_nums=4))
    for _ in range(12):
        assert (await rig.back(offset)).code == 0
    assert {each.properties["REAL_QID"] for each in rig.messages(SCHEDULE, 2)} == {"0"}
    topic = rig.topics.table["%RETRY%cg"]
    rig.topics.update(msgspec.structs.replace(topic, read_queue_nums=2, write_queue_nums=3))
    for _ in range(12):
        assert (await rig.back(offset)).code == 0
    assert {each.properties["REAL_QID"] for each in rig.messages(SCHEDULE, 2)} == {"0", "1"}


async def test_a_group_without_retry_queues_drops_the_message(rig: Rig) -> None:
    group = rig.groups.find("cg")
    assert group is not None
    rig.groups.update(msgspec.structs.replace(group, retry_queue_nums=0))
    assert (await rig.back(rig.stored())).code == 0
    assert rig.messages(SCHEDULE, 2) == []
    assert "%RETRY%cg" not in rig.topics.table


async def test_an_unknown_group_is_26() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.start()
    answer = await rig.back(rig.stored())
    assert answer.code == 26
    assert (answer.remark or "").startswith("subscription group not exist, cg")
    assert "%RETRY%cg" not in rig.topics.table


async def test_a_broker_that_may_not_be_written_is_16() -> None:
    rig = Rig(broker_permission=4)
    rig.start()
    assert (await rig.back(rig.stored())).code == 16


async def test_a_retry_topic_that_may_not_be_written_is_16(rig: Rig) -> None:
    rig.topic("%RETRY%cg", 1, perm=4)
    answer = await rig.back(rig.stored())
    assert (answer.code, answer.remark) == (
        16, "the topic[%RETRY%cg] sending message is forbidden",
    )  # fmt: skip


@pytest.mark.parametrize("offset", [-1, 7, 10**6, 2**63 - 1])
async def test_an_offset_without_a_record_is_1_and_makes_no_topic(rig: Rig, offset: int) -> None:
    rig.stored()
    answer = await rig.back(offset)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")
    assert "%RETRY%cg" not in rig.topics.table


@pytest.mark.parametrize("topic", [SCHEDULE, "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_a_message_that_nobody_may_see_is_not_given_back(rig: Rig, topic: str) -> None:
    rig.put(topic, 0)
    assert (await rig.back(0)).code == 1


@pytest.mark.parametrize("group", ["", "a b", "g" * 121, "x/../y"])
async def test_names_that_are_no_group_are_1(rig: Rig, group: str) -> None:
    assert (await rig.back(rig.stored(), group=group)).code == 1


async def test_a_refused_put_is_1_with_its_status(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = rig.stored()
    monkeypatch.setattr(rig.store, "refusal", lambda: "the disk is full")
    answer = await rig.back(offset)
    assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE: the disk is full")


async def test_properties_that_grow_too_long_are_refused(rig: Rig) -> None:
    offset = rig.stored(properties=b"x\x01" + b"y" * 32_700)
    answer = await rig.back(offset)
    assert answer.code == 1
    assert (answer.remark or "").startswith("PROPERTIES_SIZE_EXCEEDED")


async def test_under_sync_flush_the_answer_waits_for_the_sync() -> None:
    rig = Rig(flush_disk_type="SYNC_FLUSH")
    rig.start()
    offset = rig.stored()
    command = request(36, {"offset": offset, "group": "cg", "delayLevel": 0})
    waiting = begin(rig.processor, FakeConnection(), command)
    for _ in range(10):
        await asyncio.sleep(0)
        rig.workers.tables.run_all()
    assert not waiting.done()
    rig.workers.run_all()
    for _ in range(10):
        await asyncio.sleep(0)
        rig.workers.run_all()
    assert (await waiting).code == 0


async def test_behind_a_gate_a_copy_that_is_not_confirmed_is_not_taken_for_given_back() -> None:
    """The consumer would go on behind a message that a failover may take back."""
    rig = Rig()
    rig.store.gate()
    rig.start()
    rig.put("T", 3, b"body")
    rig.store.confirm(rig.store.commit_log.wrote_offset)
    for confirms, code in ((True, 0), (False, 1)):
        command = request(36, {"offset": 0, "group": "cg", "delayLevel": 0})
        waiting = begin(rig.processor, FakeConnection(), command)
        for _ in range(10):
            await asyncio.sleep(0)
            rig.workers.run_all()
        assert not waiting.done()
        if confirms:
            rig.store.confirm(rig.store.commit_log.wrote_offset)
        rig.clock.advance(3)
        for _ in range(10):
            await asyncio.sleep(0)
            rig.workers.run_all()
        answer = await waiting
        assert answer.code == code
        assert confirms or "not acknowledged" in (answer.remark or "")


async def test_the_answer_waits_for_the_tables_of_a_new_group(rig: Rig) -> None:
    offset = rig.stored()
    command = request(36, {"offset": offset, "group": "new", "delayLevel": 0})
    waiting = begin(rig.processor, FakeConnection(), command)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(rig.messages(SCHEDULE, 2)) == 1, "it is stored at once"
    assert not waiting.done()
    for _ in range(10):
        rig.workers.run_all()
        await asyncio.sleep(0)
    assert (await waiting).code == 0
    config = rig.store.paths.config
    assert b'"new"' in rig.files.read_all(config / "subscriptionGroup.json")
    assert b'"%RETRY%new"' in rig.files.read_all(config / "topics.json")
