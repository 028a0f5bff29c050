"""When sends are answered: behind the topic table, where their topic is new."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.net.connection import PARKED_MAX
from skylarkmq.broker.processor.send_answers import SendAnswers, SendTurn
from skylarkmq.common.files import DiskFiles
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.store.results import PutMessageStatus
from tests.broker.group_rig import GroupRig
from tests.store.support import HOST
from tests.support.fake_transport import Owner, connect
from tests.support.live_broker import broker_config, live_broker
from tests.support.manual_clock import settle
from tests.support.raw_client import RawClient, send_fields

SEND = 310


class FullForTables(DiskFiles):
    """A disk that has no room for topic tables until it is told otherwise."""

    is_full = False

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.is_full and path.name == "topics.json":
            raise OSError(errno.ENOSPC, "no space left on the device", str(path))
        super().replace(path, data, backup=backup)


async def test_no_message_is_acknowledged_while_its_topic_is_not_on_the_disk(
    tmp_path: Path,
) -> None:
    files = FullForTables()
    controller = BrokerController(broker_config(tmp_path), files=files)
    await controller.start()
    try:
        client = await RawClient.open(controller.listen_address)
        files.is_full = True
        for _ in range(3):  # the first makes the topic; a later one must not pass for durable
            answer = await client.call(SEND, send_fields("T"), b"body")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert UNCONFIRMED_FIELD in answer.ext_fields, "to send it again makes a copy"
        assert "T" in controller.parts.topics.table
        assert controller.parts.store.max_offset("T", 0) == 3

        files.is_full = False
        answer = await client.call(SEND, send_fields("T"), b"body")
        assert answer.code == 0
        assert b'"T"' in (tmp_path / "config" / "topics.json").read_bytes()
        answer = await client.call(SEND, send_fields("T"), b"body")
        assert answer.code == 0
        await client.close()
    finally:
        await controller.stop()


class GatedTables(DiskFiles):
    """A disk that writes topic tables when the test lets it."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.writing.set()

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if path.name == "topics.json":
            assert self.writing.wait(30)
        super().replace(path, data, backup=backup)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_all_sends_to_a_new_topic_wait_for_its_table_and_no_others(
    tmp_path: Path, flush: str
) -> None:
    files = GatedTables()
    async with live_broker(tmp_path, files=files, flush_disk_type=flush) as broker:
        client, other = [await RawClient.open(broker.listen_address) for _ in range(2)]
        await client.call(SEND, send_fields("Old"), b"x")
        files.writing.clear()
        waiting = [
            (client, client.send(SEND, send_fields("New"), b"makes it")),
            (client, client.send(SEND, send_fields("New"), b"fast path")),
            (client, client.send(SEND, send_fields("New", 0, "WAIT\x01false"), b"in a hurry")),
            (client, client.send(SEND, send_fields("%RETRY%g", j="99"), b"a dead letter")),
        ]
        await client.call(9999)
        waiting.append((other, other.send(SEND, send_fields("New"), b"of another peer")))
        for peer in (client, other):
            assert (await peer.call(SEND, send_fields("Old"), b"y")).code == 0
        assert len(client.frames) == 3
        assert broker.parts.store.max_offset("New", 0) == 4, "stored and readable all the same"
        files.writing.set()
        answers = [await peer.answer(opaque) for peer, opaque in waiting]
        assert [answer.code for answer in answers] == [0] * 5
        assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1", "2", "0", "3"]
        table = (tmp_path / "config" / "topics.json").read_bytes()
        assert all(name in table for name in (b'"New"', b'"%RETRY%g"', b'"%DLQ%g"'))
        for peer in (client, other):
            await peer.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_answered_sends_do_not_count_as_waiting(tmp_path: Path, flush: str) -> None:
    async with live_broker(tmp_path, flush_disk_type=flush) as broker:
        client = await RawClient.open(broker.listen_address)
        opaques = [client.send(SEND, send_fields("T"), b"x") for _ in range(3 * PARKED_MAX)]
        answers = [await client.answer(opaque) for opaque in opaques]
        assert {answer.code for answer in answers} == {0}
        assert broker.server is not None
        (connection,) = broker.server.connections
        assert connection.parked == 0
        await client.close()


