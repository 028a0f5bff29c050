"""`send`, `consume` and `health` towards a broker that enforces TLS."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylarkmq.broker.config.tls_settings import TlsConfig, TlsMode
from skylarkmq.cli import main
from tests.support.certificates import Authority
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.ports import free_ports

pytestmark = pytest.mark.timing


async def run(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skylarkmq.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, errors = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), errors.decode()


@pytest.mark.slow
async def test_send_consume_and_health_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=authority.certificate_file("127.0.0.1"),
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=authority.ca_file,
    )
    mine = str(authority.certificate_file("client"))
    secured = ["--tls-ca", str(authority.ca_file), "--tls-cert", mine]
    async with live_broker(tmp_path / "store", tls=tls) as broker:
        namesrv = ["--namesrv", namesrv_of(broker)]
        code, out, errors = await run("send", "T", "hello", *namesrv, *secured)
        assert (code, errors) == (0, "") and json.loads(out)["status"] == "SEND_OK"
        options = ("--group", "g", "--from", "first", "--max", "1")
        code, out, errors = await run("consume", "T", *options, *namesrv, *secured)
        assert (code, errors) == (0, "") and json.loads(out)["body"] == "hello"
        code, _, errors = await run("send", "T", "hello", *namesrv, "--tls")
        assert code == 4 and "issuer check" in errors

        assert broker.metrics_address is not None
        address = "{}:{}".format(*broker.metrics_address)
        assert await run("health", "--address", address) == (0, "ready\n", "")


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
async def test_the_image_asks_whether_it_is_healthy(tmp_path: Path, mode: TlsMode) -> None:
    """As its Dockerfile says, whatever TLS is there, and with access control."""
    text = (Path(__file__).parents[2] / "Dockerfile").read_text()
    (command,) = re.findall(r"HEALTHCHECK [^\[]*CMD (\[.*\])", text)
    program, *words = json.loads(command)
    assert program == "skylarkmq"
    nobody = iter(free_ports(2))
    words = [re.sub(r":\d+$", lambda _: f":{next(nobody)}", word) for word in words]
    (tmp_path / "conf").mkdir()
    accounts = "accounts: [{accessKey: somebody, secretKey: hidden-secret}]"
    (tmp_path / "conf" / "plain_acl.yml").write_text(accounts)
    tls = TlsConfig(
        tls_server_mode=mode,
        tls_server_cert_path=Authority(tmp_path).certificate_file("broker.example"),
    )
    changes = {"acl_enable": True, "rocketmq_home": tmp_path, "tls": tls}
    async with live_broker(tmp_path / "store", **changes) as broker:
        assert broker.metrics_address is not None
        address = "{}:{}".format(*broker.metrics_address)
        assert await run(*words, "--address", address) == (0, "ready\n", "")
    code, _, errors = await run(*words, "--address", address)
    assert (code, errors.startswith(f"error: {address}: ")) == (4, True)


async def test_health_without_tls(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        assert broker.metrics_address is not None
        address = "{}:{}".format(*broker.metrics_address)
        assert await run("health", "--address", address) == (0, "ready\n", "")
        host, port = broker.listen_address
        code, _, errors = await run("health", "--address", f"{host}:{port}")
        assert code == 4 and errors.startswith(f"error: {host}:{port}: ")
    free, _ = free_ports(1)
    code, _, errors = await run("health", "--address", f"127.0.0.1:{free}")
    assert code == 4 and "refused" in errors


async def test_another_server_is_healthy_while_it_listens_and_nobody_has_the_page(
    tmp_path: Path,
) -> None:
    free, other = free_ports(2)
    words = ("health", "--or", f"127.0.0.1:{other}", "--address", f"127.0.0.1:{free}")
    assert (await run(*words))[0] == 4
    with socket.create_server(("127.0.0.1", other)):
        assert await run(*words) == (0, f"ready: 127.0.0.1:{other} listens\n", "")
        page = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", free)
        async with page:  # of a broker that is not well
            assert (await run(*words))[0] == 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("health", "--address", "here"), "is not HOST:PORT"),
        (("send", "T", "x", "--tls-ca", "/nowhere"), "/nowhere: No such file or directory"),
        (("send", "T", "x", "--tls-cert", __file__), "no PEM that can be used"),
    ],
)
def test_wrong_use(words: tuple[str, ...], why: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and why in result.output
