"""Calls over the wire, by grpcio's client: who calls, what comes back, what bad input gets."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.accounts import read_rules
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.broker.grpc.calls import SERVICE
from skylarkmq.broker.net import peer_connection
from skylarkmq.broker.net.connection import Gate
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_control import ACCOUNTS
from tests.broker.access.test_rpc_control import settings, signed
from tests.broker.grpc.rig import BODY_MAX, METADATA, Client, Rig, open_client, open_rig
from tests.support.certificates import Authority
from tests.support.patience import until

pytestmark = pytest.mark.timing


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as found:
        yield found


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[Client]:
    async with open_client(rig) as found:
        yield found


def message(body: bytes) -> schema_pb2.SendMessageRequest:
    return schema_pb2.SendMessageRequest(messages=[schema_pb2.Message(body=body)])


async def test_a_handler_learns_who_calls(rig: Rig, client: Client) -> None:
    answer = await client.call("Heartbeat", schema_pb2.HeartbeatRequest(), timeout=30)
    assert answer.status == schema_pb2.Status(code=20000, message="OK")
    (call,) = rig.handlers.calls
    assert (call.client_id, call.language, call.version) == ("host@1@0@abc", "PYTHON", "5.1.2")
    assert call.account is None
    assert call.peer.startswith("127.0.0.1:") or call.peer.startswith("::1:")
    assert call.deadline_s is not None
    assert rig.clock.monotonic() < call.deadline_s < rig.clock.monotonic() + 31
    assert rig.endpoint.calls.answered == {("Heartbeat", 20000): 1}


async def test_an_address_that_nobody_proves_has_no_shares_of_its_own(
    rig: Rig, client: Client
) -> None:
    """Whoever said another one with each call would have the places of all."""
    for number in (1, 2):
        said = ("x-skylarkmq-client", f"192.0.2.{number}:5000")
        await client.call("Heartbeat", metadata=(*METADATA, said))
    assert [call.peer for call in rig.handlers.calls] == ["192.0.2.1:5000", "192.0.2.2:5000"]
    (source,) = {call.source for call in rig.handlers.calls}
    assert source.startswith(("127.0.0.1:", "::1:"))


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("HTTP", "HTTP"),
        ("java", "JAVA"),
        ("NODE_JS", "NODE_JS"),
        ("Klingon", "OTHER"),
        ("", "OTHER"),
    ],
)
async def test_languages(rig: Rig, client: Client, word: str, language: str) -> None:
    metadata = (METADATA[0], ("x-mq-language", word))
    await client.call("Heartbeat", metadata=metadata)
    assert rig.handlers.calls[0].language == language


@pytest.mark.parametrize("client_id", ["", "x" * 257, None])
async def test_a_call_needs_a_client_id(rig: Rig, client: Client, client_id: str | None) -> None:
    metadata = () if client_id is None else (("x-mq-client-id", client_id),)
    answer = await client.call("Heartbeat", metadata=metadata)
    assert answer.status.code == Code.CLIENT_ID_REQUIRED
    received = [part async for part in client.receive(_receive(), metadata=metadata)]
    assert [part.status.code for part in received] == [Code.CLIENT_ID_REQUIRED]
    stream = client.telemetry(metadata=metadata)
    assert (await stream.read()).status.code == Code.CLIENT_ID_REQUIRED
    assert await stream.code() is grpc.StatusCode.OK
    assert not rig.handlers.calls


def _receive(batch: int = 0) -> schema_pb2.ReceiveMessageRequest:
    return schema_pb2.ReceiveMessageRequest(batch_size=batch)


async def test_what_is_no_protobuf_gets_a_status(
    rig: Rig, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.call("SendMessage", b"\xff\xff\xff")
    assert answer.status.code == Code.BAD_REQUEST
    assert "SendMessageRequest" in answer.status.message
    stream = client.channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=METADATA)
    await stream.write(b"\xff\xff\xff")
    data = await stream.read()
    assert schema_pb2.TelemetryCommand.FromString(data).status.code == Code.BAD_REQUEST
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["PullMessage", "SyncLiteSubscription", "QueryRoute", "x"])
async def test_other_calls_are_unimplemented(client: Client, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call(name)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_body_of_the_largest_size_and_a_larger_one(rig: Rig, client: Client) -> None:
    answer = await client.call("SendMessage", message(b"x" * BODY_MAX))
    assert answer.entries[0].offset == BODY_MAX
    answer = await client.call("SendMessage", message(b"x" * (BODY_MAX + (2 << 20))))
    assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE
    assert "the largest has" in answer.status.message
    answer = await client.call("Heartbeat", b"x" * (2 << 20))
    assert answer.status.code == Code.PAYLOAD_TOO_LARGE
    assert (await client.call("Heartbeat")).status.code == Code.OK


async def test_an_error_of_ours_is_one_line_and_a_status(
    rig: Rig, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_: Any) -> None:
        raise KeyError("of ours")

    rig.handlers.work = fails
    with caplog.at_level(logging.ERROR):
        answer = await client.call("SendMessage", message(b""))
        parts = [part async for part in client.receive(_receive(3))]
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert [part.status.code for part in parts] == [Code.INTERNAL_SERVER_ERROR]
    assert len(caplog.records) == 2


async def test_a_receive_is_a_stream(rig: Rig, client: Client) -> None:
    parts = [part async for part in client.receive(_receive(2))]
    assert [part.WhichOneof("content") for part in parts] == ["status", "message", "message"]
    assert [part.message.body for part in parts[1:]] == [b"0", b"1"]
    assert rig.endpoint.calls.answered == {("ReceiveMessage", 20000): 1}


async def test_a_cancelled_receive_cancels_its_handler(rig: Rig, client: Client) -> None:
    waiting = asyncio.Event()
    rig.handlers.work = lambda _: waiting.wait()
    call = client.receive(_receive())
    await until(lambda: rig.handlers.calls)
    call.cancel()
    await until(lambda: rig.handlers.ended == ["cancelled"])
    late = client.receive(_receive(), timeout=0.05)
    with pytest.raises(grpc.aio.AioRpcError):
        await late.read()
    await until(lambda: rig.handlers.ended == ["cancelled"] * 2)
    client.receive(_receive())
    await until(lambda: len(rig.handlers.calls) == 3)
    await client.channel.close()
    await until(lambda: rig.handlers.ended == ["cancelled"] * 3)


async def test_commands_go_both_ways(rig: Rig, client: Client) -> None:
    stream = client.telemetry()
    for size in (1, 2):
        command = schema_pb2.TelemetryCommand()
        command.settings.publishing.max_body_size = size
        await stream.write(command)
        answer = await stream.read()
        assert answer.status.code == Code.OK
        assert answer.settings.publishing.max_body_size == size
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert rig.endpoint.calls.answered == {("Telemetry", 20000): 1}


async def test_settings_that_cannot_be_used_end_the_stream(client: Client) -> None:
    stream = client.telemetry()
    command = schema_pb2.TelemetryCommand()
    command.settings.publishing.max_body_size = -1
    await stream.write(command)
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await stream.details() == "no such size"


async def test_a_stop_lets_calls_be_answered(rig: Rig, client: Client) -> None:
    """New calls are refused meanwhile; streams of commands end as for a server that leaves."""
    waiting = asyncio.Event()
    rig.handlers.work = lambda _: waiting.wait()
    stream = client.telemetry()
    await stream.write(schema_pb2.TelemetryCommand())
    await stream.read()
    sending = asyncio.ensure_future(client.call("SendMessage", message(b"abc")))
    await until(lambda: len(rig.handlers.calls) == 2)
    rig.endpoint.stop_reading()
    stopping = asyncio.ensure_future(rig.endpoint.stop())
    waiting.set()
    assert (await sending).entries[0].offset == 3
    await stopping
    assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call("Heartbeat")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Service:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")


async def test_it_listens_again_on_its_port(rig: Rig) -> None:
    port, service = rig.address[1], Service()
    rig.endpoint.services.append(service)
    await rig.endpoint.stop()
    assert service.told == []
    rig.endpoint.start()
    await rig.endpoint.started()
    assert service.told == ["start"]
    await rig.endpoint.stop()
    await rig.endpoint.stop()
    assert service.told == ["start", "stop"]
    rig.endpoint.start()
    await rig.endpoint.started()
    assert rig.address[1] == port
    async with open_client(rig) as client:
        assert (await client.call("Heartbeat")).status.code == Code.OK


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_tls_and_plain_text_on_one_port(tmp_path: Path, mode: str) -> None:
    authority = Authority(tmp_path)
    credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
    async with open_rig(mode=mode, context=authority.server_context("localhost")) as rig:
        async with open_client(rig, credentials) as client:
            answer = await client.call("SendMessage", message(b"x" * (1 << 20)))
            assert answer.entries[0].offset == 1 << 20
        async with open_client(rig) as client:
            if mode == "permissive":
                assert (await client.call("Heartbeat")).status.code == Code.OK
            else:
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.call("Heartbeat", timeout=2)


class Late(Gate):
    """Finds that sends have waited too long, and keeps what it is asked."""

    watch_after_s = 0.0

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    def late(self, code: int, waited_s: float) -> RemoteProtocolError | None:
        self.asked.append((code, waited_s))
        is_send = code == RequestCode.SEND_MESSAGE_V2
        return RemoteProtocolError(ResponseCode.SYSTEM_BUSY, "too late") if is_send else None


async def test_a_send_that_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "socket_silence_s", lambda raw: 7.5)
    gate = Late()
    async with open_rig(gate=gate) as rig, open_client(rig) as client:
        answer = await client.call("SendMessage", message(b""))
        assert (answer.status.code, answer.status.message) == (Code.TOO_MANY_REQUESTS, "too late")
        assert (await client.call("Heartbeat")).status.code == Code.OK
        assert gate.asked == [(RequestCode.SEND_MESSAGE_V2, 7.5), (0, 7.5)]
        gate.watch_after_s = math.inf
        assert (await client.call("SendMessage", message(b""))).status.code == Code.OK


async def test_a_call_without_a_right_gets_a_status() -> None:
    def make(stats: Any, clock: Any) -> RpcAccess:
        access = RpcAccess(RPCS, stats)
        access.rules = read_rules([(Path("plain_acl.yml"), ACCOUNTS.encode())])
        return access

    async with open_rig(access=make) as rig, open_client(rig) as client:
        mine = message(b"")
        mine.messages[0].topic.name = "Mine"
        nobody = await client.call("SendMessage", mine)
        assert nobody.status.code == Code.UNAUTHORIZED
        assert "give the client an access key" in nobody.status.message
        stream = client.telemetry()
        assert (await stream.read()).status.code == Code.UNAUTHORIZED
        client.metadata = (*METADATA, *signed("publisher").items())
        assert (await client.call("SendMessage", mine)).status.code == Code.OK
        assert rig.handlers.calls[0].account.access_key == "publisher"
        mine.messages[0].topic.name = "Other"
        assert (await client.call("SendMessage", mine)).status.code == Code.FORBIDDEN
        stream = client.telemetry()
        await stream.write(settings("Other"))
        assert (await stream.read()).status.code == Code.FORBIDDEN
        assert rig.stats.auth_failures["no_permission"] == 2
        assert len(rig.handlers.calls) == 2
