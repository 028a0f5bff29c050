"""Calls of other endpoints: grpcio's server, our own, and peers that do it wrong."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import h2.settings
import pytest

from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.forwarding import grpc_client, upstream
from skylarkmq.broker.forwarding.grpc_client import (
    IDLE_S,
    SIGN_LIMIT_S,
    SILENCE_S,
    Answers,
    UpstreamStream,
)
from skylarkmq.broker.forwarding.upstream import (
    CONNECT_LIMIT_S,
    LEFT_ALONE_S,
    UpstreamError,
    Upstreams,
)
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.protocol.http2.connection import RECEIVE_WINDOW
from skylarkmq.protocol.http2.frames import DEFAULT_WINDOW, UINT32, ErrorCode, FrameType, frame
from skylarkmq.protocol.http2.grpc import PREFIX, GrpcStatus, framed, read_timeout, timeout_text
from skylarkmq.protocol.v5 import schema_pb2
from tests.broker.forwarding.upstream_rig import (
    LAST,
    OK,
    GrpcioServer,
    Peer,
    grpcio,
    opened,
    scripted,
)
from tests.broker.grpc.rig import METADATA, open_rig
from tests.support.certificates import Authority
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.patience import until

SENT = {"x-mq-client-id": "host@1", "x-text": "füñf", ":path": "/wrong", "te": "wrong"}
Code = h2.settings.SettingCodes


@pytest.fixture
async def server() -> AsyncGenerator[GrpcioServer]:
    async with grpcio() as made:
        yield made


@pytest.fixture
async def upstreams() -> AsyncGenerator[Upstreams]:
    async with opened() as made:
        yield made


async def failed(made: Awaitable[Any]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await made
    return caught.value


def nothing(peer: Peer, stream_id: int) -> None:
    """Leave a request without an answer."""


def echo(peer: Peer, stream_id: int) -> None:
    """Answer each request alike."""
    peer.answer(stream_id, framed(b"answer"))


# Calls


async def test_a_call_is_answered(server: GrpcioServer, upstreams: Upstreams) -> None:
    answer = await upstreams.unary(server.address, "/test/One", SENT, b"hello", 20.0)
    assert answer == b"hello"
    assert server.metadata["x-mq-client-id"] == "host@1"
    assert server.metadata["x-text"] == "füñf"
    assert server.time_left_s is not None
    assert 0 < server.time_left_s <= 20


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 1 << 20, 5 << 20])
async def test_large_messages_pass_both_ways(
    size: int, server: GrpcioServer, upstreams: Upstreams
) -> None:
    assert await upstreams.unary(server.address, "/test/One", {}, bytes(size), None) == bytes(size)


async def test_many_calls_pass_at_a_time(server: GrpcioServer, upstreams: Upstreams) -> None:
    bodies = [b"%d" % number * number for number in range(300)]
    calls = (upstreams.unary(server.address, "/test/One", {}, body, None) for body in bodies)
    assert await asyncio.gather(*calls) == bodies
    assert len(server.peers) <= 3  # while its settings were not known, 100 calls each


async def test_a_stream_goes_both_ways(server: GrpcioServer, upstreams: Upstreams) -> None:
    async with upstreams.stream(server.address, "/test/Many", SENT) as call:
        for body in (b"", b"one", bytes(3 << 20)):
            await call.write(body)
            assert await call.read() == body
        call.end()
        assert await call.read() is None
        await call.write(b"to nobody")


async def test_what_is_not_read_is_not_sent(upstreams: Upstreams) -> None:
    async with scripted(nothing) as server, upstreams.stream(server.address, "/a/B", {}) as call:
        await call.write(b"")
        await until(lambda: server.peers[0].size)
        (peer,) = server.peers
        peer.http2.send_headers(1, OK)
        count = 0
        while peer.http2.local_flow_control_window(1) >= 1024:
            peer.http2.send_data(1, framed(bytes(1019)))
            count += 1
        peer.send()
        await until(lambda: upstreams.answers.held == count * 1024 == RECEIVE_WINDOW)
        server.work = echo  # another call is not held up, and carries what was said before it
        assert await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"
        assert peer.http2.local_flow_control_window(1) == 0
        assert [await call.read() for _ in range(count)] == [bytes(1019)] * count
        assert upstreams.answers.held == 0
        await until(lambda: peer.http2.local_flow_control_window(1) == RECEIVE_WINDOW)


async def test_our_own_endpoint_takes_them(upstreams: Upstreams) -> None:
    async with open_rig() as rig:
        address = f"127.0.0.1:{rig.address[1]}"
        path = "/apache.rocketmq.v2.MessagingService/"
        request = schema_pb2.HeartbeatRequest().SerializeToString()
        answer = await upstreams.unary(address, f"{path}Heartbeat", dict(METADATA), request, 9.0)
        assert schema_pb2.HeartbeatResponse.FromString(answer).status.code == 20000
        (call,) = rig.handlers.calls
        assert (call.client_id, call.language) == ("host@1@0@abc", "PYTHON")
        assert call.deadline_s is not None
        receive = schema_pb2.ReceiveMessageRequest(batch_size=100).SerializeToString()
        async with upstreams.stream(address, f"{path}ReceiveMessage", dict(METADATA)) as stream:
            await stream.write(receive)
            stream.end()
            count = 0
            while await stream.read() is not None:
                count += 1
        assert count == 101
        async with upstreams.stream(address, f"{path}Telemetry", dict(METADATA)) as stream:
            for _ in range(3):
                await stream.write(schema_pb2.TelemetryCommand().SerializeToString())
                assert await stream.read()
        assert rig.stats.connections_opened == 1


async def test_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = TlsConfig(tls_client_trust_cert_path=authority.ca_file)
    tls = OutgoingTls(config, ManualClock())
    async with (
        open_rig(context=authority.server_context("127.0.0.1")) as rig,
        opened(tls=tls) as upstreams,
    ):
        path = "/apache.rocketmq.v2.MessagingService/Heartbeat"
        address = f"127.0.0.1:{rig.address[1]}"
        answer = await upstreams.unary(address, path, dict(METADATA), b"", 9.0)
        assert schema_pb2.HeartbeatResponse.FromString(answer).status.code == 20000
        strange = f"localhost:{rig.address[1]}"
        error = await failed(upstreams.unary(strange, path, dict(METADATA), b"", 9.0))
        assert not error.reached
        assert "host name check" in str(error)


async def test_http2_is_asked_for_in_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.certificate_file("127.0.0.1").read_bytes()
    config = TlsConfig(tls_client_trust_cert_path=authority.ca_file)
    tls = OutgoingTls(config, ManualClock(), alpn=("h2",))
    async with (
        grpcio(grpc.ssl_server_credentials([(pem, pem)])) as server,
        opened(tls=tls) as upstreams,
    ):
        assert await upstreams.unary(server.address, "/test/One", {}, b"hello", 9.0) == b"hello"


# What the other end refuses, or does wrong


async def test_a_refusal_is_told(server: GrpcioServer, upstreams: Upstreams) -> None:
    error = await failed(upstreams.unary(server.address, "/test/Refuse", {}, b"", None))
    assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, True)
    assert str(error) == "it answers with gRPC status '8': '100 % full\\nreally'"


async def test_a_method_that_there_is_not(server: GrpcioServer, upstreams: Upstreams) -> None:
    error = await failed(upstreams.unary(server.address, "/test/Nothing", {}, b"", None))
    assert (error.status, error.reached) == (GrpcStatus.UNIMPLEMENTED, True)


@pytest.mark.parametrize(
    ("bodies", "options", "status", "why"),
    [
        ((), {}, GrpcStatus.INTERNAL, "0 messages"),
        ((framed(b"a"), framed(b"b")), {}, GrpcStatus.INTERNAL, "2 messages"),
        ((framed(b"abc")[:-1],), {}, GrpcStatus.INTERNAL, "in the middle"),
        ((PREFIX.pack(1, 1) + b"x",), {}, GrpcStatus.UNIMPLEMENTED, "compressed"),
        ((PREFIX.pack(0, 1 << 30),), {}, GrpcStatus.RESOURCE_EXHAUSTED, "largest"),
        ((framed(b"a"),), {"last": (("x", "y"),)}, GrpcStatus.UNKNOWN, "''"),
        ((framed(b"a"),), {"last": (("grpc-status", "99"),)}, GrpcStatus.UNKNOWN, "'99'"),
        ((), {"first": ((":status", "415"),)}, GrpcStatus.UNKNOWN, "'415'"),
        ((), {"first": (*OK, ("grpc-status", "14")), "last": ()}, GrpcStatus.CANCELLED, "CANCEL"),
    ],
)
async def test_an_answer_that_is_none(
    bodies: tuple[bytes, ...],
    options: dict[str, Any],
    status: GrpcStatus,
    why: str,
    upstreams: Upstreams,
) -> None:
    def answer(peer: Peer, stream_id: int) -> None:
        peer.answer(stream_id, *bodies, **options)
        if "last" in options and not options["last"]:
            peer.http2.reset_stream(stream_id, ErrorCode.CANCEL)

    async with scripted(answer) as server:
        error = await failed(upstreams.unary(server.address, "/a/B", {}, b"", None))
        assert (error.status, error.reached) == (status, True)
        assert why in str(error)
        server.work = echo
        assert await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"
        assert len(server.peers) == 1


@pytest.mark.parametrize(
    ("code", "status", "reached"),
    [
        (ErrorCode.REFUSED_STREAM, GrpcStatus.UNAVAILABLE, False),
        (ErrorCode.ENHANCE_YOUR_CALM, GrpcStatus.RESOURCE_EXHAUSTED, True),
        (ErrorCode.INTERNAL_ERROR, GrpcStatus.INTERNAL, True),
        (77, GrpcStatus.INTERNAL, True),
    ],
)
async def test_a_stream_that_is_reset(
    code: int, status: GrpcStatus, reached: bool, upstreams: Upstreams
) -> None:
    def reset(peer: Peer, stream_id: int) -> None:
        peer.http2.reset_stream(stream_id, code)

    async with scripted(reset) as server:
        error = await failed(upstreams.unary(server.address, "/a/B", {}, b"", None))
        assert (error.status, error.reached) == (status, reached)
        # What surely did not arrive was tried twice.
        assert server.peers[0].asked == ([1] if reached else [1, 3])


async def test_one_that_goes_away_has_its_calls_made_anew(upstreams: Upstreams) -> None:
    def leave(peer: Peer, stream_id: int) -> None:
        peer.http2.close_connection(last_stream_id=0)
        made.work = echo

    async with scripted(leave) as made:
        assert await upstreams.unary(made.address, "/a/B", {}, b"", None) == b"answer"
        assert len(made.peers) == 2
        await made.peers[0].ended.wait()


async def test_one_that_goes_away_answers_what_it_has(upstreams: Upstreams) -> None:
    async with scripted(nothing) as server:
        first = asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
        await until(lambda: server.peers and server.peers[0].asked)
        (peer,) = server.peers
        leave = frame(FrameType.GOAWAY, 0, 0, UINT32.pack(1) + UINT32.pack(0))
        peer.writer.write(leave)  # h2 would send nothing any more
        server.work = echo

        async def is_anew() -> bool:
            answer = await upstreams.unary(server.address, "/a/B", {}, b"", None)
            return answer == b"answer" and len(server.peers) == 2

        await until(is_anew)
        assert not first.done()
        echo(peer, 1)
        assert await first == b"answer"
        await peer.ended.wait()


async def test_a_connection_that_is_lost_fails_its_calls(upstreams: Upstreams) -> None:
    async with scripted(lambda peer, _: peer.writer.transport.abort()) as server:
        error = await failed(upstreams.unary(server.address, "/a/B", {}, b"", None))
        assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, True)
        assert "was lost" in str(error)
        server.work = echo
        assert await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"


async def test_what_came_before_a_failure_is_read_first(upstreams: Upstreams) -> None:
    def cut(peer: Peer, stream_id: int) -> None:
        peer.answer(stream_id, framed(b"one"), framed(b"two"), last=())
        peer.http2.reset_stream(stream_id, ErrorCode.INTERNAL_ERROR)

    async with scripted(cut) as server, upstreams.stream(server.address, "/a/B", {}) as call:
        call.end()
        await until(lambda: call.is_over)
        assert [await call.read(), await call.read()] == [b"one", b"two"]
        assert (await failed(call.read())).status is GrpcStatus.INTERNAL
        assert (await failed(call.write(b""))).status is GrpcStatus.INTERNAL


@pytest.mark.parametrize("seed", range(20))
async def test_bytes_of_chance_fail_the_call_alone(
    seed: int, upstreams: Upstreams, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)

    def answer(peer: Peer, stream_id: int) -> None:
        peer.http2.send_headers(stream_id, OK)
        peer.http2.send_data(stream_id, framed(b"answer"))
        peer.http2.send_headers(stream_id, LAST, end_stream=True)
        data = bytearray(peer.http2.data_to_send())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        peer.writer.write(bytes(data))
        peer.writer.close()

    async with scripted(answer) as server:
        for _ in range(5):
            with suppress(UpstreamError):
                await upstreams.unary(server.address, "/a/B", {}, b"", None)
        server.work = echo

        async def is_answered() -> bool:
            with suppress(UpstreamError):  # the last connection is closed by and by
                return await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"
            return False

        await until(is_answered)
    assert not [record for record in caplog.records if record.levelname != "INFO"]


# Limits


async def test_all_answers_together_are_bounded(server: GrpcioServer) -> None:
    async with opened(answers=Answers(held_max=200_000)) as upstreams:
        async with upstreams.stream(server.address, "/test/Many", {"times": "100"}) as call:
            await call.write(bytes(9000))
            await until(lambda: call.is_over)
            assert upstreams.answers.held <= 200_000 + 65_536
            with pytest.raises(UpstreamError, match="wait to be read") as caught:
                while await call.read():
                    pass
            assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED
        answer = await upstreams.unary(server.address, "/test/Large", {}, b"100000", None)
        assert len(answer) == 100_000


async def test_who_does_not_read_makes_room_for_those_who_do(server: GrpcioServer) -> None:
    async with opened(answers=Answers(held_max=200_000)) as upstreams:
        many = "/test/Many"
        async with (
            upstreams.stream(server.address, many, {"times": "10"}) as ended,
            upstreams.stream(server.address, many, {"times": "10"}) as unread,
            upstreams.stream(server.address, many, {}) as read,
        ):
            for call in (ended, unread):
                await call.write(bytes(9000))
            ended.end()
            await until(lambda: ended.is_over)
            await until(lambda: upstreams.answers.held == 20 * 9005)
            answer = await upstreams.unary(server.address, "/test/Large", {}, b"100000", None)
            assert len(answer) == 100_000
            with pytest.raises(UpstreamError, match="it is not read"):
                await ended.read()
            assert upstreams.answers.held == 10 * 9005
            await unread.read()
            for size in (100_000, 150_000):
                await read.write(bytes(size))
                assert await read.read() == bytes(size)
            with pytest.raises(UpstreamError, match="it is not read"):
                await unread.read()
        assert not upstreams.answers.unread


async def test_the_messages_of_one_answer_are_bounded(
    server: GrpcioServer, upstreams: Upstreams
) -> None:
    async with upstreams.stream(server.address, "/test/Many", {"times": "5000"}) as call:
        await call.write(b"")
        await until(lambda: call.is_over)
        with pytest.raises(UpstreamError, match="4096 messages of the call wait"):
            while await call.read() is not None:
                pass


async def test_a_message_that_is_too_large_is_not_taken(server: GrpcioServer) -> None:
    async with opened(answers=Answers(message_max=1000)) as upstreams:
        assert len(await upstreams.unary(server.address, "/test/Large", {}, b"1000", None)) == 1000
        error = await failed(upstreams.unary(server.address, "/test/Large", {}, b"1001", None))
        assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, True)


async def test_more_calls_than_a_connection_takes_get_further_ones(upstreams: Upstreams) -> None:
    async with grpcio(max_concurrent_streams=2) as server:
        calls = [
            asyncio.ensure_future(upstreams.unary(server.address, "/test/Hang", {}, b"", None))
            for _ in range(5)
        ]
        await until(lambda: server.under_way == 5, "all calls")
        assert len(server.peers) == 3
        for call in calls:
            call.cancel()
        await until(lambda: server.under_way == 0)
        assert server.cancelled == ["hang"] * 5
        await upstreams.unary(server.address, "/test/One", {}, b"", None)
        assert len(server.peers) == 3


async def test_connections_to_an_address_are_bounded(
    upstreams: Upstreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "CONNECTIONS_MAX", 2)
    async with scripted(nothing) as server:
        server.settings = {Code.MAX_CONCURRENT_STREAMS: 1}
        calls = [
            asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
            for _ in range(3)
        ]
        done, others = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        error = await failed(done.pop())
        assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, False)
        assert (len(server.peers), len(others)) == (2, 2)
        for call in calls:
            call.cancel()


async def test_addresses_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "ADDRESSES_MAX", 2)
    clock = ManualClock()
    async with opened(clock) as upstreams:
        for name in ("a:0", "b:0"):
            assert "host:port" in str(await failed(upstreams.unary(name, "/a/B", {}, b"", None)))
        error = await failed(upstreams.unary("c:0", "/a/B", {}, b"", None))
        assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, False)
        await advance_async(clock, upstream.SCAN_INTERVAL_S)
        assert "host:port" in str(await failed(upstreams.unary("c:0", "/a/B", {}, b"", None)))


async def test_metadata_that_the_other_end_would_not_take(upstreams: Upstreams) -> None:
    async with scripted(echo) as server:
        server.settings = {Code.MAX_HEADER_LIST_SIZE: 1000}
        error = await failed(upstreams.unary(server.address, "/a/B", {"x": "y" * 1000}, b"", None))
        assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, False)
        assert await upstreams.unary(server.address, "/a/B", {"x": "y"}, b"", None) == b"answer"


async def test_clients_that_cancel_all_the_time_do_not_cost_the_connection(
    server: GrpcioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_client, "RESETS_MAX", 2)
    clock = ManualClock()
    async with opened(clock) as upstreams:

        async def cancelled() -> None:
            before = len(server.cancelled)
            call = asyncio.ensure_future(
                upstreams.unary(server.address, "/test/Hang", {}, b"", None)
            )
            await until(lambda: server.under_way == 1)
            call.cancel()
            await until(lambda: len(server.cancelled) > before)

        await cancelled()
        await cancelled()
        assert len(server.peers) == 1
        await cancelled()
        assert len(server.peers) == 2
        await advance_async(clock, 20)
        await cancelled()
        assert len(server.peers) == 2


async def test_one_who_writes_waits_for_the_other_end(upstreams: Upstreams) -> None:
    async with scripted(nothing) as server:
        server.opens_windows = False
        async with upstreams.stream(server.address, "/a/B", {}) as call:
            writing = asyncio.ensure_future(call.write(bytes(100_000)))
            await until(lambda: server.peers and server.peers[0].size == DEFAULT_WINDOW)
            await settle()
            assert not writing.done()
            server.peers[0].http2.acknowledge_received_data(DEFAULT_WINDOW, 1)
            server.peers[0].send()
            await writing


async def test_requests_that_are_not_read_are_bounded(
    upstreams: Upstreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "UNSENT_MAX", 100_000)
    async with scripted(echo) as server:
        await upstreams.unary(server.address, "/a/B", {}, b"", None)
        server.says_nothing = True  # nor opens a window
        large = upstreams.unary(server.address, "/a/B", {}, bytes(200_000), None)
        call = asyncio.ensure_future(large)
        await settle()
        error = await failed(upstreams.unary(server.address, "/a/B", {}, b"", None))
        assert (error.status, error.reached) == (GrpcStatus.RESOURCE_EXHAUSTED, False)
        call.cancel()
        await settle()
        call = asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
        await settle()
        assert not call.done()
        call.cancel()


# The end of a call, and of a connection


async def test_a_call_that_is_cancelled_ends_there(
    server: GrpcioServer, upstreams: Upstreams
) -> None:
    call = asyncio.ensure_future(upstreams.unary(server.address, "/test/Hang", {}, b"", None))
    await until(lambda: server.under_way == 1)
    call.cancel()
    await until(lambda: server.cancelled == ["hang"])
    assert await upstreams.unary(server.address, "/test/One", {}, b"x", None) == b"x"
    assert len(server.peers) == 1


async def test_a_stream_that_is_left_ends_there(upstreams: Upstreams) -> None:
    left: list[UpstreamStream] = []
    async with scripted(nothing) as server:
        with suppress(KeyError):
            async with upstreams.stream(server.address, "/a/B", {}) as call:
                left.append(call)
                await call.write(b"one")
                await until(lambda: server.peers[0].size)
                raise KeyError
        await until(lambda: server.peers[0].resets == [1])
        assert left[0].is_over


async def test_the_time_of_a_call() -> None:
    clock = ManualClock()
    async with scripted(nothing) as server, opened(clock) as upstreams:
        calls = [
            asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", time_s))
            for time_s in (3.0, 0.5, 6.0, None)
        ]
        await until(lambda: server.peers and len(server.peers[0].asked) == 4)
        for seconds, left in ((0.25, 4), (0.25, 3), (2.25, 3), (0.25, 2), (3, 1)):
            await advance_async(clock, seconds)
            assert sum(not call.done() for call in calls) == left
        await until(lambda: server.peers[0].resets == [3, 1, 5])
        error = await failed(calls[1])
        assert (error.status, error.reached) == (GrpcStatus.DEADLINE_EXCEEDED, True)
        calls[3].cancel()
        await settle()
        assert clock.pending_count == 1  # the scan


async def test_a_call_without_time_is_not_made(server: GrpcioServer) -> None:
    async with opened() as upstreams:
        await upstreams.unary(server.address, "/test/One", {}, b"", 9.0)
        error = await failed(upstreams.unary(server.address, "/test/Hang", {}, b"", 0.0))
        assert (error.status, error.reached) == (GrpcStatus.DEADLINE_EXCEEDED, False)
        assert not server.under_way


async def test_where_nothing_listens_is_left_alone_for_a_moment() -> None:
    clock = ManualClock()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        address = f"127.0.0.1:{port}"
        async with opened(clock) as upstreams:
            error = await failed(upstreams.unary(address, "/a/B", {}, b"", 9.0))
            assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, False)
            assert "connection refused" in str(error)
            held.close()
            async with scripted(echo, port) as server:
                clock.advance(LEFT_ALONE_S - 0.01)
                assert not (await failed(upstreams.unary(address, "/a/B", {}, b"", 9.0))).reached
                assert not server.peers
                clock.advance(0.01)
                assert await upstreams.unary(address, "/a/B", {}, b"", 9.0) == b"answer"


async def test_one_that_listens_and_says_nothing_is_not_there() -> None:
    clock = ManualClock()
    async with scripted(echo) as server, opened(clock) as upstreams:
        server.says_nothing = True
        calls = [
            asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", time_s))
            for time_s in (9.0, None, CONNECT_LIMIT_S / 2)
        ]
        await until(lambda: server.peers)
        await advance_async(clock, CONNECT_LIMIT_S / 2)
        error = await failed(calls[2])
        assert (error.status, error.reached) == (GrpcStatus.DEADLINE_EXCEEDED, False)
        assert not calls[0].done()
        await advance_async(clock, CONNECT_LIMIT_S / 2)
        for call in calls[:2]:
            error = await failed(call)
            assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, False)
        await server.peers[0].ended.wait()
        assert len(server.peers) == 1


async def test_one_that_speaks_something_else_is_not_there(upstreams: Upstreams) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    error = await failed(upstreams.unary(f"127.0.0.1:{port}", "/a/B", {}, b"", 9.0))
    assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, False)
    assert "HTTP/2" in str(error)
    listening.close()


async def test_one_that_has_died_is_given_up() -> None:
    clock = ManualClock()
    async with scripted(nothing) as server, opened(clock) as upstreams:
        call = asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
        await until(lambda: server.peers and server.peers[0].asked)
        server.says_nothing = True
        await advance_async(clock, SILENCE_S + SIGN_LIMIT_S + 2 * upstream.SCAN_INTERVAL_S)
        error = await failed(call)
        assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, True)
        assert "no sign of life" in str(error)
        await server.peers[0].ended.wait()


async def test_a_connection_that_is_not_used_closes() -> None:
    clock = ManualClock()
    async with scripted(echo) as server, opened(clock) as upstreams:
        await upstreams.unary(server.address, "/a/B", {}, b"", None)
        await advance_async(clock, IDLE_S - 10)
        await upstreams.unary(server.address, "/a/B", {}, b"", None)
        await advance_async(clock, IDLE_S - 10)
        assert not server.peers[0].ended.is_set()
        await advance_async(clock, 15)
        await server.peers[0].ended.wait()
        assert await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"
        assert len(server.peers) == 2


async def test_stop_ends_all_and_start_begins_anew() -> None:
    async with scripted(nothing) as server, opened() as upstreams:
        call = asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
        await until(lambda: server.peers and server.peers[0].asked)
        upstreams.stop()
        error = await failed(call)
        assert (error.status, error.reached) == (GrpcStatus.UNAVAILABLE, True)
        assert not (await failed(upstreams.unary(server.address, "/a/B", {}, b"", None))).reached
        await server.peers[0].ended.wait()
        server.work = echo
        upstreams.start()
        waits = asyncio.ensure_future(upstreams.unary(server.address, "/a/B", {}, b"", None))
        await asyncio.sleep(0)
        upstreams.stop()  # before its connection is there
        assert not (await failed(waits)).reached
        upstreams.start()
        assert await upstreams.unary(server.address, "/a/B", {}, b"", None) == b"answer"


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.001, 3.0, 99_999.999, 100_000.0, 1e9])
def test_a_time_is_said_as_it_is_read(seconds: float) -> None:
    said = read_timeout(timeout_text(seconds))
    assert said is not None
    if seconds < 1e8:
        assert abs(said - seconds) <= (0.001 if seconds < 100_000 else 1.0)
