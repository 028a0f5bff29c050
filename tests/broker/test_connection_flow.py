"""Flow control of one connection: who does not read, asks too much, or does not finish."""

from __future__ import annotations

import pytest

from skylarkmq.broker.net.connection import PARKED_MAX, Connection
from skylarkmq.broker.net.peer_connection import OUTBOUND_MAX, PAUSE_SIZE, PROGRESS_SIZE
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
    behind_since_s = owner.clock.monotonic()
    owner.clock.advance(3)
    made.send(b"x")
    await settle(1)
    assert not transport.reading
    assert made.paused_since_s == behind_since_s
    assert made.unsent_size == owner.outbound.size == PAUSE_SIZE + 1
    transport.take_all()
    assert transport.reading
    assert (made.paused_since_s, owner.outbound.size) == (0, 0)


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


async def test_what_was_read_beyond_the_cap_waits_its_turn(owner: Owner) -> None:
    def park(connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        remaining = list(frames)
        while remaining and not connection.congested:
            remaining.pop(0)
            connection.park(1)
        return remaining

    owner.on_frames = park
    made, transport = connect(owner)
    made.data_received(REQUEST * 5000)
    held = owner.inbound.size
    assert (made.parked, transport.reading) == (PARKED_MAX + 1, False)
    assert held > 3900 * len(REQUEST) * 0.9, "what waits is counted"
    await settle()
    assert made.parked == PARKED_MAX + 1
    made.park(-100)
    await settle()
    assert made.parked == PARKED_MAX + 1
    assert owner.inbound.size < held
    while made.parked:
        made.park(-made.parked)
        await settle()
    assert sum(len(frames) for frames in owner.handled) > 5000
    assert (owner.inbound.size, transport.reading) == (0, True)


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
    owner.inbound.limit = 100
    (small, small_transport), (large, large_transport) = connect(owner), connect(owner)
    large.data_received(b"\0\0\1\0" + bytes(76))
    small.data_received(b"\0\0\1\0" + bytes(16))
    assert owner.inbound.size == 100
    small.data_received(b"x")
    assert (small_transport.ended, large_transport.ended) == ("", "abort"), "the largest one"
    assert large.close_reason == "limit"
    assert owner.inbound.size == 21
    large.connection_lost(None)
    small.connection_lost(None)
    assert owner.inbound.size == 0


async def test_while_peers_leave_too_much_unread_a_slow_one_is_not_read(owner: Owner) -> None:
    owner.outbound.limit = 2 << 20
    (stalled, stalled_transport), (slow, slow_transport) = connect(owner), connect(owner)
    stalled_transport.keeps = slow_transport.keeps = True
    stalled.send(bytes(PAUSE_SIZE + 1))
    await settle(1)
    slow.send(bytes(100_000))
    await settle(1)
    assert not slow_transport.reading, "100 KB would be nothing alone"
    slow_transport.take(40_000)
    assert slow_transport.reading
    stalled.connection_lost(None)
    assert not owner.outbound.is_full


async def test_a_slow_reader_lives_as_long_as_it_reads(owner: Owner) -> None:
    made, transport = connect(owner)
    transport.keeps = True
    made.send(bytes(4 << 20))
    await settle(1)
    for _ in range(10):
        since_s = made.paused_since_s
        owner.clock.advance(50)
        transport.take(PROGRESS_SIZE // 2)
        made.note_progress()
        assert made.paused_since_s == since_s, "too little"
        transport.take(PROGRESS_SIZE // 2)
        made.note_progress()
        assert made.paused_since_s == owner.clock.monotonic()
    made.send(bytes(1000))
    await settle(1)
    since_s = made.paused_since_s
    owner.clock.advance(50)
    transport.take(PROGRESS_SIZE)
    made.note_progress()
    assert made.paused_since_s > since_s, "what we write does not hide what it reads"
