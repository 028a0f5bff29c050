"""One blocking connection: answers find their request, whatever the peer does; nothing hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.tls import ClientTls
from skylarkmq.protocol.command import encode_command
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import sign
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.remoting.connection import Connection, connect
from tests.spark.support.scripted_peer import CLOSE, ScriptedPeer
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

CLOCK = SystemClock()
SHORT_S = 0.2


def soon(seconds: float = LIMIT_S) -> float:
    return CLOCK.monotonic() + seconds


def echo(request: RemotingCommand) -> RemotingCommand:
    return request.reply(0, None, request.ext_fields, request.body)


def opened(peer: ScriptedPeer, signer: Signer | None = None) -> Connection:
    return connect(peer.address, CLOCK, ClientTls(None), signer, soon())


def request(number: int = 0, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(11, {"n": str(number)}, body)


def call(
    connection: Connection, command: RemotingCommand, seconds: float = LIMIT_S
) -> RemotingCommand:
    deadline_s = soon(seconds)
    return connection.wait(connection.begin(command, deadline_s), deadline_s)


@pytest.fixture
def pair() -> Iterator[tuple[ScriptedPeer, Connection]]:
    with ScriptedPeer(echo) as peer:
        connection = opened(peer)
        yield peer, connection
        connection.close()


def test_a_call(pair: tuple[ScriptedPeer, Connection]) -> None:
    _, connection = pair
    assert call(connection, request(5, b"body")).body == b"body"
    assert connection.is_idle


def test_answers_in_any_order() -> None:
    kept: list[RemotingCommand] = []

    def script(request: RemotingCommand) -> list[RemotingCommand]:
        kept.append(request)
        return [echo(it) for it in reversed(kept)] if len(kept) == 5 else []

    with ScriptedPeer(script) as peer:
        connection = opened(peer)
        opaques = [connection.begin(request(number), soon()) for number in range(5)]
        for number in (2, 0, 4, 1, 3):
            answer = connection.wait(opaques[number], soon())
            assert answer.ext_fields["n"] == str(number)
        connection.close()


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000, 10_000_000])
def test_large_bodies(pair: tuple[ScriptedPeer, Connection], size: int) -> None:
    _, connection = pair
    body = b"x" * size
    assert call(connection, request(1, body)).body == body


def test_both_write_much_and_neither_reads_first(pair: tuple[ScriptedPeer, Connection]) -> None:
    """The peer answers while it is still being written to; both sides' buffers are full."""
    _, connection = pair
    body = b"x" * 3_000_000
    opaques = [connection.begin(request(number, body), soon()) for number in range(8)]
    assert [len(connection.wait(opaque, soon()).body) for opaque in opaques] == [len(body)] * 8


def test_a_late_answer_is_passed_over() -> None:
    kept: list[RemotingCommand] = []

    def script(request: RemotingCommand) -> list[RemotingCommand]:
        kept.append(request)
        if len(kept) == 1:
            return []
        return [echo(kept[0]), echo(request)]

    with ScriptedPeer(script) as peer:
        connection = opened(peer)
        first = connection.begin(request(1), soon())
        connection.forget(first)
        assert call(connection, request(2)).ext_fields["n"] == "2"
        assert not connection.has_answer(first)
        connection.close()


def test_pushes_of_the_peer_are_passed_over() -> None:
    push = encode_command(RemotingCommand.request(40, {"consumerGroup": "g"}, oneway=True))
    with ScriptedPeer(lambda request: [push, echo(request), push]) as peer:
        connection = opened(peer)
        for number in range(3):
            assert call(connection, request(number)).ext_fields["n"] == str(number)
        connection.close()


def test_a_peer_that_never_answers() -> None:
    with ScriptedPeer(lambda request: None) as peer:
        connection = opened(peer)
        with pytest.raises(RequestTimeout, match=r"127.0.0.1.*in time.*TLS"):
            call(connection, request(), SHORT_S)
        assert connection.closed_why
        with pytest.raises(ConnectionFailed):
            connection.begin(request(), soon())


