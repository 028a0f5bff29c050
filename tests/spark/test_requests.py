"""Requests of the blocking client: answers find theirs, whatever the peer does; nothing hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.protocol.command import encode_command
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import sign
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.own_loop import Pending
from skylarkmq.spark.settings import ConnectionSettings
from tests.spark.support.blocking_clock import TestClock
from tests.spark.support.scripted_peer import CLOSE, Said, ScriptedPeer
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

SHORT_S = 0.2


def echo(request: RemotingCommand) -> RemotingCommand:
    return request.reply(0, None, request.ext_fields, request.body)


def request(number: int = 0, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(11, {"n": str(number)}, body)


class Caller:
    """A client that talks to one peer alone, as to a broker."""

    def __init__(self, address: str, seconds: float = LIMIT_S, **other: Any) -> None:
        settings = ConnectionSettings(("name-server:1",), request_timeout_s=seconds, **other)
        self.client = BlockingClient(settings)
        self.address = address

    def begin(self, command: RemotingCommand, *, hold: bool = False) -> Pending:
        return self.client.begin(self.address, command, hold=hold)

    def wait(self, pending: Pending, seconds: float = LIMIT_S) -> RemotingCommand:
        return self.client.wait(pending, self.client.clock.monotonic() + seconds)

    def call(self, command: RemotingCommand) -> RemotingCommand:
        return self.client.call(self.address, command)


@contextmanager
def caller_of(peer: ScriptedPeer, **settings: Any) -> Iterator[Caller]:
    caller = Caller(peer.address, **settings)
    yield caller
    caller.client.close()


@pytest.fixture
def pair() -> Iterator[tuple[ScriptedPeer, Caller]]:
    with ScriptedPeer(echo) as peer, caller_of(peer) as caller:
        yield peer, caller


def test_a_call(pair: tuple[ScriptedPeer, Caller]) -> None:
    _, caller = pair
    assert caller.call(request(5, b"body")).body == b"body"


def test_answers_in_any_order() -> None:
    kept: list[RemotingCommand] = []

    def script(request: RemotingCommand) -> list[RemotingCommand]:
        kept.append(request)
        return [echo(it) for it in reversed(kept)] if len(kept) == 5 else []

    with ScriptedPeer(script) as peer, caller_of(peer) as caller:
        pending = [caller.begin(request(number)) for number in range(5)]
        for number in (2, 0, 4, 1, 3):
            assert caller.wait(pending[number]).ext_fields["n"] == str(number)


def test_a_request_leaves_before_anybody_waits() -> None:
    """The broker is to work on it while Spark works on what came before."""
    came = Event()

    def script(request: RemotingCommand) -> RemotingCommand:
        came.set()
        return echo(request)

    with ScriptedPeer(script) as peer, caller_of(peer) as caller:
        caller.begin(request())
        assert came.wait(LIMIT_S)
        came.clear()
        held = caller.begin(request(1), hold=True)
        assert not came.wait(SHORT_S)
        caller.client.send_held(peer.address)
        assert came.wait(LIMIT_S)
        assert caller.wait(held).ext_fields["n"] == "1"


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000, 10_000_000])
def test_large_bodies(pair: tuple[ScriptedPeer, Caller], size: int) -> None:
    _, caller = pair
    body = b"x" * size
    assert caller.call(request(1, body)).body == body


@pytest.mark.slow  # for its memory
def test_both_write_much_and_neither_reads_first(pair: tuple[ScriptedPeer, Caller]) -> None:
    """The peer answers while it is still being written to; both sides' buffers are full."""
    _, caller = pair
    body = b"x" * 3_000_000
    pending = [caller.begin(request(number, body)) for number in range(8)]
    assert [len(caller.wait(it).body) for it in pending] == [len(body)] * 8


def test_a_late_answer_is_passed_over() -> None:
    kept: list[RemotingCommand] = []

    def script(request: RemotingCommand) -> list[RemotingCommand]:
        kept.append(request)
        if len(kept) == 1:
            return []
        return [echo(kept[0]), echo(request)]

    with ScriptedPeer(script) as peer, caller_of(peer) as caller:
        first = caller.begin(request(1))
        caller.client.forget(first)
        assert caller.call(request(2)).ext_fields["n"] == "2"
        assert not caller.client.has_answer(first)


def test_pushes_of_the_peer_are_passed_over() -> None:
    push = encode_command(RemotingCommand.request(40, {"consumerGroup": "g"}, oneway=True))
    with ScriptedPeer(lambda request: [push, echo(request), push]) as peer, caller_of(peer) as it:
        for number in range(3):
            assert it.call(request(number)).ext_fields["n"] == str(number)


def test_a_peer_that_never_answers() -> None:
    text = r"127.0.0.1.*in time.*TLS"
    with (
        ScriptedPeer(lambda request: None) as peer,
        caller_of(peer, seconds=SHORT_S) as caller,
        pytest.raises(RequestTimeout, match=text),
    ):
        caller.call(request())


