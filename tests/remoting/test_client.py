"""RemotingClient: one connection an address, shared attempts, back-off after failures."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest

from skylarkmq.client.errors import ConnectionFailed, IllegalState
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import CONNECT_TIMEOUT_S, LIVED_S, RECONNECT_MAX_S, RemotingClient
from skylarkmq.remoting.stream import Stream, split_address
from tests.support.manual_clock import ManualClock, settle
from tests.support.scripted_stream import EOF, ScriptedNetwork

ADDRESS = "broker:10911"


class HangingNetwork:
    """Connects to nobody, for ever."""

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        await asyncio.Event().wait()
        raise AssertionError


def remoting_over(network: ScriptedNetwork | HangingNetwork, clock: ManualClock) -> RemotingClient:
    return RemotingClient(network, clock, Random(7), "json", lambda *_: None)


async def test_callers_share_one_connection() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    peer = network.listen(ADDRESS)
    peer.on(34, lambda request: request.reply(0))
    remoting = remoting_over(network, clock)
    calls = [remoting.call(ADDRESS, RemotingCommand.request(34), 3.0) for _ in range(20)]
    answers = await asyncio.gather(*calls)
    assert [answer.code for answer in answers] == [0] * 20
    assert peer.connect_count == 1
    await remoting.stop()


async def test_one_of_several_waiting_for_the_connection_may_be_cancelled() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    network.listen(ADDRESS)
    remoting = remoting_over(network, clock)
    impatient, patient = (asyncio.create_task(remoting.connection(ADDRESS)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).address == ADDRESS
    assert impatient.cancelled()


async def test_a_connection_attempt_has_a_deadline() -> None:
    clock = ManualClock()
    remoting = remoting_over(HangingNetwork(), clock)
    attempt = asyncio.create_task(remoting.connection(ADDRESS))
    await settle()
    clock.advance(CONNECT_TIMEOUT_S)
    with pytest.raises(ConnectionFailed, match="no connection within 3 s"):
        await attempt


async def test_failures_are_followed_by_a_growing_jittered_capped_pause() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    remoting = remoting_over(network, clock)
    pauses_s: list[float] = []
    for _ in range(12):
        with pytest.raises(ConnectionFailed, match="nobody listens"):
            await remoting.connection(ADDRESS)
        failed_s = clock.monotonic()
        peer = network.listen("probe")  # counts nothing; only ADDRESS is asked for below
        assert peer.connect_count == 0
        while True:
            with pytest.raises(ConnectionFailed) as caught:
                await remoting.connection(ADDRESS)
            if "next attempt" not in str(caught.value):
                break
            clock.advance(0.05)
        pauses_s.append(clock.monotonic() - failed_s)
    assert pauses_s[0] <= 0.2
    assert max(pauses_s) <= RECONNECT_MAX_S + 0.1
    assert pauses_s[-1] >= RECONNECT_MAX_S / 2
    assert len({round(pause_s, 3) for pause_s in pauses_s[-5:]}) > 1, "jitter"


async def test_a_lost_connection_is_made_again_at_once_when_it_had_worked() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    peer = network.listen(ADDRESS)
    peer.on(34, lambda request: request.reply(0))
    remoting = remoting_over(network, clock)
    for round_count in range(1, 4):
        await remoting.call(ADDRESS, RemotingCommand.request(34), 3.0)
        assert peer.connect_count == round_count
        clock.advance(LIVED_S)
        peer.lose_all()
        await settle()
        assert remoting.ready(ADDRESS) is None


async def test_a_peer_that_answers_once_and_closes_is_left_alone_for_longer_and_longer() -> None:
    """It was dialled ten times a second for ever: its one answer forgot all failures."""
    network, clock = ScriptedNetwork(), ManualClock()
    peer = network.listen(ADDRESS)
    peer.on(34, lambda request: request.reply(0))
    remoting = remoting_over(network, clock)
    for _ in range(600):
        with contextlib.suppress(ConnectionFailed):
            await remoting.call(ADDRESS, RemotingCommand.request(34), 3.0)
            peer.lose_all()
            await settle()
        clock.advance(0.1)
    assert peer.connect_count < 60
    clock.advance(RECONNECT_MAX_S)
    await remoting.connection(ADDRESS)
    clock.advance(LIVED_S)
    await remoting.call(ADDRESS, RemotingCommand.request(34), 3.0)
    peer.lose_all()
    await settle()
    await remoting.connection(ADDRESS)  # at once: the one before had lived


async def test_a_peer_that_closes_without_a_word_is_left_alone_for_a_while() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    peer = network.listen(ADDRESS)
    peer.script = [EOF]
    remoting = remoting_over(network, clock)
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        await remoting.call(ADDRESS, RemotingCommand.request(34), 3.0)
    with pytest.raises(ConnectionFailed, match="next attempt"):
        await remoting.connection(ADDRESS)
    assert peer.connect_count == 1


async def test_stop_closes_everything_and_ends_attempts() -> None:
    network, clock = ScriptedNetwork(), ManualClock()
    peer = network.listen(ADDRESS)
    remoting = remoting_over(network, clock)
    await remoting.connection(ADDRESS)
    await remoting.stop()
    assert peer.streams == []
    with pytest.raises(IllegalState):
        await remoting.connection(ADDRESS)

    hanging = remoting_over(HangingNetwork(), clock)
    attempt = asyncio.create_task(hanging.connection(ADDRESS))
    await settle()
    await hanging.stop()
    with pytest.raises(IllegalState):
        await attempt


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:9876", ("localhost", 9876)),
        ("::1:9876", ("::1", 9876)),
        ("[fe80::1]:1", ("fe80::1", 1)),
    ],
)
def test_addresses_are_parted_at_the_last_colon(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:\u0661"]
)
def test_what_is_no_address_cannot_be_dialled(address: str) -> None:
    with pytest.raises(OSError, match="host:port"):
        split_address(address)
