"""Between socket and connection: the first byte decides, handshakes are bounded in number and time,
and flow control goes through."""

from __future__ import annotations

import itertools
import logging
import ssl
from datetime import timedelta

import pytest

from skylarkmq.broker.net.buffers import BEHIND_SIZE
from skylarkmq.broker.net.tls import (
    HANDSHAKE_LIMIT_S,
    PENDING_MAX,
    TOLD_INTERVAL_S,
    TlsTransport,
)
from skylarkmq.protocol.command import RemotingCommand, encode_command
from tests.broker.net.tls_rig import Client, Rig
from tests.support.certificates import Authority
from tests.support.manual_clock import settle

FRAME = encode_command(RemotingCommand.request(34, {"n": "1"}, b"body", opaque=1))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> ssl.SSLContext:
    return authority.server_context("broker.example")


@pytest.fixture
def client(authority: Authority) -> Client:
    return Client(authority.client_context())


async def test_plain_text_leaves_nothing_between(server: ssl.SSLContext) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    assert isinstance(socket.protocol, TlsTransport)
    socket.protocol.data_received(FRAME[:1])
    assert socket.protocol is connection and connection._transport is socket
    connection.data_received(FRAME[1:])
    assert [len(frames) for frames in rig.owner.handled if frames] == [1]
    assert rig.gate.results["plain_text"] == 1 and rig.clock.pending_count == 0


async def test_disabled_is_no_layer_at_all(server: ssl.SSLContext) -> None:
    socket, connection = Rig(server, "disabled").connect()
    assert socket.protocol is connection
    socket.protocol.data_received(b"\x16\x03\x01\x02\x00\x01")
    assert socket.ended and connection.close_reason == "protocol_error"


async def test_frames_and_answers_through_tls(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server, "enforcing")
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    assert rig.gate.results["tls"] == 1 and rig.gate.open_count == 1
    socket.protocol.data_received(client.send(FRAME))
    assert rig.owner.handled[-1][0].body == b"body"
    connection.send(b"answer", at_once=True)
    assert client.read(socket.take_written()) == b"answer"
    assert rig.clock.pending_count == 0
    socket.protocol.connection_lost(None)
    assert rig.gate.open_count == 0 and rig.owner.gone == [connection]


