"""Sends that one turn of the loop reads share a commit, and nothing can tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.processor import send as send_module
from skylarkmq.broker.processor.send import Sender
from skylarkmq.kernel import why_pure
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import FrameDecoder, SerializeType, encode_frame
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.support import inner
from tests.support.fake_transport import Transport
from tests.support.live_broker import live_broker
from tests.support.patience import until
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE)


class ClosingTransport(Transport):
    """One whose peer is gone as soon as the broker closes the connection."""

    def close(self) -> None:
        super().close()
        self.protocol.connection_lost(None)


class Peer:
    """A connection of the broker whose reads the test makes: several in one turn of the loop."""

    def __init__(self, broker: BrokerController, port: int) -> None:
        server = broker.server
        assert server is not None
        self.transport = ClosingTransport(("127.0.0.1", port))
        self.connection = server._make()
        self.transport.protocol = self.connection
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))
        self._opaque = 0

    def read(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Let the broker read a request."""
        self._opaque += 1
        request = RemotingCommand.request(code, fields, body, opaque=self._opaque)
        self.connection.data_received(encode_command(request))

    def send(self, text: str, properties: str = "") -> None:
        """Let the broker read a send."""
        self.read(SEND, send_fields("T", 0, properties), text.encode())

    def answers(self) -> list[RemotingCommand]:
        """What the broker has answered since the last call."""
        data = b"".join(self.transport.writes)
        self.transport.writes.clear()
        return [decode_command(frame) for frame in FrameDecoder().feed(data)]

    def offsets(self) -> list[str]:
        """The queue offsets in the answers to sends."""
        answers = self.answers()
        assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS}
        return [answer.ext_fields["queueOffset"] for answer in answers]


async def peers(broker: BrokerController, count: int = 2) -> list[Peer]:
    """Peers of a broker with the topic T, their codec settled."""
    maker = await RawClient.open(broker.listen_address)
    assert (await maker.call(SEND, send_fields("T", 1))).code == ResponseCode.SUCCESS
    await maker.close()
    made = [Peer(broker, 4711 + number) for number in range(count)]
    for peer in made:
        peer.read(9999, {})
        peer.answers()
    return made


