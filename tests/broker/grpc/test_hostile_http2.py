"""What a client of the gRPC port costs the others: lines of Python before they are answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skylarkmq.protocol.http2.frames import (
    END_HEADERS,
    END_STREAM,
    SETTING,
    UINT32,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    settings_frame,
)
from tests.broker.grpc.hostile_rig import Echo, Peer, lines_before_answer, opens
from tests.support.fake_transport import Owner

LINES_A_BYTE = 20
"""Honest calls of 27 bytes need 9 to 12 a byte, most of it for the work of the call."""
READ_SIZE = 4096
"""Of a read of 64 KiB, in which the lines of a byte are the same."""
WAITING = 200
"""Answers that wait for a window; 4,096 are allowed."""
BODY = bytes(100)


def times(part: bytes) -> bytes:
    """Fill a read."""
    return part * (READ_SIZE // len(part))


def sizes_repeated() -> bytes:
    """One frame of settings that opens and closes all windows again and again."""
    values = b"".join(
        SETTING.pack(Setting.INITIAL_WINDOW_SIZE, number % 2)
        for number in range(READ_SIZE // SETTING.size)
    )
    return frame(FrameType.SETTINGS, 0, 0, values)


PING = frame(FrameType.PING, 0, 0, bytes(8))
CLOSED = ((Setting.INITIAL_WINDOW_SIZE, 0),)
WALKS = {
    "pings": times(PING),
    "settings": times(settings_frame(())),
    "window sizes in one frame": sizes_repeated(),
    "window sizes in many frames": times(settings_frame(CLOSED)),
    "the connection's window by one byte": times(opens(0, 1)),
    "a call's window by one byte": times(opens(1, 1)),
    "the window of a call that does not wait": times(opens(2 * WAITING + 1, 1)),
}


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.mark.parametrize("data", WALKS.values(), ids=WALKS.keys())
async def test_a_read_costs_the_same_however_many_answers_wait(owner: Owner, data: bytes) -> None:
    hostile, other = Peer(owner, Echo(), *CLOSED), Peer(owner, Echo())
    for _ in range(WAITING):
        hostile.say(hostile.call(BODY))
    hostile.say(hostile.head()[1])
    assert hostile.connection.unsent_size > WAITING * len(BODY)
    assert lines_before_answer(hostile, data, other) < LINES_A_BYTE * len(data)


def calls(peer: Peer) -> bytes:
    """Calls, one behind the other."""
    return until_full(lambda: peer.call())


def resets(peer: Peer) -> bytes:
    """Calls that are taken back at once."""

    def one() -> bytes:
        stream_id, head = peer.head()
        return head + frame(FrameType.RST_STREAM, 0, stream_id, UINT32.pack(ErrorCode.CANCEL))

    return until_full(one)


def pings_between_data(peer: Peer) -> bytes:
    """A body byte by byte, with a ping behind each."""
    stream_id, head = peer.head()
    return head + times(frame(FrameType.DATA, 0, stream_id, bytes(1)) + PING)


def cut_heads(peer: Peer) -> bytes:
    """A head in frames of one byte."""
    stream_id, head = peer.head(flags=0)
    return head + times(frame(FrameType.CONTINUATION, 0, stream_id, b"\x20"))


def table_sizes(peer: Peer) -> bytes:
    """Heads that are mostly changes of the size of their table."""
    stream_id, head = peer.head()
    sizes = b"\x20" * READ_SIZE
    return frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, sizes + head[9:])


def until_full(make: Callable[[], bytes]) -> bytes:
    """Fill a read with what differs each time."""
    made = b""
    while len(made) < READ_SIZE:
        made += make()
    return made


@pytest.mark.parametrize("make", [calls, resets, pings_between_data, cut_heads, table_sizes])
async def test_a_read_costs_no_more_than_honest_frames(
    owner: Owner, make: Callable[[Peer], bytes]
) -> None:
    hostile, other = Peer(owner, Echo()), Peer(owner, Echo())
    data = make(hostile)
    lines = lines_before_answer(hostile, data, other)
    assert lines < LINES_A_BYTE * len(data)
