"""Calls to a name server: matched answers, deadlines by the clock, connections made anew."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from skylarkmq.broker.net import pending_calls, remote_channel
from skylarkmq.broker.net.pending_calls import ConnectionClosedError
from skylarkmq.broker.net.remote_channel import RemoteChannel
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.support.manual_clock import ManualClock, settle


class _Server:
    """A peer whose answers the test gives."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    async def stop(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()

    def answer(self, command: RemotingCommand) -> None:
        self.writers[-1].write(encode_command(command))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                self.requests.put_nowait(decode_command(frame))


@pytest.fixture
async def server() -> AsyncIterator[_Server]:
    server = _Server()
    yield server
    await server.stop()


async def test_answers_find_their_calls_in_any_order(server: _Server) -> None:
    channel = RemoteChannel(await server.start(), ManualClock())
    calls = [
        asyncio.ensure_future(channel.call(RemotingCommand.request(code), 5)) for code in (1, 2)
    ]
    requests = [await server.requests.get() for _ in calls]
    assert sorted(request.code for request in requests) == [1, 2]
    server.answer(RemotingCommand.request(40, opaque=requests[0].opaque, oneway=True))
    server.answer(RemotingCommand(0, opaque=999, flag=1))
    for request in reversed(requests):
        server.answer(request.reply(request.code + 100))
    assert [(await call).code for call in calls] == [101, 102]
    assert len(server.writers) == 1
    await channel.close()


async def test_a_call_has_its_deadline_on_the_clock(server: _Server) -> None:
    clock = ManualClock()
    channel = RemoteChannel(await server.start(), clock)
    call = asyncio.ensure_future(channel.call(RemotingCommand.request(1), 5))
    request = await server.requests.get()
    clock.advance(4.9)
    await settle()
    assert not call.done()
    clock.advance(0.2)
    with pytest.raises(TimeoutError, match="did not answer"):
        await call
    assert clock.pending_count == 0
    server.answer(request.reply(0))  # too late: nobody waits
    again = asyncio.ensure_future(channel.call(RemotingCommand.request(2), 5))
    server.answer((await server.requests.get()).reply(7))
    assert (await again).code == 7
    await channel.close()


async def test_a_lost_connection_fails_its_calls_and_is_made_anew(server: _Server) -> None:
    channel = RemoteChannel(await server.start(), ManualClock())
    call = asyncio.ensure_future(channel.call(RemotingCommand.request(1), 5))
    await server.requests.get()
    server.writers[0].close()
    with pytest.raises(ConnectionClosedError):
        await call
    call = asyncio.ensure_future(channel.call(RemotingCommand.request(1), 5))
    server.answer((await server.requests.get()).reply(0))
    assert (await call).code == 0 and len(server.writers) == 2
    await channel.close()


async def test_garbage_ends_the_connection(server: _Server) -> None:
    channel = RemoteChannel(await server.start(), ManualClock())
    call = asyncio.ensure_future(channel.call(RemotingCommand.request(1), 5))
    await server.requests.get()
    server.writers[0].write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConnectionClosedError):
        await call
    await channel.close()


async def test_nobody_listens(server: _Server) -> None:
    address = await server.start()
    await server.stop()
    clock = ManualClock()
    with pytest.raises(OSError):
        await RemoteChannel(address, clock).call(RemotingCommand.request(1), 5)
    assert clock.pending_count == 0


async def test_connecting_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def create_connection(*_: object, **__: object) -> None:
        await never.wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
    clock = ManualClock()
    call = asyncio.ensure_future(
        RemoteChannel("10.255.255.1:9876", clock).call(RemotingCommand.request(1), 60)
    )
    await settle()
    clock.advance(remote_channel.CONNECT_TIMEOUT_S + 0.1)
    with pytest.raises(TimeoutError):
        await call


async def test_calls_under_way_are_bounded(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls, "CALLS_MAX", 1)
    channel = RemoteChannel(await server.start(), ManualClock())
    call = asyncio.ensure_future(channel.call(RemotingCommand.request(1), 5))
    request = await server.requests.get()
    with pytest.raises(ConnectionClosedError, match="unanswered"):
        await channel.call(RemotingCommand.request(2), 5)
    server.answer(request.reply(0))
    await call
    await channel.close()
    with pytest.raises(ConnectionClosedError, match="closed"):
        await channel.call(RemotingCommand.request(3), 5)
