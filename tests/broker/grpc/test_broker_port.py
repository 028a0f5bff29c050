"""The port for clients of RocketMQ 5 as a broker has it: off, on, taken, not yet."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc import needs
from skylarkmq.broker.grpc.calls import SERVICE
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.start.banner import banner, ready_fields
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_control import ACCOUNTS
from tests.broker.access.test_rpc_control import signed
from tests.broker.grpc.rig import METADATA, Client
from tests.support.certificates import Authority
from tests.support.live_broker import broker_config, live_broker

pytestmark = pytest.mark.timing


async def status_of(broker: BrokerController, credentials: Any = None) -> grpc.StatusCode:
    """How a call ends that no broker has."""
    assert broker.grpc_address is not None
    target = f"127.0.0.1:{broker.grpc_address[1]}"
    async with grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Client(channel).call("SyncLiteSubscription")
        code: grpc.StatusCode = caught.value.code()
        return code


async def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        assert broker.parts.grpc is None and broker.grpc_address is None
        assert "gRPC" not in banner(broker, 1.0, [])
        assert "grpcAddr" not in ready_fields(broker, 1.0, [])


async def test_it_is_told_and_answers(tmp_path: Path) -> None:
    async with live_broker(tmp_path, grpc_listen_port=0) as broker:
        assert broker.grpc_address is not None
        address = "{}:{}".format(*broker.grpc_address)
        assert address in banner(broker, 1.0, [])
        assert ready_fields(broker, 1.0, [])["grpcAddr"] == address
        assert await status_of(broker) is grpc.StatusCode.UNIMPLEMENTED
        assert broker.parts.tls_gates["grpc"].results["plain_text"] == 1
    assert await status_of(broker) is grpc.StatusCode.UNAVAILABLE


async def test_every_call_that_is_answered_has_a_row(tmp_path: Path) -> None:
    async with live_broker(tmp_path, grpc_listen_port=0) as broker:
        assert broker.parts.grpc is not None
        names = {path.removeprefix(f"/{SERVICE}/") for path in broker.parts.grpc._methods}
    assert names - RPCS.keys() == set()


async def test_a_broker_that_follows_refuses_connections(tmp_path: Path) -> None:
    """So a client that knows several addresses finds the one that leads."""
    slave = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": "127.0.0.1:1"}
    async with live_broker(tmp_path, grpc_listen_port=0, **slave) as broker:
        assert await status_of(broker) is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    taken = bind("127.0.0.1", 0)
    with taken:
        taken.listen()
        config = broker_config(tmp_path, grpc_listen_port=port_of(taken))
        with pytest.raises(OSError, match="grpcListenPort") as caught:
            await BrokerController(config).start()
    assert caught.value.errno == errno.EADDRINUSE


async def test_without_its_library_the_start_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "_is_installed", lambda name: name != "google.protobuf")
    config = broker_config(tmp_path, grpc_listen_port=0)
    with pytest.raises(ConfigError, match=re.escape(f"protobuf: {how_to_install('grpc')}")):
        await BrokerController(config).start()


def test_what_is_not_there_at_all_is_not_installed() -> None:
    assert not needs._is_installed("no_such_package.part")
    assert needs._is_installed("asyncio.base_events")


def test_an_address_to_tell_clients_has_a_port(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        broker_config(tmp_path, grpc_advertised_address="example.com")


async def alpn_of(address: tuple[str, int] | None) -> str | None:
    """The protocol that a listener chooses of those that browsers and gRPC offer."""
    assert address is not None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(*address, ssl=context)
    chosen: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.close()
    return chosen.selected_alpn_protocol()


@pytest.mark.parametrize("has_file", [True, False], ids=["file", "made"])
async def test_tls_by_the_broker_s_certificate(tmp_path: Path, has_file: bool) -> None:
    """HTTP/2 is chosen on this port alone: a browser at the metrics page speaks HTTP/1.1."""
    authority = Authority(tmp_path)
    certificate = authority.certificate_file("localhost") if has_file else None
    tls = TlsConfig(tls_server_cert_path=certificate)
    async with live_broker(tmp_path / "store", grpc_listen_port=0, tls=tls) as broker:
        assert await alpn_of(broker.grpc_address) == "h2"
        assert await alpn_of(broker.listen_address) is None
        assert await alpn_of(broker.metrics_address) is None
        if has_file:
            assert broker.grpc_address is not None
            credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
            target = f"localhost:{broker.grpc_address[1]}"
            async with grpc.aio.secure_channel(target, credentials) as channel:
                answer = await Client(channel).call("NotifyClientTermination")
                assert answer.status.code == Code.OK
        assert broker.parts.tls_gates["grpc"].results["tls"] == 1 + has_file


async def test_the_accounts_of_the_broker_count(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    changes = {"acl_enable": True, "rocketmq_home": tmp_path, "grpc_listen_port": 0}
    async with live_broker(tmp_path / "store", **changes) as broker:
        assert broker.grpc_address is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_address[1]}") as channel:
            client = Client(channel)
            answer = await client.call("NotifyClientTermination")
            assert answer.status.code == Code.UNAUTHORIZED
            client.metadata = (*METADATA, *signed("publisher").items())
            answer = await client.call("NotifyClientTermination")
            assert answer.status.code == Code.OK
            request = schema_pb2.QueryRouteRequest(topic=schema_pb2.Resource(name="Other"))
            assert (await client.call("QueryRoute", request)).status.code == Code.FORBIDDEN
        assert broker.parts.stats.auth_failures["no_access_key"] == 1
