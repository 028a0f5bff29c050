"""From codes to handlers: answers now, later and never; errors; the codec; sends in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest

from skylarkmq.broker.net import router as router_module
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import REMARK_MAX, Router
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame, SerializeType
from skylarkmq.protocol.signature import ACCESS_KEY
from skylarkmq.remoting.connection import CODEC_FIELD
from tests.support.fake_transport import Owner, Transport, connect
from tests.support.manual_clock import settle

CODE, SEND = 30, 310


class FastPathOfSends:
    """Sends as the router sees them; `events` tells what it was asked in which order."""

    codes = frozenset({SEND})

    def __init__(self, events: list[str]) -> None:
        self.gathering = False
        self.events = events
        self.quick = True
        self.error: Exception | None = None

    def take(self, connection: Connection, frames: list[RawFrame], start: int) -> int:
        if not self.quick:
            return 0
        run = list(takewhile(lambda frame: b'"code":310' in frame.header, frames[start:]))
        if run:
            self.gathering = True
            if self.error is not None:
                raise self.error
            self.events.append(f"take {len(run)}")
        return len(run)

    def request(self, connection: Connection, request: RemotingCommand) -> None:
        self.gathering = True
        if self.error is not None:
            raise self.error
        self.events.append("request")

    def end_read(self, connection: Connection) -> None:
        self.events.append("end")

    def commit(self) -> None:
        self.gathering = False
        self.events.append("commit")


class Rig:
    """A router with one handler, behind a connection of the test's."""

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        sends: bool = False,
        waiting_max: int = 100,
        code: int = CODE,
    ) -> None:
        self.owner = Owner()
        self.events: list[str] = []
        self.fast_path = FastPathOfSends(self.events)
        self.router = Router(
            {CODE: handler, code: handler},
            self.owner.stats,
            self.owner.clock,
            send=self.fast_path if sends else None,
            waiting_max=waiting_max,
        )
        self.owner.on_frames = self.router.handle
        self.connection, self.transport = connect(self.owner, Transport())
        self._decoder = FrameDecoder()

    def read(self, *requests: RemotingCommand) -> list[RemotingCommand]:
        """Let the requests arrive in one read; return what was answered at once."""
        before = len(self.transport.writes)
        self.connection.data_received(b"".join(encode_command(each) for each in requests))
        return self.answers(before)

    def answers(self, since: int = 0) -> list[RemotingCommand]:
        data = b"".join(self.transport.writes[since:])
        return [decode_command(frame) for frame in FrameDecoder().feed(data)]

    def outcomes(self) -> dict[tuple[int, str], int]:
        return {key: times.count for key, times in self.owner.stats.requests.items()}


def request(code: int = CODE, opaque: int = 1, **more: Any) -> RemotingCommand:
    return RemotingCommand.request(code, more.pop("fields", None), opaque=opaque, **more)


def ok(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.reply(0, None, {"seen": str(command.opaque)})


def test_answers_keep_the_order_and_number_of_their_requests() -> None:
    rig = Rig(ok)
    answers = rig.read(*(request(opaque=number) for number in (5, 3, 9)))
    assert [(each.opaque, each.ext_fields["seen"]) for each in answers] == [
        (5, "5"), (3, "3"), (9, "9")
    ]  # fmt: skip
    assert len(rig.transport.writes) == 1
    assert rig.outcomes() == {(CODE, "ok"): 3}


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_an_unknown_code_is_answered_in_its_own_codec(kind: int) -> None:
    rig = Rig(ok)
    (answer,) = rig.read(request(9999, serialize_type=kind))
    assert (answer.code, answer.serialize_type) == (3, kind)
    assert answer.remark == " request type 9999 not supported"
    assert rig.owner.stats.protocol_errors["unknown_code"] == 1
    assert rig.outcomes() == {}, "a peer can send any number"


def test_an_unknown_code_is_said_once_for_an_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(ok)
    rig.read(*(request(code) for code in (9999, 9998, 9999, 9999)))
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(", which")[0].partition("asks for ")[2] for text in told] == [
        "code 9999",
        "code 9998",
    ]
    assert rig.owner.stats.protocol_errors["unknown_code"] == 4