@pytest.mark.parametrize(
    "kind", [SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK]
)
def test_what_is_answered_when_a_message_is_stored_late_or_lost(kind: int) -> None:
    rig = GroupRig(region_id="Region").start()
    answers = SendAnswers(rig.config, HOST, BrokerStats(), rig.topics)
    frame = answers.of_message(int(kind), 77, 0x12AB, 3, 2**40)
    sent = (connect(Owner())[0], int(kind), 2, frame + frame)
    told = {"MSG_REGION": "Region", "TRACE_ON": "true"}
    place = {
        "msgId": HOST.hex().upper() + "00000000000012AB",
        "queueId": "3",
        "queueOffset": str(2**40),
    }
    stored = None, told | place
    expected = {
        PutMessageStatus.PUT_OK: (ResponseCode.SUCCESS, *stored),
        PutMessageStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, *stored),
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, *stored),
        PutMessageStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, *stored),
        PutMessageStatus.UNCONFIRMED: (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "why",
            told | {UNCONFIRMED_FIELD: "true"},
        ),
        PutMessageStatus.SERVICE_NOT_AVAILABLE: (ResponseCode.SERVICE_NOT_AVAILABLE, "why", told),
    }
    for status, (code, remark, fields) in expected.items():
        made = answers.frames([sent, sent], status, "why")
        decoded = [decode_command(each) for each in FrameDecoder().feed(made)]
        assert len(decoded) == 4
        for answer in decoded:
            assert (answer.code, answer.remark, answer.ext_fields) == (code, remark, fields)
            assert (answer.opaque, answer.serialize_type) == (77, kind)
            assert answer.is_response


async def test_answers_are_counted_with_their_bytes(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        for _ in range(3):
            await client.call(SEND, send_fields("T"), b"x")
        out = broker.parts.stats.frames_out[SerializeType.JSON]
        assert out.count == 3
        assert out.bytes == sum(8 + len(each.header) + len(each.body) for each in client.frames)
        await client.close()


def test_answers_say_at_once_that_traces_were_turned_off() -> None:
    rig = GroupRig().start()
    answers = SendAnswers(rig.config, HOST, BrokerStats(), rig.topics)
    for trace_on in (True, False, True):
        object.__setattr__(rig.config, "trace_on", trace_on)
        frame = answers.of_message(int(SerializeType.JSON), 77, 0x12AB, 3, 2**40)
        (answer,) = [decode_command(each) for each in FrameDecoder().feed(frame)]
        assert answer.ext_fields["TRACE_ON"] == str(trace_on).lower()
        assert answer.ext_fields["queueOffset"] == str(2**40)


async def test_who_waits_last_is_answered_at_once_and_with_all_that_waited() -> None:
    rig, owner = GroupRig().start(), Owner()
    answers = SendAnswers(rig.config, HOST, BrokerStats(), rig.topics)
    (first, first_transport), (both, transport) = connect(owner), connect(owner)
    turns, frames = list[SendTurn](), [b"one", b"two"]
    for peers, frame in zip([(first, both), (both,)], frames, strict=True):
        answers.add_waiting([(peer, int(SerializeType.JSON), 1, frame) for peer in peers])
        turns.append(answers.take())
        turns[-1].committed()
    assert (answers.waiting_count, first.parked, both.parked) == (3, 1, 2)
    turns[0].answer(PutMessageStatus.PUT_OK)
    assert (answers.waiting_count, transport.writes) == (1, [])
    turns[1].answer(PutMessageStatus.PUT_OK)
    assert (answers.waiting_count, first.parked, both.parked) == (0, 0, 0)
    assert (first_transport.writes, transport.writes) == ([], [b"onetwo"])
    await settle(1)
    assert (first_transport.writes, transport.writes) == ([b"one"], [b"onetwo"])
