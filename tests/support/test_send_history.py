"""The history checker catches what a broker may do wrong, and nothing else."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt
from tests.support.send_history import Attempt, Outcome, SendHistory

QUEUE = ("T", 0)
HOST = HostAddress("127.0.0.1", 1)


def stored(attempt: Attempt, offset: int, body: bytes | None = None) -> MessageExt:
    """The message as it would be read."""
    return MessageExt(
        topic="T", queue_id=0, flag=0, queue_offset=offset, physical_offset=0, sys_flag=0,
        born_timestamp=0, born_host=HOST, store_timestamp=0, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0, body=attempt.body if body is None else body,
        properties={"N": str(attempt.number)}, body_crc=0, store_size=0,
    )  # fmt: skip


def three_sends(history: SendHistory, connection: int = 1) -> list[Attempt]:
    return [history.sent(connection, QUEUE, 100 + number) for number in range(3)]


def test_acknowledged_and_unknown_ones_are_fine() -> None:
    history = SendHistory()
    first, second, third = three_sends(history)
    history.acked(first, 0)
    history.acked(third, 1)
    history.read(QUEUE, [stored(first, 0)])
    history.read(QUEUE, [stored(third, 1)])
    history.check()
    assert second.outcome is Outcome.UNKNOWN


def test_a_lost_one_is_caught() -> None:
    history = SendHistory()
    first, _, third = three_sends(history)
    history.acked(first, 0)
    history.acked(third, 1)
    history.read(QUEUE, [stored(first, 0)])
    with pytest.raises(AssertionError, match="I1"):
        history.check()


def test_one_that_stands_elsewhere_is_caught() -> None:
    history = SendHistory()
    first, second, _ = three_sends(history)
    history.acked(second, 0)
    history.read(QUEUE, [stored(first, 0), stored(second, 1)])
    with pytest.raises(AssertionError, match="I1"):
        history.check()


@pytest.mark.parametrize(
    ("numbers", "offsets", "invariant"),
    [([0, 0], [0, 1], "I3"), ([0, 1], [0, 2], "I2"), ([7], [0], "I3")],
)
def test_duplicates_holes_and_strangers_are_caught(
    numbers: list[int], offsets: list[int], invariant: str
) -> None:
    history = SendHistory()
    three_sends(history)
    stranger = Attempt(7, 1, QUEUE, 1, 0)
    attempts = [history.attempts[n] if n < 3 else stranger for n in numbers]
    pairs = zip(attempts, offsets, strict=True)
    with pytest.raises(AssertionError, match=invariant):
        history.read(QUEUE, [stored(attempt, offset) for attempt, offset in pairs])


def test_damage_and_refused_ones_are_caught() -> None:
    history = SendHistory()
    first, second, _ = three_sends(history)
    with pytest.raises(AssertionError, match="I1"):
        history.read(QUEUE, [stored(first, 0, b"damaged")])
    history.refused(second)
    with pytest.raises(AssertionError, match="I3"):
        SendHistory.read(history, ("T", 1), [stored(second, 0)])


def test_swapped_sends_of_one_connection_are_caught() -> None:
    history = SendHistory()
    first, second, _ = three_sends(history)
    history.read(QUEUE, [stored(second, 0), stored(first, 1)])
    with pytest.raises(AssertionError, match="I4"):
        history.check()


def test_a_send_before_one_that_was_answered_earlier_is_caught() -> None:
    history = SendHistory()
    first = history.sent(1, QUEUE, 1)
    history.acked(first, 1)
    later = history.sent(2, QUEUE, 1)
    history.read(QUEUE, [stored(later, 0), stored(first, 1)])
    with pytest.raises(AssertionError, match="I4"):
        history.check()