def test_a_peer_that_is_slow_with_one_answer_is_kept() -> None:
    def script(request: RemotingCommand) -> RemotingCommand | None:
        return echo(request) if request.ext_fields["n"] == "1" else None

    with ScriptedPeer(script) as peer:
        connection = opened(peer)
        slow = connection.begin(request(0), soon())
        call(connection, request(1))
        with pytest.raises(RequestTimeout):
            connection.wait(slow, soon(SHORT_S))
        assert call(connection, request(1)).code == 0
        connection.close()


def test_a_peer_that_reads_nothing() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        connection = connect(address, CLOCK, ClientTls(None), None, soon())
        with pytest.raises(RequestTimeout, match="reads too slowly"):
            connection.begin(request(0, bytes(16_000_000)), soon(SHORT_S))
        connection.close()


ANSWER = encode_command(RemotingCommand.request(11, {"n": "0"}, b"body").reply(0, "ok", {}, b"b"))


@pytest.mark.parametrize("cut_at", range(len(ANSWER)))
def test_a_peer_that_closes_at_any_byte(cut_at: int) -> None:
    with ScriptedPeer(lambda request: [ANSWER[:cut_at], CLOSE]) as peer:
        connection = opened(peer)
        with pytest.raises(ConnectionFailed) as caught:
            call(connection, request())
        assert caught.value.reached
        assert not connection.is_alive()


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        (40).to_bytes(4, "big") + (36).to_bytes(4, "big") + b"{" * 36,
        (40).to_bytes(4, "big") + (0x55 << 24 | 36).to_bytes(4, "big") + b"{" * 36,
    ],
)
def test_a_peer_that_sends_garbage(garbage: bytes) -> None:
    with ScriptedPeer(lambda request: garbage) as peer:
        connection = opened(peer)
        with pytest.raises(ProtocolError, match="no frame"):
            call(connection, request())
        assert connection.closed_why


def test_a_peer_that_closes_between_calls_is_noticed(
    pair: tuple[ScriptedPeer, Connection],
) -> None:
    peer, connection = pair
    call(connection, request())
    assert connection.is_alive()
    peer.cut()
    with pytest.raises(RocketMQError):
        call(connection, request())
    assert not connection.is_alive()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionFailed, match="refused") as caught:
        connect(address, CLOCK, ClientTls(None), None, soon())
    assert not caught.value.reached


@pytest.mark.parametrize("address", ["nowhere", "no host:1", "x" * 300 + ":1", "127.0.0.1:0"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConnectionFailed):
        connect(address, CLOCK, ClientTls(None), None, soon())


def test_requests_are_signed_over_all_their_fields() -> None:
    with ScriptedPeer(echo) as peer:
        connection = opened(peer, Signer(Credentials("AK", "secret", "token")))
        call(connection, request(7, b"body"))
        (seen,) = peer.requests
        connection.close()
    fields = dict(seen.ext_fields)
    signature = fields.pop("Signature")
    assert fields == {"n": "7", "AccessKey": "AK", "SecurityToken": "token"}
    assert signature == sign(b"secret", fields, b"body")


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and its peer's end of it."""
    mine, peers = socket.socketpair()
    connection = Connection("the-peer:1", mine, CLOCK)
    with peers:
        yield connection, peers
    connection.close()


def answer_to(opaque: int) -> bytes:
    return encode_command(RemotingCommand(11, opaque=opaque).reply(0, str(opaque)))


@pytest.mark.parametrize("last", ["waits", "writes", "reads garbage"])
def test_answers_that_came_before_the_end_are_kept(
    ends: tuple[Connection, socket.socket], last: str
) -> None:
    """A request whose answer was thrown away would be sent again, and stored twice."""
    connection, peer = ends
    opaques = [connection.begin(request(number), soon()) for number in range(4)]
    for opaque in opaques[:3]:
        peer.sendall(answer_to(opaque))
    if last == "reads garbage":
        peer.sendall(bytes(64))
    peer.close()
    with pytest.raises(RocketMQError):
        if last == "writes":
            connection.begin(request(5), soon())
        connection.wait(opaques[3], soon())
    for opaque in opaques[:3]:
        assert connection.has_answer(opaque)
        assert connection.wait(opaque, soon()).remark == str(opaque)
    with pytest.raises(RocketMQError):
        connection.wait(opaques[3], soon())
