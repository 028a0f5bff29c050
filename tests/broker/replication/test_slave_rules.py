"""What a slave refuses and what it serves, over the wire; its log is handed over by the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.replication.ha.slave_rules import REFUSED
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus
from tests.broker.replication.support import SERVED, hand_over
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL = 310, 11
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
pytestmark = pytest.mark.timing


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path / "master") as controller:
        yield controller


@pytest.fixture
async def slave(tmp_path: Path, master: BrokerController) -> AsyncIterator[BrokerController]:
    """A slave with the three messages of its master's topic `T`."""
    peer = await RawClient.open(master.listen_address)
    for number in range(3):
        await peer.call(SEND, send_fields("T"), b"%d" % number)
    await peer.close()
    async with live_broker(tmp_path / "slave", broker_role="SLAVE", broker_id=1) as controller:
        await hand_over(master, controller)
        topic = master.parts.topics.get("T")
        assert topic is not None
        controller.parts.topics.update(topic)
        yield controller


@pytest.fixture
async def client(slave: BrokerController) -> AsyncIterator[RawClient]:
    peer = await RawClient.open(slave.listen_address)
    yield peer
    await peer.close()


def state_of(broker: BrokerController) -> tuple[object, ...]:
    parts = broker.parts
    return (
        parts.store.commit_log.max_offset,
        dict(parts.topics.table),
        dict(parts.groups.table),
        {key: dict(row) for key, row in parts.offsets.table.items()},
    )


SHORT_MAX = 2**15 - 1


async def test_every_code_of_a_broker_is_refused_or_served(slave: BrokerController) -> None:
    assert slave.router is not None
    assert slave.router.codes == REFUSED.keys() | SERVED
    assert not REFUSED.keys() & SERVED


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_what_would_change_something_is_refused(
    slave: BrokerController, client: RawClient, kind: int
) -> None:
    fields = {
        **pull_fields("T"), **send_fields("T"), "group": "cg", "groupName": "cg", "offset": "0",
        "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "timestamp": "0", "isForce": "true",
        "srcGroup": "cg", "destGroup": "other", "delayLevel": "0", "msgId": "0" * 32,
        "producerGroup": "pg", "commitOrRollback": "8", "tranStateTableOffset": "0",
        "commitLogOffset": "0",
    }  # fmt: skip
    before = state_of(slave)
    for code, wanted in REFUSED.items():
        if kind == SerializeType.ROCKETMQ and code > SHORT_MAX:
            continue  # RocketMQ's clients cannot say it so
        for body in (b"", b"message", b'{"groupName":"new"}'):
            answer = await client.call(code, fields, body, serialize_type=kind)
            assert answer.code == wanted, RequestCode(code)
            assert "slave" in (answer.remark or "") and "master of broker-a" in answer.remark
            client.send(code, fields, body, oneway=True, serialize_type=kind)
    assert (await client.call(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"] == "3"
    assert state_of(slave) == before


async def test_nothing_in_the_process_stores_a_message_of_its_own(slave: BrokerController) -> None:
    inner = MessageInner(
        topic="T", queue_id=0, body=b"x", properties=b"", born_timestamp=0, born_host=bytes(8),
        store_host=bytes(8),
    )  # fmt: skip
    results: list[PutMessageResult] = []
    slave.parts.store.put_message(inner, results.append)
    assert results[0].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "slave" in results[0].why


async def test_pulls_are_served_and_commit_nothing(
    slave: BrokerController, client: RawClient
) -> None:
    flags = str(SUBSCRIPTION | COMMIT)
    for _ in range(3):  # the first on the slow path, which opens the fast one
        answer = await client.call(PULL, pull_fields("T", sysFlag=flags, commitOffset="2"))
        assert [each.body for each in decode_messages(answer.body)] == [b"0", b"1", b"2"]
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert not slave.parts.offsets.table
    assert "cg" not in slave.parts.groups.table


async def test_a_commit_of_an_offset_counts_until_the_masters_come(
    slave: BrokerController, client: RawClient
) -> None:
    where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
    assert (await client.call(15, {**where, "commitOffset": "2"})).code == 0
    assert (await client.call(14, where)).ext_fields["offset"] == "2"


async def test_a_heartbeat_makes_no_topic_and_no_group(
    slave: BrokerController, client: RawClient
) -> None:
    before = state_of(slave)
    body = heartbeat("c1", consumer_data("new", subscription("T")))
    assert (await client.call(34, {}, body)).code == 0
    assert state_of(slave) == before
    members = await client.call(38, {"consumerGroup": "new"})
    assert json.loads(members.body) == {"consumerIdList": ["c1"]}
    fields = pull_fields("T", group="new", sysFlag="0", subVersion="1")
    del fields["subscription"]
    assert len(list(decode_messages((await client.call(PULL, fields)).body))) == 3


async def test_a_pull_from_beyond_waits_for_what_the_master_has(
    master: BrokerController, slave: BrokerController, client: RawClient
) -> None:
    held = client.send(PULL, pull_fields("T", offset=5, sysFlag=str(SUBSCRIPTION | SUSPEND)))
    await client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert slave.parts.holding.count == 1
    sender = await RawClient.open(master.listen_address)
    for number in range(3, 6):
        await sender.call(SEND, send_fields("T"), b"%d" % number)
    await sender.close()
    await hand_over(master, slave)
    answer = await client.answer(held)
    assert [each.body for each in decode_messages(answer.body)] == [b"5"]


@pytest.mark.parametrize(("checks", "code"), [(False, 20), (True, 21)])
async def test_a_slave_puts_no_offset_right_unless_it_is_told_to(
    slave: BrokerController, client: RawClient, checks: bool, code: int
) -> None:
    object.__setattr__(slave.config.store, "offset_check_in_slave", checks)
    answer = await client.call(PULL, pull_fields("T", offset=9))
    assert answer.code == code
    assert answer.ext_fields["nextBeginOffset"] == ("3" if checks else "9")
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert slave.parts.store.max_offset("OFFSET_MOVED_EVENT", 0) == 0


async def test_what_stores_messages_by_the_clock_rests(slave: BrokerController) -> None:
    assert slave.parts.transactions.pending_count == slave.parts.timer.waiting_count == 0
    parts = slave.parts
    assert not parts.timer.enabled and not parts.transactions.is_ready
    assert not parts.schedule.levels and not parts.checks.is_checking
    assert parts.timer._may_remove(1 << 40)  # old files are removed here, too


async def test_the_router_takes_sends_again_when_nothing_is_refused(
    slave: BrokerController, client: RawClient
) -> None:
    assert slave.router is not None
    slave.router.refuse({})
    answer = await client.call(SEND, send_fields("T"), b"x")
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert "slave and changes nothing" not in (answer.remark or "")
