"""Calls that begin in the read that brings them, and are answered in its turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h2.connection
import h2.events
import pytest

from skylarkmq.broker.base.waiting import Outcome
from skylarkmq.broker.grpc.connection import GrpcConnection, GrpcStream
from skylarkmq.protocol.http2.grpc import framed
from tests.support.fake_transport import Owner, Transport

HEAD = (
    (":method", "POST"),
    (":path", "/test/One"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
)


class Waits:
    """A method that waits for what the test tells it."""

    takes_many = False
    needs_task = False
    size_max = 1 << 20

    def __init__(self) -> None:
        self.outcomes: list[Outcome[bytes]] = []
        self.ended: list[str] = []
        self.planned = 0
        self.yields = 0

    async def serve(self, stream: GrpcStream) -> None:
        try:
            for _ in range(self.yields):
                await asyncio.sleep(0)
            outcome: Outcome[bytes] = Outcome()
            self.outcomes.append(outcome)
            if self.planned:
                asyncio.get_running_loop().call_soon(outcome.tell, b"soon")
            stream.answer(await outcome)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")


class Peer:
    """A client over a transport that the test holds."""

    def __init__(self) -> None:
        self.method, self.owner, self.transport = Waits(), Owner(), Transport()
        made = GrpcConnection({"/test/One": self.method}, cast(Any, self.owner))
        self.connection = made
        self.transport.protocol = cast(Any, made)
        made.connection_made(cast(asyncio.BaseTransport, self.transport))
        self.client = h2.connection.H2Connection()
        self.client.initiate_connection()
        self._send()
        self.transport.writes.clear()

    def _send(self) -> None:
        self.connection.data_received(self.client.data_to_send())

    def ask(self, *numbers: int, and_reset: bool = False) -> None:
        """Send calls in one read."""
        for number in numbers:
            self.client.send_headers(number, HEAD)
            self.client.send_data(number, framed(b"request"), end_stream=True)
            if and_reset:
                self.client.reset_stream(number)
        self._send()

    def reset(self, number: int) -> None:
        self.client.reset_stream(number)
        self._send()

    def end(self) -> str:
        """How the connection has ended."""
        return self.transport.ended

    def ended(self) -> list[int]:
        """The calls whose ends have come since."""
        written = b"".join(self.transport.writes)
        self.transport.writes.clear()
        return [
            event.stream_id
            for event in self.client.receive_data(written)
            if isinstance(event, h2.events.StreamEnded)
        ]


@pytest.fixture
async def peer() -> Peer:
    return Peer()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_told_at_the_end_of_the_turn_is_answered_in_one_write_then(
    peer: Peer,
) -> None:
    peer.method.planned = 1
    peer.ask(1, 3)
    assert not peer.transport.writes
    await turns(1)
    assert len(peer.transport.writes) == 1
    assert peer.ended() == [1, 3]
    assert peer.method.ended == ["answered"] * 2


async def test_what_is_told_later_is_answered_in_the_next_turn(peer: Peer) -> None:
    peer.ask(1, 3)
    await turns(3)
    for outcome in peer.method.outcomes:
        outcome.tell(b"late")
    assert peer.method.ended == ["answered"] * 2
    await turns(1)
    assert len(peer.transport.writes) == 1
    assert peer.ended() == [1, 3]


@pytest.mark.parametrize("and_reset", [False, True])
@pytest.mark.parametrize("yields", [0, 1])
async def test_a_call_that_is_given_up_is_cancelled(
    peer: Peer, and_reset: bool, yields: int
) -> None:
    peer.method.yields = yields
    peer.ask(1, and_reset=and_reset)
    if not and_reset:
        await turns(2 * yields)
        assert len(peer.method.outcomes) == 1
        peer.reset(1)
    await turns(2)
    assert peer.method.ended == ["cancelled"]
    for outcome in peer.method.outcomes:
        assert outcome.cancelled()
        outcome.tell(b"too late")
    await turns(2)
    assert peer.method.ended == ["cancelled"]
    assert not peer.ended()


async def test_a_client_that_has_gone_ends_its_calls(peer: Peer) -> None:
    peer.ask(1, 3)
    peer.connection.connection_lost(None)
    assert peer.owner.gone
    await turns(1)
    assert peer.method.ended == ["cancelled"] * 2


async def test_a_close_tells_calls_that_wait_and_waits_for_their_end(peer: Peer) -> None:
    peer.ask(1, 3)
    peer.connection.close("test")
    assert peer.end() == ""
    await turns(2)
    assert peer.method.ended == ["cancelled"] * 2
    assert peer.end() == "close"
    assert b"".join(peer.transport.writes).count(b"grpc-status\x0214") == 2, "UNAVAILABLE"


async def test_a_connection_that_is_closed_by_the_work_itself_ends_it(peer: Peer) -> None:
    async def serve(stream: GrpcStream) -> None:
        stream.peer.close("test")
        await Waits.serve(peer.method, stream)

    cast(Any, peer.method).serve = serve
    peer.ask(1)
    await turns(2)
    assert peer.method.ended == ["cancelled"]
    assert peer.end() == "close"


async def test_an_outcome_is_a_future_to_a_task() -> None:
    outcome: Outcome[int] = Outcome()
    waiting = asyncio.ensure_future(outcome)
    outcome.tell(7)
    outcome.tell(8)
    assert await waiting == 7
