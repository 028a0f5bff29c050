"""Flow control of one connection: who does not read, asks too much, or does not finish."""

from __future__ import annotations

import pytest

from skylarkmq.broker.connection import (
    OUTBOUND_MAX,
    PARKED_MAX,
    PAUSE_SIZE,
    UNFINISHED_MAX,
    Connection,
)
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.frame import RawFrame
from tests.support.fake_transport import Owner, connect
from tests.support.manual_clock import settle

REQUEST = encode_command(RemotingCommand.request(30, {"topic": "T"}, opaque=7))


@pytest.fixture
def owner() -> Owner:
    return Owner()


async def test_a_peer_that_does_not_read_is_not_read_until_it_has(owner: Owner) -> None:
    made, transport = connect(owner)
    transport.keeps = True
    made.send(bytes(PAUSE_SIZE))
    await settle(1)
    assert transport.reading
    owner.clock.advance(3)
    made.send(b"x")
    await settle(1)
    assert not transport.reading
    assert made.paused_since_s == owner.clock.monotonic()
    assert made.unsent_size == PAUSE_SIZE + 1
    transport.take_all()
    assert transport.reading
    assert made.paused_since_s == 0


async def test_beyond_the_cap_the_peer_is_dropped(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    made, transport = connect(owner)
    transport.keeps = True
    for _ in range(16):
        made.send(bytes(1 << 20))
        await settle(1)
    assert transport.ended == ""
    made.send(b"x")
    await settle(1)
    assert (transport.ended, made.close_reason) == ("abort", "slow_reader")
    assert "192.0.2.9:4711: it reads too slowly" in caplog.text


def test_what_gathers_within_one_turn_is_capped_too(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    made, transport = connect(owner)
    made._in_read = True
    for _ in range(40):
        made.send(bytes(1 << 20))
    assert (transport.ended, made.close_reason) == ("abort", "slow_reader")
    assert sum(map(len, made._out)) <= OUTBOUND_MAX + (1 << 20)
    assert caplog.text.count("reads too slowly") == 1


async def test_one_answer_may_be_larger_than_the_cap(owner: Owner) -> None:
    made, transport = connect(owner)
    made.send(bytes(OUTBOUND_MAX + 1))
    await settle(1)
    assert (len(transport.writes), transport.ended) == (1, "")


async def test_requests_that_were_read_wait_for_the_peer_to_read(owner: Owner) -> None:
    def big_answers(connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        remaining = list(frames)
        while remaining and not connection.congested:
            remaining.pop(0)
            connection.send(bytes(600_000))
        return remaining

    owner.on_frames = big_answers
    made, transport = connect(owner)
    transport.keeps = True
    made.data_received(REQUEST * 5)
    assert (len(owner.handled), transport.reading) == (1, False)
    made.data_received(REQUEST)  # it was on its way
    await settle()
    assert len(owner.handled) == 1
    transport.take_all()
    await settle()
    assert [len(frames) for frames in owner.handled] == [5, 4]
    transport.take_all()
    await settle()
    transport.take_all()
    await settle()
    assert sum(map(len, transport.writes)) == 6 * 600_000
    assert transport.reading


def test_many_unanswered_requests_stop_the_reading(owner: Owner) -> None:
    def park(connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        connection.park(len(frames))
        return []

    owner.on_frames = park
    made, transport = connect(owner)
    made.data_received(REQUEST * PARKED_MAX)
    assert transport.reading
    made.data_received(REQUEST)
    assert not transport.reading
    made.park(-1)
    assert transport.reading
    assert made.parked == PARKED_MAX


async def test_reading_waits_for_the_last_of_two_reasons(owner: Owner) -> None:
    made, transport = connect(owner)
    transport.keeps = True
    made.park(PARKED_MAX + 1)
    made.send(bytes(PAUSE_SIZE + 1))
    await settle(1)
    assert not transport.reading
    transport.take_all()
    assert not transport.reading
    made.park(-1)
    assert transport.reading
    made.stop_reading()
    made.park(-PARKED_MAX)
    assert not transport.reading, "a broker that stops takes no more"


def test_unfinished_frames_of_all_peers_have_one_limit(owner: Owner) -> None:
    owner.unfinished_size = UNFINISHED_MAX - 5
    made, transport = connect(owner)
    made.data_received(REQUEST[:5])
    assert transport.ended == ""
    made.data_received(REQUEST[5:6])
    assert (transport.ended, made.close_reason) == ("abort", "limit")
    made.connection_lost(None)
    assert owner.unfinished_size == UNFINISHED_MAX - 5
