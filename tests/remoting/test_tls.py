"""TLS: verified by default; a refusal says which check it was; sends and answers go through it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.client.clock import SystemClock
from skylarkmq.client.errors import ConnectionFailed, RocketMQError, TlsError
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.stream import AsyncioNetwork
from skylarkmq.remoting.tls import ClientTls, ServerHostname, SslSetting
from tests.support.certificates import Authority

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its own body."""
    decoder = FrameDecoder()
    try:
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                request = decode_command(frame)
                writer.write(encode_command(request.reply(0, body=request.body)))
    except (ssl.SSLError, ConnectionError):
        pass
    finally:
        writer.close()


async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the first bytes for something else, and hang up."""
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close on the first bytes, as a broker with tls.server.mode=disabled does."""
    await reader.read(100)
    writer.transport.abort()


@asynccontextmanager
async def serving(
    context: ssl.SSLContext | None,
    handle: Handler = answer_all,
) -> AsyncIterator[str]:
    """A peer on loopback; its address."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # a refused handshake is the peer's affair
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def remoting(
    setting: SslSetting, server_hostname: ServerHostname = None
) -> AsyncIterator[RemotingClient]:
    clock = SystemClock(asyncio.get_running_loop())
    network = AsyncioNetwork(ClientTls(setting, server_hostname))
    it = RemotingClient(network, clock, Random(1), "json", lambda *_: None)
    try:
        yield it
    finally:
        await it.stop()


async def echo(
    address: str, setting: SslSetting, server_hostname: ServerHostname = None, body: bytes = b"x"
) -> bytes:
    """Make one call and return what came back."""
    async with remoting(setting, server_hostname) as it:
        request = RemotingCommand.request(34, body=body)
        return (await it.call(address, request, 20.0)).body


async def failure(
    address: str, setting: SslSetting, server_hostname: ServerHostname = None
) -> RocketMQError:
    with pytest.raises(RocketMQError) as caught:
        await echo(address, setting, server_hostname)
    return caught.value


async def test_requests_of_any_size_go_through_tls(authority: Authority) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB: many records, and more than the buffers hold
    async with serving(authority.server_context("127.0.0.1")) as address:
        assert await echo(address, authority.client_context(), body=body) == body


async def test_the_default_context_trusts_nobody_unknown(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as address:
        error = await failure(address, True)
    assert isinstance(error, TlsError)
    assert "issuer check" in str(error)
    assert "cafile=" in str(error), "what to do"
    assert not error.retryable


async def test_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other authority")
    async with serving(authority.server_context("127.0.0.1")) as address:
        assert "issuer check" in str(await failure(address, other.client_context()))


async def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    context = authority.server_context("127.0.0.1", lasts=-timedelta(days=1))
    async with serving(context) as address:
        error = await failure(address, authority.client_context())
    assert "validity check" in str(error)
    assert "has expired" in str(error)


async def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    async with serving(authority.server_context("broker-a.example")) as address:
        error = await failure(address, authority.client_context())
    assert "host name check" in str(error)
    assert "127.0.0.1" in str(error)
    assert "server_hostname=" in str(error)


async def test_a_broker_advertised_by_ip_is_checked_against_its_name(authority: Authority) -> None:
    async with serving(authority.server_context("broker-a.example")) as address:
        rules: list[ServerHostname] = [
            "broker-a.example",
            {address: "broker-a.example"},
            {"127.0.0.1": "broker-a.example"},
            {"127.0.0.1": "wrong.example", address: "broker-a.example"},
            lambda where: "broker-a.example" if where == address else None,
        ]
        for rule in rules:
            assert await echo(address, authority.client_context(), rule) == b"x"
        assert "wrong.example" in str(
            await failure(address, authority.client_context(), "wrong.example")
        )


async def test_a_host_name_is_dialled_and_checked(authority: Authority) -> None:
    async with serving(authority.server_context("localhost")) as address:
        port = address.rpartition(":")[2]
        assert await echo(f"localhost:{port}", authority.client_context()) == b"x"


async def test_client_certificates(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1", wants_client=True)) as address:
        assert await echo(address, authority.client_context(with_certificate=True)) == b"x"
        error = await failure(address, authority.client_context())
    assert "client certificate" in str(error)


def shake_hands(connection: socket.socket, context: ssl.SSLContext) -> None:
    """Do so as a server; send the alert of a failure, and read to the end, or it would be lost."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=True)
    try:
        while True:
            try:
                session.do_handshake()
                return
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
    except ssl.SSLError:
        connection.sendall(outgoing.read())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@contextmanager
def alerting(context: ssl.SSLContext) -> Iterator[str]:
    """A peer that says why it refuses, as Java's do; asyncio's servers just close."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    shake_hands(connection, context)

        thread = threading.Thread(target=refuse)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


async def test_a_missing_client_certificate_is_named(authority: Authority) -> None:
    with alerting(authority.server_context("127.0.0.1", wants_client=True)) as address:
        error = await failure(address, authority.client_context())
    assert "CERTIFICATE_REQUIRED" in str(error)
    assert "load_cert_chain" in str(error)


@pytest.mark.parametrize("handle", [rubbish, hang_up])
async def test_a_peer_without_tls_is_told(authority: Authority, handle: Handler) -> None:
    async with serving(None, handle) as address:
        error = await failure(address, authority.client_context())
    assert isinstance(error, TlsError)
    assert "tls.server.mode" in str(error)


async def test_no_tls_version_in_common(authority: Authority) -> None:
    server = authority.server_context("127.0.0.1")
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    client = authority.client_context()
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    with alerting(server) as address:
        assert "share no TLS version" in str(await failure(address, client))
    async with serving(server) as address:
        assert "1.2 or up" in str(await failure(address, client))


async def test_plain_text_to_a_port_that_wants_tls(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as address:
        error = await failure(address, None)
    assert isinstance(error, ConnectionFailed)
    assert not isinstance(error, TlsError)


def test_a_file_is_no_context() -> None:
    wrong: Any = "ca.pem"
    with pytest.raises(TypeError, match="ssl is True, or a context"):
        ClientTls(wrong, None)


def test_a_context_for_servers_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="for servers"):
        ClientTls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def test_a_name_to_expect_without_tls_is_refused() -> None:
    with pytest.raises(ValueError, match="needs ssl="):
        ClientTls(None, "broker-a.example")


def test_verification_is_on_by_default() -> None:
    context = ClientTls(True).context
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert ClientTls(None).context is ClientTls(False).context is None


@pytest.mark.parametrize("host", ["a" * 64 + ".example", ".example"])
async def test_a_host_that_can_be_none_is_a_failed_connection(
    host: str, authority: Authority
) -> None:
    assert "is no host name" in str(await failure(f"{host}:9876", None))
    assert isinstance(await failure(f"{host}:9876", authority.client_context()), ConnectionFailed)


async def test_a_function_of_names_that_fails_is_a_failed_connection(authority: Authority) -> None:
    def expected(address: str) -> str:
        raise KeyError(address)

    async with serving(authority.server_context("127.0.0.1")) as address:
        error = await failure(address, authority.client_context(), expected)
    assert isinstance(error, TlsError)
    assert "server_hostname failed: KeyError" in str(error)
