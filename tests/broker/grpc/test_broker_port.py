"""The port for clients of RocketMQ 5 as a broker has it: off, on, taken, not yet."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.broker.banner import banner, ready_fields
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc import needs
from skylarkmq.broker.grpc.calls import SERVICE
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.common.config_fields import ConfigError
from tests.broker.grpc.rig import Client
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
        names = {path.removeprefix(f"/{SERVICE}/") for path in broker.parts.grpc.paths}
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
    with pytest.raises(ConfigError, match=r"protobuf: pip install 'skylarkmq\[grpc\]'"):
        await BrokerController(config).start()


def test_what_is_not_there_at_all_is_not_installed() -> None:
    assert not needs._is_installed("no_such_package.part")
    assert needs._is_installed("asyncio.base_events")


def test_an_address_to_tell_clients_has_a_port(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        broker_config(tmp_path, grpc_advertised_address="example.com")
