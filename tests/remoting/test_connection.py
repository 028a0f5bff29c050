"""Connection: requests meet their answers, ends are told, writes merge, the codec is negotiated."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client.config import Codec
from skylarkmq.client.errors import ConnectionFailed, ProtocolError, RequestTimeout
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import encode_command
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER, Connection
from tests.support.manual_clock import ManualClock, settle
from tests.support.scripted_stream import ScriptedPeer, ScriptedStream

TIMEOUT_S = 3.0


class Peered:
    """A connection, the peer at its other end, and what the connection told."""

    def __init__(self, codec: Codec = "json") -> None:
        self.clock = ManualClock()
        self.peer = ScriptedPeer()
        self.pushes: list[RemotingCommand] = []
        self.closed: list[Connection] = []
        self.connection = Connection(
            "broker:10911", self.clock, codec, lambda _, push: self.pushes.append(push),
            self.closed.append,
        )  # fmt: skip
        self.stream = ScriptedStream(self.peer, self.connection)
        self.peer.streams.append(self.stream)
        self.connection.attach(self.stream)

    def call(self, code: int = RequestCode.HEART_BEAT) -> asyncio.Task[RemotingCommand]:
        request = RemotingCommand.request(code)
        return asyncio.create_task(self.connection.call(request, TIMEOUT_S))


async def test_answers_find_their_requests_in_any_order() -> None:
    it = Peered()
    calls = [it.call(code) for code in (34, 38, 14)]
    await settle()
    for request in reversed(it.peer.requests):
        it.stream.say(request.reply(0, remark=f"to {request.code}"))
    answers = await asyncio.gather(*calls)
    assert [answer.remark for answer in answers] == ["to 34", "to 38", "to 14"]
    assert it.connection.pending_count == 0
    assert it.clock.pending_count == 1, "the timer stays until its time and finds nothing"
    it.clock.advance(TIMEOUT_S)
    assert it.clock.pending_count == 0


async def test_requests_of_one_turn_leave_in_one_write() -> None:
    it = Peered()
    calls = [it.call() for _ in range(50)]
    await settle()
    assert len(it.stream.writes) == 1
    assert len(it.peer.requests) == 50
    for call in calls:
        call.cancel()


async def test_a_push_that_overtakes_the_answer_is_not_taken_for_it() -> None:
    it = Peered()
    call = it.call()
    await settle()
    request = it.peer.requests[0]
    push = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
    push.opaque = request.opaque  # the broker's own counter: the same number means nothing
    it.stream.say(push)
    await settle()
    assert [seen.code for seen in it.pushes] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert not call.done()
    it.stream.say(request.reply(0))
    assert (await call).code == 0


async def test_a_late_answer_is_dropped_and_never_matched_to_a_newer_request() -> None:
    it = Peered()
    slow = it.call()
    await settle()
    it.clock.advance(TIMEOUT_S)
    with pytest.raises(RequestTimeout):
        await slow
    newer = it.call()
    await settle()
    it.stream.say(it.peer.requests[0].reply(0, remark="late"))
    await settle()
    assert it.connection.late_count == 1
    assert not newer.done()
    it.stream.say(it.peer.requests[1].reply(0, remark="mine"))
    assert (await newer).remark == "mine"


async def test_each_request_times_out_at_its_own_deadline() -> None:
    it = Peered()
    request = RemotingCommand.request
    slow = asyncio.create_task(it.connection.call(request(34), 30.0))
    quick = asyncio.create_task(it.connection.call(request(34), 1.0))
    await settle()
    it.clock.advance(0.999)
    await settle()
    assert not quick.done()
    it.clock.advance(0.001)
    await settle()
    assert quick.done()
    assert not slow.done()
    it.clock.advance(28.999)
    await settle()
    assert not slow.done()
    it.clock.advance(0.001)
    await settle()
    assert isinstance(slow.exception(), RequestTimeout)
    assert isinstance(quick.exception(), TimeoutError)


async def test_after_one_deadline_the_next_one_is_the_nearest() -> None:
    it = Peered()
    request = RemotingCommand.request
    limits = (1.0, 2.0, 30.0)
    calls = [asyncio.create_task(it.connection.call(request(34), limit)) for limit in limits]
    await settle()
    for ended in (1, 2):
        it.clock.advance(1.0)
        await settle()
        assert [call.done() for call in calls] == [number < ended for number in range(3)]
    it.clock.advance(28.0)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, RequestTimeout)


async def test_a_cancelled_call_leaves_no_opaque_behind() -> None:
    it = Peered()
    call = it.call()
    await settle()
    call.cancel()
    await settle()
    assert it.connection.pending_count == 0
    it.stream.say(it.peer.requests[0].reply(0))
    await settle()
    assert it.connection.late_count == 1


async def test_all_waiters_end_when_the_connection_is_lost() -> None:
    it = Peered()
    calls = [it.call() for _ in range(3)]
    await settle()
    it.stream.lose(ConnectionResetError("reset"))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, ConnectionFailed) and outcome.reached for outcome in outcomes)
    assert it.closed == [it.connection]
    assert it.clock.pending_count == 0
    with pytest.raises(ConnectionFailed, match="reset"):
        await it.connection.call(RemotingCommand.request(34), TIMEOUT_S)


async def test_close_sends_what_is_queued_first() -> None:
    it = Peered()
    it.connection.post(RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, oneway=True))
    it.connection.close()
    assert [request.code for request in it.peer.requests] == [RequestCode.UNREGISTER_CLIENT]
    await settle()
    assert not it.stream.open


@pytest.mark.parametrize(
    "rubbish",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04nope", b"\xff" * 8],
)
async def test_a_peer_that_speaks_something_else_ends_the_connection(rubbish: bytes) -> None:
    it = Peered()
    call = it.call()
    await settle()
    it.stream.say(rubbish)
    await settle()
    assert isinstance(call.exception(), ProtocolError)
    assert it.connection.closed
    assert not it.stream.open


async def test_good_frames_before_a_bad_one_count() -> None:
    it = Peered()
    good, lost = it.call(), it.call()
    await settle()
    answer = encode_command(it.peer.requests[0].reply(0))
    it.stream.say(answer + b"\xff" * 8)
    await settle()
    assert good.result().code == 0
    assert isinstance(lost.exception(), ProtocolError)


async def test_answers_cut_at_every_byte_arrive_whole() -> None:
    it = Peered()
    body = bytes(range(256))
    for cut in range(1, 400):
        call = it.call()
        await settle(3)
        data = encode_command(it.peer.requests[-1].reply(0, ext_fields={"k": "v"}, body=body))
        if cut >= len(data):
            call.cancel()
            break
        it.connection.data_received(data[:cut])
        assert not call.done()
        it.connection.data_received(data[cut:])
        assert (await call).body == body
    else:
        pytest.fail("the answer is longer than the loop")


async def test_writers_wait_while_the_peer_reads_too_slowly() -> None:
    it = Peered()
    it.connection.pause_writing()
    first = asyncio.create_task(it.connection.writable())
    second = asyncio.create_task(it.connection.writable())
    await settle()
    assert not first.done()
    first.cancel()
    await settle()
    it.connection.resume_writing()
    await second
    await it.connection.writable()


# Codec negotiation


async def first_two(it: Peered, *, echo: bool) -> tuple[RemotingCommand, RemotingCommand]:
    """Make two requests one after the other; answer the first with or without the echo."""
    first = it.call()
    await settle()
    one = it.peer.requests[0]
    fields = {CODEC_FIELD: CODEC_OFFER} if echo else {}
    it.stream.say(one.reply(0, ext_fields=fields))
    await first
    second = it.call()
    await settle()
    two = it.peer.requests[1]
    it.stream.say(two.reply(0))
    await second
    return one, two


async def test_a_java_like_peer_never_sees_msgpack() -> None:
    one, two = await first_two(Peered("auto"), echo=False)
    assert one.serialize_type == SerializeType.JSON
    assert one.ext_fields == {CODEC_FIELD: CODEC_OFFER}
    assert two.serialize_type == SerializeType.JSON
    assert two.ext_fields == {}


async def test_our_peer_gets_msgpack_after_its_echo() -> None:
    one, two = await first_two(Peered("auto"), echo=True)
    assert one.serialize_type == SerializeType.JSON
    assert two.serialize_type == SerializeType.MSGPACK
    assert two.ext_fields == {}


async def test_no_msgpack_before_the_echo_and_only_one_offer() -> None:
    it = Peered("auto")
    it.connection.post(RemotingCommand.request(15, oneway=True))
    calls = [it.call() for _ in range(3)]
    await settle()
    assert [request.serialize_type for request in it.peer.requests] == [SerializeType.JSON] * 4
    offers = [CODEC_FIELD in request.ext_fields for request in it.peer.requests]
    assert offers == [False, True, False, False], "the first two-way request carries it"
    # An echo on another answer means nothing.
    it.stream.say(it.peer.requests[2].reply(0, ext_fields={CODEC_FIELD: CODEC_OFFER}))
    await settle()
    assert it.connection.serialize_type == SerializeType.JSON
    for call in calls:
        call.cancel()


async def test_an_echo_of_another_version_is_none() -> None:
    it = Peered("auto")
    call = it.call()
    await settle()
    it.stream.say(it.peer.requests[0].reply(0, ext_fields={CODEC_FIELD: "msgpack.2"}))
    await call
    assert it.connection.serialize_type == SerializeType.JSON


@pytest.mark.parametrize(
    ("codec", "kind"), [("json", SerializeType.JSON), ("rocketmq", SerializeType.ROCKETMQ)]
)
async def test_a_fixed_codec_is_not_negotiated(codec: Codec, kind: SerializeType) -> None:
    one, two = await first_two(Peered(codec), echo=True)
    assert (one.serialize_type, two.serialize_type) == (kind, kind)
    assert one.ext_fields == {}


async def test_msgpack_that_the_peer_does_not_speak_is_an_error() -> None:
    it = Peered("msgpack")
    call = it.call()
    await settle()
    it.stream.say(it.peer.requests[0].reply(0))
    await settle()
    assert isinstance(call.exception(), ProtocolError)
    assert it.connection.closed