@pytest.mark.parametrize("code", [CODE, 9999])
def test_one_way_requests_are_never_answered(code: int) -> None:
    def fail(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RemoteProtocolError(1, "no")

    for handler in (ok, fail):
        rig = Rig(handler)
        assert rig.read(request(code, oneway=True)) == []


def test_a_handlers_refusal_is_its_code_and_remark() -> None:
    def refuse(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RemoteProtocolError(ResponseCode.TOPIC_NOT_EXIST, "x" * 5000)

    rig = Rig(refuse)
    (answer,) = rig.read(request())
    assert (answer.code, answer.remark) == (17, "x" * REMARK_MAX)
    assert rig.outcomes() == {(CODE, "error"): 1}


def test_a_defect_is_answered_logged_and_costs_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def break_(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.opaque == 2:
            raise ZeroDivisionError("a defect")
        return ok(connection, command)

    rig = Rig(break_)
    answers = rig.read(*(request(opaque=number) for number in (1, 2, 3)))
    assert [answer.code for answer in answers] == [0, 1, 0]
    assert answers[1].remark == "ZeroDivisionError: a defect"
    assert rig.transport.ended == ""
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None


def test_none_is_no_answer_now() -> None:
    rig = Rig(lambda connection, command: None)
    assert rig.read(request()) == []


# Coroutines


async def test_a_coroutine_answers_when_it_is_done() -> None:
    gate = asyncio.Event()

    async def later(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return ok(connection, command)

    rig = Rig(later)
    assert rig.read(request(opaque=4), request(opaque=6)) == []
    await settle()
    assert rig.connection.parked == 2
    gate.set()
    await settle()
    assert [answer.opaque for answer in rig.answers()] == [4, 6]
    assert rig.connection.parked == 0


@pytest.mark.parametrize(
    ("error", "code"), [(RemoteProtocolError(16, "no"), 16), (KeyError("defect"), 1)]
)
async def test_a_coroutine_that_fails_is_answered(error: Exception, code: int) -> None:
    async def fail(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise error

    rig = Rig(fail)
    rig.read(request())
    await settle()
    assert [answer.code for answer in rig.answers()] == [code]
    assert rig.connection.parked == 0


async def test_a_coroutine_whose_peer_has_left_is_quiet() -> None:
    gate = asyncio.Event()

    async def later(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return ok(connection, command)

    rig = Rig(later)
    rig.read(request())
    await settle()
    rig.connection.connection_lost(None)
    gate.set()
    await settle()
    assert rig.answers() == []


async def test_waiting_requests_have_a_limit() -> None:
    async def never(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.Event().wait()
        raise AssertionError

    rig = Rig(never, waiting_max=2)
    answers = rig.read(*(request(opaque=number) for number in range(3)))
    assert [(answer.opaque, answer.code) for answer in answers] == [(2, ResponseCode.SYSTEM_BUSY)]
    assert (answers[0].remark or "").startswith("[OVERLOAD]system busy, start flow control")
    assert rig.owner.stats.rejections == {("other", "queue_full"): 1}
    await rig.router.stop(limit_s=0)
    assert rig.connection.parked == 0


async def test_requests_that_wait_for_messages_are_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have places of their own, so whoever waits keeps nobody from asking."""

    async def never(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(router_module, "PLACES_MAX", 3)
    rig = Rig(never, waiting_max=2, code=RequestCode.POP_MESSAGE)
    answers = rig.read(*(request(RequestCode.POP_MESSAGE, opaque=number) for number in range(6)))
    assert [answer.opaque for answer in answers] == [5]
    answers = rig.read(*(request(CODE, opaque=number) for number in range(3)))
    assert [answer.opaque for answer in answers] == [2]
    await rig.router.stop(limit_s=0)
    assert rig.connection.parked == 0


async def test_a_stop_lets_waiting_requests_be_answered() -> None:
    async def soon(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await settle(5)
        return ok(connection, command)

    rig = Rig(soon)
    rig.read(request())
    await rig.router.stop()
    await settle(1)
    assert [answer.code for answer in rig.answers()] == [0]
    await rig.router.stop()


# Codec


@pytest.mark.parametrize("code", [CODE, 9999])
def test_an_offered_codec_is_echoed_in_the_answer(code: int) -> None:
    rig = Rig(ok)
    (answer,) = rig.read(request(code, fields={CODEC_FIELD: "msgpack.1"}))
    assert answer.ext_fields[CODEC_FIELD] == "msgpack.1"
    (other,) = rig.read(request(code, fields={CODEC_FIELD: "cbor.9"}))
    assert CODEC_FIELD not in other.ext_fields
    (binary,) = rig.read(
        request(code, fields={CODEC_FIELD: "msgpack.1"}, serialize_type=SerializeType.ROCKETMQ)
    )
    assert CODEC_FIELD not in binary.ext_fields


def test_the_first_two_way_request_settles_the_codec() -> None:
    rig = Rig(ok)
    rig.read(request(oneway=True))
    assert not rig.connection.codec_settled
    rig.read(request())
    assert rig.connection.codec_settled


# Sends


def test_sends_are_committed_together_and_before_anything_else() -> None:
    rig = Rig(ok, sends=True)
    rig.read(request(SEND), request(SEND), request(SEND))
    assert rig.events == ["request", "take 2", "end"], "the first one settles the codec"
    rig.events.clear()
    rig.read(request(CODE))
    assert rig.events == ["commit"], "also those of an earlier read"
    rig.events.clear()
    rig.read(request(SEND), request(CODE), request(SEND))
    assert rig.events == ["take 1", "commit", "take 1", "end"]
    rig.events.clear()
    rig.fast_path.quick = False
    rig.read(request(SEND), request(9999), request(CODE))
    assert rig.events == ["request", "commit"]


def test_a_response_is_no_send() -> None:
    rig = Rig(ok, sends=True)
    rig.read(request())
    rig.fast_path.quick = False
    rig.read(request(SEND).reply(0))
    rig.connection.data_received(encode_command(request(CODE, opaque=77).reply(0)))
    assert rig.events == []


@pytest.mark.parametrize("quick", [True, False])
def test_a_defect_on_the_path_of_sends_is_answered_and_the_rest_committed(quick: bool) -> None:
    rig = Rig(ok, sends=True)
    rig.read(request())
    rig.fast_path.quick = quick
    rig.fast_path.error = ZeroDivisionError("a defect")
    (answer,) = rig.read(request(SEND, opaque=8))
    assert (answer.opaque, answer.code) == (8, 1)
    assert rig.events == ["end"]
    rig.fast_path.error = None
    assert rig.read(request(SEND)) == []
    assert rig.transport.ended == ""


def test_what_stands_before_a_header_that_can_not_be_read_is_handled() -> None:
    rig = Rig(ok, sends=True)
    rig.read(request())
    good = encode_command(request(SEND)) + encode_command(request(CODE, opaque=5))
    bad = b"\x00\x00\x00\x08\x00\x00\x00\x04nope"
    before = len(rig.transport.writes)
    rig.connection.data_received(good + bad + good)
    assert rig.events == ["take 1", "commit"]
    assert [answer.opaque for answer in rig.answers(before)] == [5]
    assert (rig.transport.ended, rig.connection.close_reason) == ("close", "protocol_error")
    assert rig.owner.stats.protocol_errors["bad_header"] == 1


def test_frames_are_counted_by_codec_with_their_bytes() -> None:
    rig = Rig(ok)
    sizes = 0
    for kind in (SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK):
        command = request(serialize_type=kind, body=b"12345")
        rig.read(command)
        counted = rig.owner.stats.frames_in[kind]
        assert (counted.count, counted.bytes) == (1, len(encode_command(command)))
        sizes += rig.owner.stats.frames_out[kind].bytes
    assert sizes == sum(map(len, rig.transport.writes))


def test_a_bad_frame_error_reaches_the_connection() -> None:
    rig = Rig(ok)
    frame = RawFrame(SerializeType.JSON, b"[]", b"")
    with pytest.raises(BadFrameError):
        rig.router.handle(rig.connection, [frame])


def test_an_account_that_nobody_checks_is_named_once_for_an_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert router_module.ACCESS_KEY == ACCESS_KEY
    owner = Owner()
    router = Router({CODE: lambda _, request: request.reply(0)}, owner.stats, owner.clock)
    owner.on_frames = router.handle

    def ask(account: str, address: str, count: int = 2) -> None:
        connection, transport = connect(owner, Transport((address, 4711)))
        for _ in range(count):
            fields = {"AccessKey": account, "Signature": "s"}
            connection.data_received(encode_command(RemotingCommand.request(CODE, fields)))
        assert len(transport.writes) == count  # answered as ever

    ask("alice", "192.0.2.1")
    assert not caplog.records  # where accounts are checked, or are nothing known
    router.ignores_signatures = True
    for _ in range(3):
        ask("alice", "192.0.2.1")
    ask("alice", "192.0.2.2")
    ask("bob\n", "192.0.2.2")
    assert [record.getMessage() for record in caplog.records] == [
        f"192.0.2.{host}:4711 signs its requests as {account}, and nobody checks that: "
        "there is no access control here"
        for host, account in ((1, "'alice'"), (2, "'alice'"), (2, r"'bob\n'"))
    ]
    for number in range(router_module.LOGGED_MAX + 10):
        ask(f"stranger{number}", "192.0.2.3", 1)
    assert len(caplog.records) == router_module.LOGGED_MAX
