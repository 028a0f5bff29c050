"""Connections by address: kept, looked at, made again; TLS by settings; forks leave them alone."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import pytest

from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import ConnectionFailed, RequestTimeout, RocketMQError, TlsError
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.remoting.connections import IDLE_MAX_S, UNLOOKED_S, Connections
from skylarkmq.spark.settings import ConnectionSettings, TlsSettings
from tests.spark.support.blocking_clock import TestClock
from tests.spark.support.scripted_peer import ScriptedPeer
from tests.support.certificates import Authority
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing


def echo(request: RemotingCommand) -> RemotingCommand:
    return request.reply(0, None, request.ext_fields, request.body)


def request() -> RemotingCommand:
    return RemotingCommand.request(11, {"n": "1"})


def call(connections: Connections, address: str, clock: TestClock | SystemClock) -> RemotingCommand:
    return connections.call(address, request(), clock.monotonic() + LIMIT_S)


def test_one_connection_serves_many_calls() -> None:
    with ScriptedPeer(echo) as peer:
        clock = TestClock()
        connections = Connections(ConnectionSettings((peer.address,)), clock)
        for _ in range(10):
            call(connections, peer.address, clock)
            clock.advance(UNLOOKED_S * 2)
        assert peer.connection_count == 1
        connections.close()


def test_one_that_the_peer_closed_meanwhile_is_made_again() -> None:
    with ScriptedPeer(echo) as peer:
        clock = TestClock()
        connections = Connections(ConnectionSettings((peer.address,)), clock)
        call(connections, peer.address, clock)
        peer.cut()
        clock.advance(UNLOOKED_S * 2)
        assert call(connections, peer.address, clock).code == 0
        assert peer.connection_count == 2
        connections.close()


def test_one_that_was_idle_for_long_is_made_again() -> None:
    with ScriptedPeer(echo) as peer:
        clock = TestClock()
        connections = Connections(ConnectionSettings((peer.address,)), clock)
        call(connections, peer.address, clock)
        clock.advance(IDLE_MAX_S + 1)
        call(connections, peer.address, clock)
        assert peer.connection_count == 2
        clock.advance(IDLE_MAX_S + 1)
        connections.drop_idle()
        call(connections, peer.address, clock)
        assert peer.connection_count == 3
        connections.close()


def test_brokers_get_a_signature_and_name_servers_none() -> None:
    with ScriptedPeer(echo) as broker, ScriptedPeer(echo) as name_server:
        clock = SystemClock()
        credentials = Credentials("AK", "secret")
        settings = ConnectionSettings((name_server.address,), credentials=credentials)
        connections = Connections(settings, clock)
        call(connections, broker.address, clock)
        call(connections, name_server.address, clock)
        connections.close()
        assert "Signature" in broker.requests[0].ext_fields
        assert "Signature" not in name_server.requests[0].ext_fields
        assert "AccessKey" not in name_server.requests[0].ext_fields


def test_a_child_process_leaves_its_parent_s_connection_alone() -> None:
    with ScriptedPeer(echo) as peer:
        clock = SystemClock()
        connections = Connections(ConnectionSettings((peer.address,)), clock)
        call(connections, peer.address, clock)
        child = os.fork()
        if child == 0:
            try:
                answer = call(connections, peer.address, clock)
                os._exit(0 if answer.code == 0 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert peer.connection_count == 2
        assert call(connections, peer.address, clock).code == 0
        assert peer.connection_count == 2
        connections.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_call(peer: ScriptedPeer, tls: TlsSettings) -> RemotingCommand:
    clock = SystemClock()
    settings = pickle.loads(pickle.dumps(ConnectionSettings((peer.address,), tls=tls)))
    connections = Connections(settings, clock)
    try:
        return call(connections, peer.address, clock)
    finally:
        connections.close()


def test_tls_with_an_authority_of_one_s_own(authority: Authority) -> None:
    with ScriptedPeer(echo, authority.server_context("127.0.0.1")) as peer:
        ca_file = str(authority.ca_file)
        assert tls_call(peer, TlsSettings(ca_file=ca_file)).code == 0
        assert tls_call(peer, TlsSettings(verify=False)).code == 0
        with pytest.raises(TlsError, match=r"issuer.*tls\.caFile"):
            tls_call(peer, TlsSettings())


def test_tls_with_another_name_in_the_certificate(authority: Authority) -> None:
    with ScriptedPeer(echo, authority.server_context("broker.example")) as peer:
        ca_file = str(authority.ca_file)
        with pytest.raises(TlsError, match=r"host name check.*tls\.serverName"):
            tls_call(peer, TlsSettings(ca_file=ca_file))
        assert tls_call(peer, TlsSettings(ca_file=ca_file, server_name="broker.example")).code == 0


def test_tls_with_a_client_certificate(authority: Authority) -> None:
    server = authority.server_context("127.0.0.1", wants_client=True)
    with ScriptedPeer(echo, server) as peer:
        ca_file, own = str(authority.ca_file), str(authority.certificate_file("client"))
        assert tls_call(peer, TlsSettings(ca_file=ca_file, cert_file=own)).code == 0
        with pytest.raises(ConnectionFailed, match=r"tls\.certFile|reset"):
            tls_call(peer, TlsSettings(ca_file=ca_file))


def test_large_answers_over_tls(authority: Authority) -> None:
    with ScriptedPeer(echo, authority.server_context("127.0.0.1")) as peer:
        clock = SystemClock()
        tls = TlsSettings(ca_file=str(authority.ca_file))
        connections = Connections(ConnectionSettings((peer.address,), tls=tls), clock)
        body = bytes(range(256)) * 8000
        deadline_s = clock.monotonic() + LIMIT_S
        under_way = [
            connections.begin(peer.address, RemotingCommand.request(1, {}, body), deadline_s)
            for _ in range(4)
        ]
        assert all(connections.wait(it, deadline_s).body == body for it in under_way)
        connections.close()


def test_a_plain_peer_where_tls_is_expected(authority: Authority) -> None:
    with ScriptedPeer(echo) as peer, pytest.raises(RocketMQError, match="TLS"):
        tls_call(peer, TlsSettings(ca_file=str(authority.ca_file)))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with ScriptedPeer(echo) as peer:
        missing = str(tmp_path / "missing.pem")
        with pytest.raises(ConnectionFailed, match=r"TLS is not set up.*every executor"):
            tls_call(peer, TlsSettings(ca_file=missing))
        assert peer.connection_count == 0


def test_a_peer_that_takes_the_connection_and_nothing_else() -> None:
    """The listener's backlog takes it; nobody ever accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        clock = SystemClock()
        connections = Connections(ConnectionSettings((address,)), clock)
        with pytest.raises(RequestTimeout):
            connections.call(address, request(), clock.monotonic() + 0.2)
        connections.close()