def test_a_peer_that_is_slow_with_one_answer_is_kept() -> None:
    def script(request: RemotingCommand) -> RemotingCommand | None:
        return echo(request) if request.ext_fields["n"] == "1" else None

    with ScriptedPeer(script) as peer, caller_of(peer) as caller:
        slow = caller.begin(request(0))
        caller.call(request(1))
        with pytest.raises(RequestTimeout):
            caller.wait(slow, SHORT_S)
        assert caller.call(request(1)).code == 0
        assert peer.connection_count == 1


def test_time_counts_only_while_somebody_waits() -> None:
    """Spark may work on a block for longer than a request may take; its answer is there then."""
    with ScriptedPeer(echo) as peer:
        clock = TestClock()
        client = BlockingClient(ConnectionSettings(("name-server:1",)), clock)
        pending = client.begin(peer.address, request())
        clock.advance(100)
        assert client.wait(pending, client.deadline_s()).code == 0
        client.close()


def test_a_peer_that_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = Caller(f"127.0.0.1:{listener.getsockname()[1]}", seconds=SHORT_S)
        caller.begin(request(0, bytes(16_000_000)))
        with pytest.raises(RequestTimeout, match="reads too slowly"):
            caller.begin(request(1))
        caller.client.close()


ANSWER = encode_command(RemotingCommand.request(11, {"n": "0"}, b"body").reply(0, "ok", {}, b"b"))


@pytest.mark.parametrize("cut_at", range(0, len(ANSWER), 7))
def test_a_peer_that_closes_at_any_byte(cut_at: int) -> None:
    with ScriptedPeer(lambda request: [ANSWER[:cut_at], CLOSE]) as peer, caller_of(peer) as caller:
        with pytest.raises(ConnectionFailed) as caught:
            caller.call(request())
        assert caught.value.reached


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(64),
        (40).to_bytes(4, "big") + (36).to_bytes(4, "big") + b"{" * 36,
        (40).to_bytes(4, "big") + (0x55 << 24 | 36).to_bytes(4, "big") + b"{" * 36,
    ],
)
def test_a_peer_that_sends_garbage(garbage: bytes) -> None:
    with (
        ScriptedPeer(lambda request: garbage) as peer,
        caller_of(peer) as caller,
        pytest.raises(ProtocolError, match="no frame"),
    ):
        caller.call(request())


def test_a_peer_that_closes_between_calls_is_noticed(
    pair: tuple[ScriptedPeer, Caller],
) -> None:
    peer, caller = pair
    caller.call(request())
    peer.cut()
    with pytest.raises(ConnectionFailed):
        caller.call(request())
    assert caller.call(request()).code == 0


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    caller = Caller(address)
    with pytest.raises(ConnectionFailed, match=r"refused|Connect call failed") as caught:
        caller.call(request())
    assert not caught.value.reached
    caller.client.close()


@pytest.mark.parametrize("address", ["nowhere", "no host:1", "x" * 300 + ":1", "127.0.0.1:0"])
def test_addresses_that_are_none(address: str) -> None:
    caller = Caller(address)
    with pytest.raises(ConnectionFailed):
        caller.call(request())
    caller.client.close()


def test_requests_are_signed_over_all_their_fields() -> None:
    credentials = Credentials("AK", "secret", "token")
    with ScriptedPeer(echo) as peer, caller_of(peer, credentials=credentials) as caller:
        caller.call(request(7, b"body"))
        (seen,) = peer.requests
    fields = dict(seen.ext_fields)
    signature = fields.pop("Signature")
    assert fields == {"n": "7", "AccessKey": "AK", "SecurityToken": "token"}
    assert signature == sign(b"secret", fields, b"body")


@pytest.mark.parametrize("last", ["waits", "writes", "reads garbage"])
def test_answers_that_came_before_the_end_are_kept(last: str) -> None:
    """A request whose answer was thrown away would be sent again, and stored twice."""
    closed = Event()

    def script(request: RemotingCommand) -> Said | list[Said]:
        if request.ext_fields["n"] != "3":
            return echo(request)
        return [bytes(64), CLOSE] if last == "reads garbage" else CLOSE

    with ScriptedPeer(script) as peer, caller_of(peer) as caller:
        peer.on_close = closed.set
        pending = [caller.begin(request(number)) for number in range(4)]
        assert closed.wait(LIMIT_S)
        if last == "writes":  # the first is answered by a reset, and the next one fails
            pending += [caller.begin(request(number)) for number in range(5, 9)]
        with pytest.raises(RocketMQError):
            caller.wait(pending[3])
        for number in range(3):
            assert caller.client.has_answer(pending[number])
            assert caller.wait(pending[number]).ext_fields["n"] == str(number)
        for late in pending[4:]:
            with pytest.raises(ConnectionFailed):
                caller.wait(late)