async def turn() -> None:
    """Let the loop run what is due."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def commits(broker: BrokerController) -> int:
    return sum(broker.parts.store.stats.append_duration.counts)


def stored(broker: BrokerController) -> int:
    return broker.parts.store.max_offset("T", 0)


async def test_sends_of_several_peers_are_one_commit_at_the_end_of_the_turn(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        first, second, third = await peers(broker, 3)
        before = commits(broker)
        for peer in (first, second, first, third):
            peer.send("x")
        assert (stored(broker), commits(broker)) == (0, before)
        assert first.answers() == [], "nothing is acknowledged before it is written"
        await turn()
        assert (stored(broker), commits(broker)) == (4, before + 1)
        assert [peer.offsets() for peer in (first, second, third)] == [["0", "2"], ["1"], ["3"]]
        assert {peer.connection.parked for peer in (first, second, third)} == {0}


async def test_a_peer_that_sends_alone_does_not_wait_for_the_end_of_the_turn(
    tmp_path: Path,
) -> None:
    async with live_broker(tmp_path) as broker:
        (peer,) = await peers(broker, 1)
        peer.send("x")
        await turn()
        peer.send("y")
        assert peer.offsets() == ["0", "1"]


async def test_a_request_of_any_peer_finds_what_was_sent_before_it(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        sender, reader = await peers(broker)
        sender.send("x")
        reader.read(PULL, pull_fields("T"))
        (answer,) = reader.answers()
        assert [found.body for found in decode_messages(answer.body)] == [b"x"]
        assert sender.offsets() == ["0"]


async def test_what_the_broker_stores_itself_comes_after_what_was_read(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        (peer,) = await peers(broker, 1)
        results: list[PutMessageResult] = []
        peer.send("x")
        broker.parts.store.put_message(inner("T", 0), results.append)
        peer.send("y")
        await turn()
        assert [result.queue_offset for result in results] == [1]
        assert peer.offsets() == ["0", "2"]


async def test_what_is_not_plain_keeps_its_place_in_the_turn(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        first, second, third = await peers(broker, 3)
        first.send("x")
        second.send("in a hurry", "WAIT\x01false")
        second.send("y")
        first.send("shouts", "WAIT\x01TRUE")
        third.read(SEND, send_fields("T", "99"), b"no such queue")
        third.send("z")
        await turn()
        assert first.offsets() == ["0", "3"]
        assert sorted(second.offsets()) == ["1", "2"]
        refused, stored_last = third.answers()
        assert (refused.code, stored_last.ext_fields["queueOffset"]) == (1, "4")


async def test_a_header_that_can_not_be_read_costs_its_peer_alone(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        first, second, third = await peers(broker, 3)
        first.send("x")
        header = b'{"code":310,"opaque":'
        second.connection.data_received(encode_frame(SerializeType.JSON, header, b"y"))
        third.send("z")
        await turn()
        assert (first.offsets(), third.offsets()) == (["0"], ["1"])
        assert second.connection.close_reason == "protocol_error"


async def test_a_header_that_says_two_codes_finds_what_was_sent_before_it(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        first, second, third = await peers(broker, 3)
        first.send("x")
        pull = RemotingCommand.request(PULL, pull_fields("T"), opaque=7)
        (frame,) = FrameDecoder().feed(encode_command(pull))
        header = b'{"code":310,' + frame.header[1:]
        second.connection.data_received(encode_frame(SerializeType.JSON, header, b""))
        third.send("z")
        await turn()
        (answer,) = second.answers()
        assert [found.body for found in decode_messages(answer.body)] == [b"x"]
        assert (first.offsets(), third.offsets()) == (["0"], ["1"])


@pytest.mark.skipif(send_module.kernel is None, reason=why_pure)
async def test_a_defect_of_the_kernel_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("a defect")

    async with live_broker(tmp_path) as broker:
        first, second = await peers(broker)
        with monkeypatch.context() as patch:
            patch.setattr(send_module, "kernel", SimpleNamespace(take_sends=fail))
            first.send("x")
            second.send("y")
            await turn()
        for peer in (first, second):
            assert [answer.code for answer in peer.answers()] == [ResponseCode.SYSTEM_ERROR]
        first.send("z")
        await turn()
        assert first.offsets() == ["0"]


async def test_a_deleted_topic_takes_along_what_this_turn_has_read(tmp_path: Path) -> None:
    """Else a start after a crash would count the message among those of a new topic."""
    async with live_broker(tmp_path) as broker:
        first, second = await peers(broker)
        first.send("x")
        second.send("y")
        store = broker.parts.store
        deleted = broker.parts.deletion.delete("T")
        assert store.removal.topics.entries["T"].end_offset == store.commit_log.wrote_offset > 0
        assert (first.offsets(), second.offsets()) == (["0"], ["1"])
        end_offset = store.commit_log.wrote_offset
        assert await deleted is None
        assert store.commit_log.wrote_offset == end_offset, "nothing came behind the removal"


async def test_much_is_committed_before_the_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "TURN_SIZE_MAX", 1000)
    async with live_broker(tmp_path) as broker:
        first, second = await peers(broker)
        first.send("x")
        second.send("y" * 1000)
        assert (first.offsets(), second.offsets()) == (["0"], ["1"])


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_stop_answers_what_this_turn_has_read(tmp_path: Path, flush: str) -> None:
    async with live_broker(tmp_path, flush_disk_type=flush) as broker:
        first, second = await peers(broker)
        first.send("x")
        second.send("y")
        store = broker.parts.store
        await result_of(lambda done: store.settle(lambda status: done(status, None)))
        assert (first.offsets(), second.offsets()) == (["0"], ["1"])


async def test_a_store_that_fails_refuses_what_this_turn_has_read(tmp_path: Path) -> None:
    async with live_broker(tmp_path, store_failure_exit=False) as broker:
        first, second = await peers(broker)
        first.send("x")
        second.send("in a hurry", "WAIT\x01false")
        broker.parts.store.fail(OSError(5, "the disk is gone"))
        for peer in (first, second):
            await turn()
            (answer,) = peer.answers()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert stored(broker) == 0


Heard = list[tuple[PutMessageStatus, str]]


def put(broker: BrokerController, text: str, topic: str = "T", properties: str = "") -> Heard:
    """Send as a protocol of its own does; what it is told goes into the list that is returned."""
    heard: Heard = []
    header = SendMessageRequestHeader(
        producer_group="G",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=properties,
    )
    sender = Sender(b"\x7f\x00\x00\x01\x00\x00\x00\x01", "127.0.0.1:1")
    placed = broker.parts.send.put(sender, text.encode(), header, lambda *told: heard.append(told))
    assert placed.target.topic == topic
    return heard


OK = [PutMessageStatus.PUT_OK]


def statuses(heard: Heard) -> list[PutMessageStatus]:
    return [status for status, _ in heard]


async def test_sends_of_other_protocols_share_the_commit_of_the_turn(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        (peer,) = await peers(broker, 1)
        before = commits(broker)
        first = put(broker, "x")
        peer.send("y")
        second = put(broker, "z")
        assert (stored(broker), first, second, commits(broker)) == (0, [], [], before)
        await turn()
        assert (stored(broker), commits(broker)) == (3, before + 1)
        assert (statuses(first), statuses(second), peer.offsets()) == (OK, OK, ["1"])


async def test_a_sender_of_another_protocol_hears_that_the_store_has_failed(
    tmp_path: Path,
) -> None:
    async with live_broker(tmp_path, store_failure_exit=False) as broker:
        await peers(broker, 1)
        heard = put(broker, "x")
        broker.parts.store.fail(OSError(5, "the disk is gone"))
        await turn()
        ((status, why),) = heard
        assert status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "not stored safely" in why
        with pytest.raises(RemoteProtocolError, match="disk is gone") as refused:
            put(broker, "y")
        assert refused.value.response_code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(heard) == 1


async def test_another_protocol_hears_of_a_new_topic_when_the_table_is_on_the_disk(
    tmp_path: Path,
) -> None:
    async with live_broker(tmp_path) as broker:
        await peers(broker, 1)
        heard = put(broker, "x", "New")
        await turn()
        assert heard == []
        await until(lambda: bool(heard))
        assert b'"New"' in (tmp_path / "config" / "topics.json").read_bytes()
        assert statuses(heard) == OK
