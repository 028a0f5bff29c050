"""A connection whose peer reads nothing or says nothing: bounded memory, and an end to the wait."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client.errors import ConnectionFailed, RequestTimeout, RocketMQError
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import SILENCE_MAX_S, UNSENT_MAX
from skylarkmq.remoting.send_answer import StoredAnswer
from tests.remoting.test_connection import TIMEOUT_S, Peered
from tests.support.manual_clock import settle

MIB = 1024 * 1024


class Ears:
    """A waiter that keeps what it hears."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.errors: list[RocketMQError] = []

    def answered(self, answer: RemotingCommand) -> None:
        raise AssertionError("nobody answers")

    def stored(self, answer: StoredAnswer) -> None:
        raise AssertionError("nobody answers")

    def failed(self, error: RocketMQError) -> None:
        self.errors.append(error)


# A peer that reads too slowly


async def test_calls_wait_for_a_slow_reader_and_then_go() -> None:
    it = Peered()
    it.connection.pause_writing()
    call = it.call()
    await settle()
    assert it.stream.writes == []
    it.connection.resume_writing()
    await settle()
    it.stream.say(it.peer.requests[0].reply(0))
    assert (await call).code == 0


async def test_calls_do_not_wait_for_ever() -> None:
    it = Peered()
    it.connection.pause_writing()
    call = it.call()
    await settle()
    it.clock.advance(TIMEOUT_S)
    with pytest.raises(RequestTimeout, match="reads too slowly, nothing sent"):
        await call
    assert it.stream.writes == []
    assert it.connection.pending_count == 0
    assert it.clock.pending_count == 0


async def test_a_cancelled_wait_leaves_nothing() -> None:
    it = Peered()
    it.connection.pause_writing()
    call = it.call()
    await settle()
    call.cancel()
    await settle()
    assert call.cancelled()
    it.connection.resume_writing()
    await settle()
    assert it.stream.writes == []
    assert it.clock.pending_count == 0


async def test_a_call_that_waits_ends_with_the_connection() -> None:
    it = Peered()
    it.connection.pause_writing()
    call = it.call()
    await settle()
    it.stream.lose(ConnectionResetError("reset"))
    with pytest.raises(ConnectionFailed, match="reset"):
        await call


async def test_what_cannot_wait_fails_once_the_buffer_is_full() -> None:
    it = Peered()
    it.connection.pause_writing()
    ears = Ears(it.clock.monotonic() + 60)
    head = b"\x00" * MIB
    it.stream.write = lambda data: sizes.append(len(data))  # type: ignore[method-assign]
    sizes: list[int] = []
    for opaque in range(2 * UNSENT_MAX // MIB):
        it.connection.submit(opaque, head, b"", ears)
        await settle(1)
    assert UNSENT_MAX < sum(sizes) <= UNSENT_MAX + 2 * MIB
    assert {type(error) for error in ears.errors} == {ConnectionFailed}
    assert "reads too slowly, 65 MiB wait to be sent" in str(ears.errors[0])
    assert not any(getattr(error, "reached", True) for error in ears.errors), "nothing was sent"
    with pytest.raises(ConnectionFailed, match="reads too slowly"):
        it.connection.post(RemotingCommand.request(15, oneway=True))
    it.connection.resume_writing()
    it.connection.submit(999_999, head, b"", ears)
    await settle(1)
    assert sizes[-1] == MIB, "it goes on when the peer has caught up"
    it.connection.pause_writing()
    it.connection.submit(1_000_000, head, b"", ears)
    it.connection.post(RemotingCommand.request(15, oneway=True))
    await settle(1)
    assert sizes[-1] > MIB, "what waited before has left, and counts no more"


async def test_a_peer_that_floods_and_does_not_read_is_given_up() -> None:
    it = Peered()
    it.connection.pause_writing()
    it.stream.write = lambda data: None  # type: ignore[method-assign]
    push = RemotingCommand.request(326)
    count = 0
    while not it.connection.closed:
        count += 1
        it.connection.reply(push.reply(0, body=b"\x00" * MIB))
        await settle(1)
    assert count <= UNSENT_MAX // MIB + 2
    assert "reads no answers" in it.connection.closed_why


# A peer that says nothing


async def time_out(it: Peered) -> None:
    call = it.call()
    await settle()
    it.clock.advance(TIMEOUT_S)
    await settle()
    assert isinstance(call.exception(), RequestTimeout)


async def test_two_rounds_of_silence_end_a_half_open_connection() -> None:
    it = Peered()
    pull = asyncio.create_task(it.connection.call(RemotingCommand.request(11), 60.0))
    await settle()
    await time_out(it)
    assert not it.connection.closed, "one slow answer is no proof"
    await time_out(it)
    assert it.connection.closed
    assert it.closed == [it.connection]
    with pytest.raises(ConnectionFailed, match="no word from the peer for 3 s") as caught:
        await pull
    assert caught.value.reached, "its outcome is unknown"
    assert it.clock.pending_count == 0
    await settle()
    assert not it.stream.open


async def test_any_word_shows_that_the_peer_is_there() -> None:
    it = Peered()
    for _ in range(4):
        await time_out(it)
        it.stream.say(it.peer.requests[-1].reply(0))  # late, but heard
        await settle()
    it.stream.say(RemotingCommand.request(40, oneway=True))
    await settle()
    await time_out(it)
    assert not it.connection.closed


async def test_short_deadlines_are_no_proof_either() -> None:
    it = Peered()
    start_s = it.clock.monotonic()
    for _ in range(20):
        call = asyncio.create_task(it.connection.call(RemotingCommand.request(34), 0.1))
        await settle()
        it.clock.advance(0.1)
        await settle()
        assert isinstance(call.exception(), RequestTimeout)
    assert it.clock.monotonic() - start_s < SILENCE_MAX_S
    assert not it.connection.closed
