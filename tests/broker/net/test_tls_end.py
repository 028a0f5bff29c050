"""TLS without I/O: any split of the bytes means the same; what is no TLS is a failure."""

from __future__ import annotations

import itertools
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.net.tls import TlsEnd
from skylarkmq.broker.net.tls_context import server_context
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.broker.net.tls_rig import Client
from tests.support.certificates import Authority

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def feed(end: TlsEnd, data: bytes, cuts: list[int]) -> bytes:
    """Give the bytes in the pieces that the cuts make."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    return b"".join(end.receive(piece) for piece in pieces if piece)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_any_split_of_the_stream_gives_the_same_frames(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    server, trusting = authority.server_context("broker.example"), authority.client_context()
    trusting.minimum_version = trusting.maximum_version = version
    commands = [
        RemotingCommand.request(34, {"n": str(n)}, bytes(size), opaque=n)
        for n, size in enumerate((0, 1, 40_000, 16_384, 5))
    ]
    wanted = b"".join(encode_command(command) for command in commands)
    frames = FrameDecoder().feed(wanted)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.integers(0, 1 << 20), max_size=40), st.integers(1, len(wanted)))
    def check(cuts: list[int], place: int) -> None:
        client, end = Client(trusting), TlsEnd(server)
        data, text = client.flight(), b""
        while not client.is_open:
            text += feed(end, data, cuts)
            data = client.flight(end.take_outgoing())
        # The last flight of the handshake and the first messages may come as one.
        data += client.send(wanted[:place]) + client.send(wanted[place:] or b"\0")
        text += feed(end, data, cuts)
        assert end.failure is None and end.is_open
        assert FrameDecoder().feed(text[: len(wanted)]) == frames
        answer = end.take_outgoing() + end.encrypt(wanted)
        assert client.read(answer) == wanted

    check()


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_a_failure_or_an_unfinished_record(tail: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    end = TlsEnd(context)
    assert end.receive(b"\x16" + tail) == b""
    assert not end.is_open


def test_what_comes_before_a_broken_record_is_not_lost(authority: Authority) -> None:
    client, end = Client(authority.client_context()), TlsEnd(authority.server_context())
    client.object.context.check_hostname = False
    client = Client(client.object.context)
    data = client.flight()
    while not client.is_open:
        end.receive(data)
        data = client.flight(end.take_outgoing())
    sound, broken = client.send(b"first"), bytearray(client.send(b"second"))
    broken[-1] ^= 1
    assert end.receive(data + sound + bytes(broken)) == b"first"
    assert end.failure is not None
    assert end.take_outgoing()  # an alert tells the peer
    assert end.end() == b""


def test_the_peers_end_is_noticed(authority: Authority) -> None:
    client, end = (
        Client(authority.client_context()),
        TlsEnd(authority.server_context("broker.example")),
    )
    data = client.flight()
    while not client.is_open:
        end.receive(data)
        data = client.flight(end.take_outgoing())
    assert end.receive(data + client.send(b"bye") + client.end()) == b"bye"
    assert end.has_ended and end.failure is None
    assert end.end()  # ours


@pytest.mark.filterwarnings("ignore:.*TLSv1:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TLSv1_1:DeprecationWarning")
def test_a_hello_of_tls_1_1_is_refused(authority: Authority) -> None:
    context = authority.client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    config = TlsConfig(tls_server_cert_path=authority.certificate_file("broker.example"))
    end = TlsEnd(server_context(config, "none"))
    end.receive(Client(context).flight())
    assert end.failure is not None and end.failure.reason == "UNSUPPORTED_PROTOCOL"