async def test_enforcing_ends_plain_text(
    server: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(server, "enforcing")
    for _ in range(50):
        socket, connection = rig.connect()
        socket.protocol.data_received(FRAME)
        assert socket.ended == "close" and not socket.writes and not rig.owner.handled
        assert connection.close_reason == "protocol_error"
    assert rig.gate.results["plain_text_refused"] == 50
    assert len(caplog.records) == 1 and "tls.server.mode is enforcing" in caplog.text
    rig.clock.advance(TOLD_INTERVAL_S)
    rig.connect()[0].protocol.data_received(FRAME)
    assert "49 more" in caplog.text


async def test_garbage_costs_its_own_connection(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server)
    bad, connection = rig.connect()
    good, _ = rig.connect()
    bad.protocol.data_received(b"\x16" + b"garbage" * 5)
    await rig.shake_hands(good, client)
    assert bad.ended == "close" and connection.close_reason == "protocol_error"
    assert rig.gate.results["handshake_failed"] == 1 and rig.gate.results["tls"] == 1
    assert rig.gate._under_way_count == 0 and rig.clock.pending_count == 0


async def test_half_a_hello_and_then_nothing(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    socket.protocol.data_received(client.flight()[:100])
    await settle()
    rig.clock.advance(HANDSHAKE_LIMIT_S - 0.1)
    assert not socket.ended
    rig.clock.advance(0.1)
    assert socket.ended == "abort" and connection.close_reason == "protocol_error"
    assert rig.gate.results["handshake_timeout"] == 1 and rig.gate._under_way_count == 0
    socket.protocol.connection_lost(None)
    assert rig.gate.results["handshake_failed"] == 0


async def test_bytes_of_a_slow_hello_do_not_prolong_it(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, _ = rig.connect()
    for byte in client.flight()[:20]:
        socket.protocol.data_received(bytes([byte]))
        await settle(3)
        rig.clock.advance(HANDSHAKE_LIMIT_S / 20)
    assert socket.ended == "abort"


async def test_thousands_of_handshakes_are_bounded(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server, handshakes_max=40)
    hello = client.flight()
    sockets = [rig.connect(f"192.0.2.{n % 4}")[0] for n in range(2000)]
    for socket in sockets:
        socket.protocol.data_received(hello)
    assert rig.gate._under_way_count == 40
    assert set(rig.gate._under_way.values()) == {10}  # a quarter for each address
    assert rig.gate.results["handshake_limit"] == 1960
    await settle(60)
    late, connection = rig.connect("192.0.2.77")
    late.protocol.data_received(hello)
    assert late.ended == "close" and connection.close_reason == "limit"
    rig.clock.advance(HANDSHAKE_LIMIT_S)
    assert rig.gate._under_way_count == 0 and not rig.gate._under_way
    assert rig.clock.pending_count == 0
    another, _ = rig.connect("192.0.2.77")
    another.protocol.data_received(hello)
    await settle(3)
    assert not another.ended and another.writes


async def test_a_turn_of_the_loop_has_one_step(
    server: ssl.SSLContext, authority: Authority
) -> None:
    rig = Rig(server)
    sockets = [rig.connect()[0] for _ in range(10)]
    for socket in sockets:
        socket.protocol.data_received(Client(authority.client_context()).flight())
    answered: list[int] = []
    for _ in range(12):
        await settle(1)
        answered.append(sum(bool(socket.writes) for socket in sockets))
    steps = [after - before for before, after in itertools.pairwise(answered)]
    assert max(steps) == 1 and answered[-1] == 10


async def test_what_is_sent_ahead_of_the_turn_is_bounded(server: ssl.SSLContext) -> None:
    rig = Rig(None)  # no certificate yet, so nobody's turn comes
    socket, _ = rig.connect()
    socket.protocol.data_received(b"\x16" + bytes(PENDING_MAX - 1))
    assert socket.reading
    socket.protocol.data_received(b"x")
    assert not socket.reading
    rig.contexts.current = server
    (ready,) = rig.contexts.wanted
    ready()
    assert socket.ended == "close" and rig.gate.results["handshake_failed"] == 1


async def test_no_certificate_can_be_had(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(None)
    sockets = [rig.connect()[0] for _ in range(3000)]
    for socket in sockets[:200]:
        socket.protocol.data_received(client.flight() or b"\x16")
    rig.contexts.failure = "there is none: name one"
    (ready,) = rig.contexts.wanted
    ready()
    await settle(300)
    assert all(socket.ended for socket in sockets[:200])
    assert rig.gate.results["unavailable"] == 200 and "name one" in caplog.text


async def test_an_end_before_the_end_of_the_handshake(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    socket.protocol.data_received(client.flight())
    await settle()
    assert socket.protocol.eof_received() is False
    socket.protocol.connection_lost(None)
    assert rig.gate.results["handshake_failed"] == 1 and rig.gate._under_way_count == 0
    assert rig.clock.pending_count == 0 and connection.closed


async def test_a_message_in_the_last_flight_is_not_lost_by_the_end(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, _ = rig.connect()
    socket.protocol.data_received(client.flight())
    await settle()
    socket.protocol.data_received(client.flight(socket.take_written()) + client.send(FRAME))
    socket.protocol.eof_received()  # in the same turn of the loop
    assert rig.owner.handled[-1][0].body == b"body"


async def test_a_peer_that_left_before_it_was_accepted(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, _ = rig.connect()
    socket.peer = None
    socket.protocol.data_received(client.flight())
    assert socket.ended == "abort" and rig.gate._under_way_count == 0


async def test_each_side_says_good_bye(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    connection.close("shutdown")
    assert socket.ended == "close"
    assert client.read(socket.take_written()) == b"" and client.object.read(1) == b""


async def test_the_end_of_tls_is_the_end_of_the_stream(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    socket.protocol.data_received(client.send(FRAME) + client.end())
    assert rig.owner.handled and socket.ended == "close"
    socket.protocol.connection_lost(None)
    assert connection.close_reason == "peer"


async def test_a_broken_record_ends_it(server: ssl.SSLContext, client: Client) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    broken = bytearray(client.send(FRAME))
    broken[-1] ^= 1
    socket.protocol.data_received(bytes(broken))
    assert rig.gate.results["bad_record"] == 1 and not rig.owner.handled
    assert socket.ended == "close" and connection.close_reason == "protocol_error"


async def test_a_peer_that_does_not_read_is_noticed_through_tls(
    server: ssl.SSLContext, client: Client
) -> None:
    rig = Rig(server)
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    assert socket.high == BEHIND_SIZE
    socket.keeps = True
    for _ in range(40):
        connection.send(bytes(64 << 10), at_once=True)
    assert connection.unsent_size == socket.buffered > 40 * (64 << 10)
    assert not socket.reading
    socket.take_all()
    assert socket.reading and connection.paused_since_s == 0.0
    assert len(client.read(socket.take_written())) == 40 * (64 << 10)


async def test_what_the_certificate_says_can_be_asked(authority: Authority) -> None:
    rig = Rig(authority.server_context("broker.example", wants_client=True))
    socket, connection = rig.connect()
    await rig.shake_hands(socket, Client(authority.client_context(with_certificate=True)))
    transport = connection._transport
    assert transport.get_extra_info("peercert")["subjectAltName"] == (("DNS", "client"),)
    assert transport.get_extra_info("cipher")[1] in ("TLSv1.3", "TLSv1.2")
    assert transport.get_extra_info("peername") == ("192.0.2.9", 4711)


@pytest.mark.parametrize("kind", ["none", "expired", "foreign"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_without_a_good_certificate(
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    version: ssl.TLSVersion,
) -> None:
    foreign = Authority(tmp_path_factory.mktemp("foreign"), "foreign authority")
    context = authority.client_context()
    context.maximum_version = version
    if kind == "expired":
        context.load_cert_chain(authority.certificate_file("client", lasts=timedelta(days=-1)))
    elif kind == "foreign":
        context.load_cert_chain(foreign.certificate_file("client"))
    rig = Rig(authority.server_context("broker.example", wants_client=True))
    socket, connection = rig.connect()
    client = Client(context)
    data = client.flight()
    while data and not socket.ended:
        socket.protocol.data_received(data)
        await settle(3)
        try:
            data = client.flight(socket.take_written())
        except ssl.SSLError:
            break
    assert socket.ended == "close" and connection.close_reason == "protocol_error"
    assert rig.gate.results["no_certificate" if kind == "none" else "bad_certificate"] == 1


async def test_nothing_is_logged_of_what_went_well(
    server: ssl.SSLContext, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(server)
    socket, _ = rig.connect()
    await rig.shake_hands(socket, client)
    assert not caplog.records
