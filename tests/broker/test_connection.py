"""One connection: merged writes, bad frames, our own requests, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skylarkmq.broker.net import connection
from skylarkmq.broker.net.buffers import BEHIND_SIZE
from skylarkmq.broker.net.connection import Connection
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, RawFrame
from skylarkmq.remoting.errors import ConnectionFailed
from tests.support.fake_transport import Owner, Transport, connect
from tests.support.manual_clock import settle

REQUEST = encode_command(RemotingCommand.request(30, {"topic": "T"}, opaque=7))


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_the_peer_is_known_by_its_address(owner: Owner) -> None:
    made, transport = connect(owner)
    assert made.remote_address == "192.0.2.9:4711"
    assert made.host_bytes == bytes((192, 0, 2, 9, 0, 0, 0x12, 0x67))
    assert (made.closed, transport.high) == (False, BEHIND_SIZE)


@pytest.mark.parametrize(
    ("address", "size"), [("2001:db8::1", 20), ("fe80::1%eth0", 20), ("::ffff:10.0.0.1", 8)]
)
def test_a_peer_of_ipv6(owner: Owner, address: str, size: int) -> None:
    made, _ = connect(owner, Transport((address, 1)))
    assert len(made.host_bytes) == size


def test_a_peer_that_left_before_it_was_accepted(owner: Owner) -> None:
    made, transport = connect(owner, Transport(None))
    assert (made.closed, transport.ended) == (True, "abort")
    made.connection_lost(None)


def test_a_peer_for_whom_there_is_no_room_is_closed(owner: Owner) -> None:
    owner.takes_in = False
    made, transport = connect(owner)
    assert (transport.ended, made.close_reason) == ("close", "limit")


# Writing


def test_answers_of_one_read_leave_in_one_write(owner: Owner) -> None:
    def answer(connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        for frame in frames:
            request = decode_command(frame)
            connection.reply(request, request.reply(0))
        return []

    owner.on_frames = answer
    made, transport = connect(owner)
    made.data_received(REQUEST * 5 + REQUEST[:10])
    assert [len(frames) for frames in owner.handled] == [5]
    assert len(transport.writes) == 1
    answers = [decode_command(frame) for frame in FrameDecoder().feed(transport.writes[0])]
    assert [each.opaque for each in answers] == [7] * 5
    assert owner.stats.frames_out[0].count == 5
    assert owner.stats.frames_out[0].bytes == len(transport.writes[0])


async def test_what_is_sent_between_reads_leaves_once_a_turn(owner: Owner) -> None:
    made, transport = connect(owner)
    for number in range(5):
        made.send(b"%d" % number)
    assert transport.writes == []
    await settle(1)
    assert transport.writes == [b"01234"]
    made.send(b"5")
    await settle(1)
    assert transport.writes == [b"01234", b"5"]


async def test_what_several_peers_are_sent_leaves_in_one_call_of_the_loop(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, names = asyncio.get_running_loop(), list[str]()
    call_soon = loop.call_soon

    def planned(callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        names.append(getattr(callback, "__name__", ""))  # the steps of tasks have none
        return call_soon(callback, *args, **options)

    monkeypatch.setattr(loop, "call_soon", planned)
    peers = [connect(owner) for _ in range(3)]
    for made, _ in peers * 2:
        made.send(b"x")
    await settle(1)
    assert [transport.writes for _, transport in peers] == [[b"xx"]] * 3
    assert names.count("_write") == 1


async def test_a_peer_that_cannot_be_written_to_harms_no_other(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (bad, bad_transport), (good, transport) = connect(owner), connect(owner)

    def fail(_: object) -> None:
        raise RuntimeError("the transport is closed")

    monkeypatch.setattr(bad_transport, "write", fail)
    bad.send(b"x")
    good.send(b"y")
    await settle(1)
    assert (bad_transport.ended, bad.close_reason) == ("abort", "error")
    assert "cannot be written to 192.0.2.9:4711" in caplog.text
    assert transport.writes == [b"y"]
    good.send(b"z")
    await settle(1)
    assert transport.writes == [b"y", b"z"]


def test_a_one_way_request_gets_no_answer(owner: Owner) -> None:
    made, transport = connect(owner)
    request = RemotingCommand.request(30, oneway=True)
    made.reply(request, request.reply(1))
    made.close("other")
    assert transport.writes == []


async def test_an_answer_that_can_not_be_written_is_told(owner: Owner) -> None:
    made, transport = connect(owner)
    request = RemotingCommand.request(30, opaque=3)
    made.reply(request, request.reply(0, None, {"x": "\ud800"}))
    await settle(1)
    (frame,) = FrameDecoder().feed(transport.writes[0])
    answer = decode_command(frame)
    assert (answer.code, answer.opaque) == (1, 3)
    assert "cannot be written" in (answer.remark or "")


# Bad frames


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x7f\xff\xff\xff", "too_large"),
        (b"\x00\x00\x00\x01\x00", "bad_length"),
        (b"GET / HTTP/1.1\r\n\r\n", "too_large"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls"),
    ],
)
def test_a_bad_frame_ends_the_connection_behind_the_good_ones(
    owner: Owner, data: bytes, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, transport = connect(owner)
    made.data_received(REQUEST * 2 + data)
    assert [len(frames) for frames in owner.handled] == [2]
    assert (transport.ended, made.close_reason) == ("close", "protocol_error")
    assert owner.stats.protocol_errors[kind] == 1
    assert "closing 192.0.2.9:4711" in caplog.text


# Our own requests, and the end


async def test_calls_are_matched_by_their_number(owner: Owner) -> None:
    made, transport = connect(owner)
    calls = [asyncio.ensure_future(made.call(RemotingCommand.request(40), 3)) for _ in range(3)]
    await settle()
    requests = [decode_command(frame) for frame in FrameDecoder().feed(b"".join(transport.writes))]
    assert len({request.opaque for request in requests}) == 3
    for request in reversed(requests):
        made.answered(request.reply(0, str(request.opaque)))
        made.answered(request.reply(1))  # twice
    made.answered(RemotingCommand.request(1, opaque=99).reply(0))  # nobody asked for it
    answers = [await call for call in calls]
    assert [answer.remark for answer in answers] == [str(each.opaque) for each in requests]
    assert made.pending_count == 0


async def test_a_call_ends_in_time_and_a_late_answer_is_dropped(owner: Owner) -> None:
    made, transport = connect(owner)
    call = asyncio.ensure_future(made.call(RemotingCommand.request(40), 3))
    await settle()
    (frame,) = FrameDecoder().feed(transport.writes[0])
    owner.clock.advance(3)
    with pytest.raises(TimeoutError, match="did not answer"):
        await call
    made.answered(decode_command(frame).reply(0))


async def test_calls_end_with_the_connection(owner: Owner) -> None:
    made, _ = connect(owner)
    call = asyncio.ensure_future(made.call(RemotingCommand.request(40), 3))
    await settle()
    made.connection_lost(ConnectionResetError())
    with pytest.raises(ConnectionFailed, match="has left"):
        await call
    assert (made.close_reason, owner.clock.pending_count) == ("error", 0)
    with pytest.raises(ConnectionFailed, match="cannot be asked"):
        await made.call(RemotingCommand.request(40), 3)


async def test_the_number_of_calls_has_a_limit(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection.CALLS_MAX == 1024
    monkeypatch.setattr(connection, "CALLS_MAX", 2)
    made, _ = connect(owner)
    calls = [asyncio.ensure_future(made.call(RemotingCommand.request(40), 3)) for _ in range(2)]
    await settle()
    with pytest.raises(ConnectionFailed):
        await made.call(RemotingCommand.request(40), 3)
    made.connection_lost(None)
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_push_is_a_numbered_one_way_request(owner: Owner) -> None:
    made, transport = connect(owner)
    made.push(RemotingCommand.request(40, {"consumerGroup": "g"}, oneway=True))
    await settle(1)
    (frame,) = FrameDecoder().feed(transport.writes[0])
    command = decode_command(frame)
    assert (command.code, command.is_oneway, command.serialize_type) == (40, True, 0)


def test_close_listeners_are_called_once_before_the_owner(owner: Owner) -> None:
    made, _ = connect(owner)
    heard: list[str] = []
    made.add_close_listener(lambda connection: heard.append(f"one {len(owner.gone)}"))
    made.add_close_listener(lambda connection: made.add_close_listener(lambda _: None))
    unwanted: Callable[[Connection], None] = lambda connection: heard.append("two")  # noqa: E731
    made.add_close_listener(unwanted)
    made.remove_close_listener(unwanted)
    made.remove_close_listener(unwanted)
    made.connection_lost(None)
    assert (heard, owner.gone) == (["one 0"], [made])
    assert (made.closed, made.close_reason) == (True, "peer")


async def test_after_the_end_nothing_is_written(owner: Owner) -> None:
    made, transport = connect(owner)
    made.send(b"queued")
    made.connection_lost(None)
    made.send(b"late")
    made.close("other")
    made.abort("other")
    await settle()
    assert (transport.writes, transport.ended, made.unsent_size) == ([], "", 0)


def test_close_sends_what_is_queued_and_keeps_its_first_reason(owner: Owner) -> None:
    made, transport = connect(owner)
    made._in_read = True
    made.send(b"last")
    made.close("idle_timeout")
    made.close("other")
    assert (transport.writes, transport.ended) == ([b"last"], "close")
    assert made.close_reason == "idle_timeout"


async def test_an_end_at_once_sends_what_is_queued_and_tells_listeners(owner: Owner) -> None:
    made, transport = connect(owner)
    gone: list[object] = []
    made.add_close_listener(gone.append)
    made._in_read = True
    made.send(b"last")
    made.end("revoked")
    made.send(b"late")
    await settle()
    assert (transport.writes, transport.ended, made.closed) == ([b"last"], "close", True)
    assert gone == [made]
    made.end("other")
    made.abort("other")  # it does not take its last answer
    assert (transport.ended, made.close_reason) == ("abort", "revoked")
    made.connection_lost(None)
    assert (gone, owner.gone) == ([made], [made])
