"""What the broker tells its clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.broker.groups import client_calls
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.remoting.errors import ConnectionFailed
from tests.broker.calls_rig import Client
from tests.broker.group_rig import FakeConnection
from tests.support.manual_clock import ManualClock, settle


def test_40_is_a_oneway_request_with_the_group() -> None:
    a, b = FakeConnection("a"), FakeConnection("b")
    peers: list[Any] = [a, b]
    ClientCalls(lambda group: True).notify_consumer_ids_changed(peers, "g")
    for each in (a, b):
        (push,) = each.pushes
        (frame,) = FrameDecoder().feed(encode_command(push))
        command = decode_command(frame)
        assert (command.code, command.is_oneway, command.is_response) == (40, True, False)
        assert command.ext_fields == {"consumerGroup": "g"}
    assert a.pushes[0] is not b.pushes[0], "each connection numbers its own"


def test_a_group_that_does_not_want_to_hear_is_left_alone() -> None:
    peer: Any = FakeConnection()
    ClientCalls(lambda group: group != "g").notify_consumer_ids_changed([peer], "g")
    assert peer.pushes == []


async def test_what_came_of_requests_to_clients_is_counted() -> None:
    clock = ManualClock()
    calls = ClientCalls(lambda group: True)
    client: Any = Client(clock)

    async def asked(body: bytes = b"12345") -> asyncio.Task[RemotingCommand]:
        call = calls.call(client, RemotingCommand.request(307, {}, body), 3)
        task = asyncio.ensure_future(call)
        await settle(3)
        return task

    first = await asked()
    assert (calls.waiting_count, calls.waiting_size) == (1, 5)
    client.answer(0)
    assert (await first).code == 0
    assert (calls.waiting_count, calls.waiting_size) == (0, 0)
    second = await asked()
    client.answer(1)
    assert (await second).code == 1
    third = await asked()
    clock.advance(3)
    with pytest.raises(TimeoutError):
        await third
    fourth = await asked()
    client.close()
    with pytest.raises(ConnectionFailed):
        await fourth
    counts = {"ok": 1, "error": 1, "timeout": 1, "gone": 1, "refused": 0}
    assert calls.outcomes == counts
    assert (calls.waiting_count, calls.waiting_size) == (0, 0)


async def test_bodies_that_wait_for_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_calls, "CALLS_SIZE_MAX", 100)
    monkeypatch.setattr(client_calls, "CALLS_MAX", 3)
    calls = ClientCalls(lambda group: True)
    client: Any = Client(ManualClock())

    async def ask(size: int) -> RemotingCommand:
        return await calls.call(client, RemotingCommand.request(307, {}, bytes(size)), 3)

    asked = [asyncio.ensure_future(ask(500))]  # one that is too large goes when it is alone
    await settle(3)
    with pytest.raises(RemoteProtocolError, match="500 bytes wait") as caught:
        await ask(1)
    assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    client.answer(0)
    await settle(3)
    asked += [asyncio.ensure_future(ask(50)) for _ in range(2)]
    await settle(3)
    with pytest.raises(RemoteProtocolError):
        await ask(1)
    asked.append(asyncio.ensure_future(ask(0)))
    await settle(3)
    with pytest.raises(RemoteProtocolError, match="3 requests"):
        await ask(0)
    for _ in range(3):
        client.answer(0)
    assert [(await call).code for call in asked] == [0, 0, 0, 0]
    assert calls.outcomes["refused"] == 3
