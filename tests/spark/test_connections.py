"""Connections by address: kept, looked at, made again; TLS by settings; forks leave them alone."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import ConnectionFailed, RequestTimeout, RocketMQError, TlsError
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clients import client_for, close_all
from skylarkmq.spark.cluster import IDLE_MAX_S, UNLOOKED_S, BlockingClient
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


@contextmanager
def client_of(clock: TestClock | None = None, **other: Any) -> Iterator[BlockingClient]:
    given: dict[str, Any] = {"name_servers": ("ns:1",), "request_timeout_s": LIMIT_S, **other}
    client = BlockingClient(pickle.loads(pickle.dumps(ConnectionSettings(**given))), clock)
    yield client
    client.close()


def test_one_connection_serves_many_calls() -> None:
    clock = TestClock()
    with ScriptedPeer(echo) as peer, client_of(clock) as client:
        for _ in range(10):
            client.call(peer.address, request())
            clock.advance(UNLOOKED_S * 2)
        assert peer.connection_count == 1


def test_one_that_the_peer_closed_meanwhile_is_made_again() -> None:
    clock = TestClock()
    with ScriptedPeer(echo) as peer, client_of(clock) as client:
        client.call(peer.address, request())
        peer.cut()
        clock.advance(UNLOOKED_S * 2)
        assert client.call(peer.address, request()).code == 0
        assert peer.connection_count == 2


def test_one_that_was_idle_for_long_is_made_again() -> None:
    clock = TestClock()
    with ScriptedPeer(echo) as peer, client_of(clock) as client:
        client.call(peer.address, request())
        clock.advance(IDLE_MAX_S + 1)
        client.call(peer.address, request())
        assert peer.connection_count == 2
        clock.advance(IDLE_MAX_S + 1)
        client.drop_idle()
        client.call(peer.address, request())
        assert peer.connection_count == 3


def test_one_with_a_request_under_way_is_kept_however_long_spark_works() -> None:
    clock = TestClock()
    with ScriptedPeer(echo) as peer, client_of(clock) as client:
        pending = client.begin(peer.address, request())
        clock.advance(IDLE_MAX_S + 1)
        client.drop_idle()
        assert client.wait(pending, client.deadline_s()).code == 0
        assert peer.connection_count == 1


def test_brokers_and_name_servers_get_a_signature() -> None:
    with ScriptedPeer(echo) as broker, ScriptedPeer(echo) as name_server:
        names, credentials = (name_server.address,), Credentials("AK", "secret")
        with client_of(name_servers=names, credentials=credentials) as client:
            client.call(broker.address, request())
            client.call(name_server.address, request())
        for peer in (broker, name_server):
            assert {"AccessKey", "Signature"} <= peer.requests[0].ext_fields.keys()


def test_a_child_process_leaves_its_parent_s_connection_alone() -> None:
    with ScriptedPeer(echo) as peer, client_of() as client:
        client.call(peer.address, request())
        child = os.fork()
        if child == 0:
            try:
                answer = client.call(peer.address, request())
                client.close()
                os._exit(0 if answer.code == 0 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert peer.connection_count == 2
        assert client.call(peer.address, request()).code == 0
        assert peer.connection_count == 2


def test_each_thread_has_clients_of_its_own() -> None:
    with ScriptedPeer(echo) as peer:
        settings = ConnectionSettings((peer.address,), request_timeout_s=LIMIT_S)
        clients: list[BlockingClient] = []

        def work() -> None:
            clients.append(client_for(settings))
            assert clients[-1].call(peer.address, request()).code == 0
            close_all()

        for _ in range(2):
            thread = Thread(target=work)
            thread.start()
            thread.join(LIMIT_S)
        assert len({id(client) for client in (*clients, client_for(settings))}) == 3
        close_all()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_call(peer: ScriptedPeer, tls: TlsSettings) -> RemotingCommand:
    with client_of(tls=tls) as client:
        return client.call(peer.address, request())


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
    tls = TlsSettings(ca_file=str(authority.ca_file))
    body = bytes(range(256)) * 8000
    server = authority.server_context("127.0.0.1")
    with ScriptedPeer(echo, server) as peer, client_of(tls=tls) as client:
        requests = [RemotingCommand.request(1, {}, body) for _ in range(4)]
        under_way = [client.begin(peer.address, it) for it in requests]
        answers = [client.wait(it, client.deadline_s()) for it in under_way]
        assert all(answer.body == body for answer in answers)


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
        with client_of(request_timeout_s=0.2) as client, pytest.raises(RequestTimeout):
            client.call(address, request())
