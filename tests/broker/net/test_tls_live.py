"""TLS over loopback, on both event loops: broker, name server and metrics page."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from skylarkmq.protocol.codes import RequestCode
from tests.support.certificates import Authority
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on one of the loops."""

    def runs(work: Awaitable[None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await work

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return runs


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Path:
    return authority.certificate_file("127.0.0.1")


def tls_of(certificate: Path, **keys: Any) -> TlsConfig:
    return TlsConfig(tls_server_cert_path=certificate, **keys)


async def raw_client(address: tuple[str, int], context: ssl.SSLContext | None) -> RawClient:
    return RawClient(*await asyncio.open_connection(*address, ssl=context))


def test_with_tls_and_without_on_one_port(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        async with live_broker(tmp_path, tls=tls_of(certificate)) as broker:
            big = bytes(range(256)) * 12_000
            for context, name in ((authority.client_context(), "a"), (None, "b")):
                async with (
                    Client(namesrv_of(broker), ssl=context) as client,
                    Producer(client=client) as producer,
                ):
                    await asyncio.gather(
                        *(producer.send(Message("T", f"{name}{n}")) for n in range(200))
                    )
                    await producer.send(Message("T", big))
            assert broker.tls.results["tls"] and broker.tls.results["plain_text"]
            got: list[bytes] = []
            async with (
                Client(namesrv_of(broker), ssl=authority.client_context()) as client,
                Consumer("T", client=client, group="g", start_from=StartFrom.FIRST) as consumer,
            ):
                async for message in consumer:
                    got.append(message.body)
                    await message.ack()
                    if len(got) == 402:
                        break
            assert sorted(got) == sorted(
                [*(f"{x}{n}".encode() for x in "ab" for n in range(200)), big, big]
            )

    run(work())


def test_a_reader_that_is_slow_gets_everything(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    """16 MB of answers to a peer that reads a little now and then: paused, not dropped."""

    async def work() -> None:
        async with live_broker(tmp_path, tls=tls_of(certificate)) as broker:
            client = await raw_client(broker.listen_address, authority.client_context())
            body = bytes(range(256)) * 4000
            for _ in range(16):
                answer = await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), body)
                assert answer.code == 0
            asked = [
                client.send(RequestCode.PULL_MESSAGE, pull_fields("T", queueOffset=str(n)))
                for n in range(16)
            ]
            (connection,) = broker.server.connections  # type: ignore[union-attr]
            await until(lambda: connection.paused_since_s, "the broker to notice")
            for opaque in asked:
                answer = await client.answer(opaque)
                assert answer.code == 0 and body in answer.body
            assert not connection.paused_since_s
            await client.close()

    run(work())


def test_plain_text_to_a_port_that_enforces_tls(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        tls = tls_of(certificate, tls_server_mode="enforcing")
        async with live_broker(tmp_path, tls=tls) as broker:
            assert broker.namesrv is not None and broker.namesrv.listen_address
            for address in (broker.listen_address, broker.namesrv.listen_address):
                client = await raw_client(address, None)
                client.send(RequestCode.GET_BROKER_CLUSTER_INFO)
                await client.closed()
                await client.close()
            assert broker.tls.results["plain_text_refused"] == 1
            assert broker.namesrv.tls.results["plain_text_refused"] == 1
            async with Client(namesrv_of(broker), ssl=authority.client_context()):
                pass

    run(work())


def test_client_certificates(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        tls = tls_of(
            certificate,
            tls_server_need_client_auth="require",
            tls_server_trust_cert_path=authority.ca_file,
        )
        async with live_broker(tmp_path, tls=tls) as broker:
            known = authority.client_context(with_certificate=True)
            async with (
                Client(namesrv_of(broker), ssl=known) as client,
                Producer(client=client) as producer,
            ):
                await producer.send(Message("T", "x"))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                stranger = await raw_client(broker.listen_address, authority.client_context())
                await stranger.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")
            assert broker.tls.results["no_certificate"] == 1

    run(work())


def test_a_new_certificate_while_connections_are_open(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        file = tmp_path / "certificate.pem"
        shutil.copy(certificate, file)
        async with live_broker(tmp_path / "store", tls=tls_of(file)) as broker:
            old = await raw_client(broker.listen_address, authority.client_context())
            assert (await old.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"1")).code == 0
            shown = old.writer.get_extra_info("peercert")["serialNumber"]
            shutil.copy(authority.certificate_file("127.0.0.1"), file)
            context = broker.tls.contexts.current
            broker.tls.contexts._look()  # type: ignore[union-attr]
            await until(lambda: broker.tls.contexts.current is not context)
            new = await raw_client(broker.listen_address, authority.client_context())
            assert new.writer.get_extra_info("peercert")["serialNumber"] != shown
            for client in (old, new):
                answer = await client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"2")
                assert answer.code == 0
                await client.close()

    run(work())


def test_garbage_and_half_hellos_beside_one_who_works(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        async with live_broker(tmp_path, tls=tls_of(certificate)) as broker:
            host, port = broker.listen_address
            client = await raw_client((host, port), authority.client_context())

            async def bother(data: bytes) -> None:
                with contextlib.suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(host, port)
                    writer.write(data)
                    await reader.read()
                    writer.close()

            garbage = [b"\x16" + bytes([n]) * 50 for n in range(4, 204)]
            bothers = asyncio.gather(*(bother(data) for data in garbage))
            for n in range(50):
                answer = await client.call(
                    RequestCode.SEND_MESSAGE_V2, send_fields("T"), str(n).encode()
                )
                assert answer.code == 0
            await bothers
            assert broker.tls.results["handshake_failed"] == 200
            assert broker.tls.open_count == 1
            await client.close()
            await until(lambda: broker.tls.open_count == 0)

    run(work())


def test_registration_with_a_name_server_that_enforces_tls(
    run: Run,
    tmp_path: Path,
    authority: Authority,
    certificate: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        tls = tls_of(
            certificate,
            tls_server_mode="enforcing",
            tls_server_need_client_auth="require",
            tls_server_trust_cert_path=authority.ca_file,
        )
        config = NamesrvConfig(listen_port=0, tls=tls)
        namesrv = NamesrvController(config, SystemClock(asyncio.get_running_loop()))
        await namesrv.start()
        address = "{}:{}".format(*namesrv.listen_address)
        right = TlsConfig(
            tls_enable=True,
            tls_client_trust_cert_path=authority.ca_file,
            tls_client_cert_path=authority.certificate_file("broker"),
        )
        async with live_broker(tmp_path / "right", tls=right, namesrv_addr=address) as broker:
            await until(lambda: namesrv.routes.data_version(str(broker.advertised)))
        assert namesrv.tls.results["tls"] == 1
        wrong = TlsConfig(tls_enable=True)
        async with live_broker(tmp_path / "wrong", tls=wrong, namesrv_addr=address):
            await until(lambda: "issuer check" in caplog.text)
        assert "tls.client.trustCertPath" in caplog.text
        await namesrv.stop()

    run(work())


async def get(port: int, path: str, context: ssl.SSLContext | None) -> int:
    """The status of a page; 0: the connection ended without an answer."""
    answer = await page(port, path, context)
    return int(answer.split()[1]) if answer else 0


async def page(port: int, path: str, context: ssl.SSLContext | None) -> bytes:
    """The whole answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    except ConnectionError:
        return b""
    return answer


def test_the_metrics_page(
    run: Run, tmp_path: Path, authority: Authority, certificate: Path
) -> None:
    async def work() -> None:
        plain, known = None, authority.client_context(with_certificate=True)
        stranger = authority.client_context()
        async with live_broker(tmp_path / "a", tls=tls_of(certificate)) as broker:
            assert broker.metrics_address is not None
            port = broker.metrics_address[1]
            assert [await get(port, "/metrics", c) for c in (plain, stranger)] == [200, 200]
            text = (await page(port, "/metrics", plain)).decode()
            labels = 'broker="broker-a",cluster="DefaultCluster",listener="metrics"'
            for line in (
                'skylarkmq_open_to_network{broker="broker-a",cluster="DefaultCluster"} 0.0',
                f'skylarkmq_tls_results_total{{{labels},result="tls"}} 1.0',
                f'skylarkmq_tls_results_total{{{labels},result="plain_text"}} 2.0',
                f"skylarkmq_tls_connections{{{labels}}} 0.0",
                f"skylarkmq_tls_certificate_expiry_time_seconds{{{labels}}} ",
            ):
                assert line in text
        tls = tls_of(
            certificate,
            tls_server_mode="enforcing",
            tls_server_need_client_auth="require",
            tls_server_trust_cert_path=authority.ca_file,
        )
        async with live_broker(tmp_path / "b", tls=tls) as broker:
            assert broker.metrics_address is not None
            port = broker.metrics_address[1]
            found = {
                path: [await get(port, path, c) for c in (plain, stranger, known)]
                for path in ("/metrics", "/readyz", "/livez", "/version")
            }
            assert found == {
                "/metrics": [0, 403, 200],
                "/readyz": [0, 200, 200],
                "/livez": [0, 200, 200],
                "/version": [0, 403, 200],
            }

    run(work())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl asks for a renegotiation")
def test_renegotiation_is_refused(run: Run, tmp_path: Path, certificate: Path) -> None:
    async def work() -> None:
        async with live_broker(tmp_path, tls=tls_of(certificate)) as broker:
            address = "{}:{}".format(*broker.listen_address)
            child = await asyncio.create_subprocess_exec(
                *("openssl", "s_client", "-connect", address, "-tls1_2"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert child.stdin is not None and child.stdout is not None
            await until(lambda: broker.tls.results["tls"] == 1)
            child.stdin.write(b"R\n")
            out = await child.stdout.read()
            await child.wait()
            assert b"RENEGOTIATING" in out and b"no renegotiation" in out
            assert broker.tls.results["tls"] == 1

    run(work())
