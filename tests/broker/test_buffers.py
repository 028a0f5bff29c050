"""What all peers together may hold, and who goes when it is too much."""

from __future__ import annotations

from skylarkmq.broker.net.buffers import CALM_SIZE, FLOOD_SIZE, InboundBuffers, OutboundBuffers


class Peer:
    """A connection that knows how it ended."""

    def __init__(self, name: str, unsent: int = 0) -> None:
        self.remote_address = name
        self.unsent_size = unsent
        self.ended = ""

    def abort(self, reason: str) -> None:
        self.ended = reason


def test_the_peer_that_holds_the_most_makes_room() -> None:
    buffers = InboundBuffers(100)
    small, large, last = Peer("small"), Peer("large"), Peer("last")
    buffers.note(small, 30)
    buffers.note(large, 60)
    buffers.note(last, 10)
    assert not large.ended
    buffers.note(last, 11)
    assert [each.ended for each in (small, large, last)] == ["", "limit", ""]
    assert buffers.size == 41
    buffers.note(large, 0)  # it says so when it goes
    buffers.note(small, 0)
    buffers.note(last, 0)
    assert buffers.size == 0


def test_one_peer_alone_can_be_too_much() -> None:
    buffers, peer = InboundBuffers(100), Peer("p")
    buffers.note(peer, 101)
    assert (peer.ended, buffers.size) == ("limit", 0)


def test_beyond_half_of_the_limit_it_is_full() -> None:
    buffers = OutboundBuffers(100)
    first, second = Peer("first", 30), Peer("second", 30)
    buffers.note(first, 30)
    assert not buffers.is_full
    buffers.note(second, 30)
    assert buffers.is_full
    buffers.caught_up(first)
    assert (buffers.is_full, buffers.size) == (False, 30)
    buffers.caught_up(first)
    assert buffers.size == 30


def test_what_was_taken_silently_is_asked_while_it_is_full() -> None:
    buffers = OutboundBuffers(100)
    first, second = Peer("first", 30), Peer("second", 30)
    buffers.note(first, 30)
    buffers.note(second, 30)
    first.unsent_size = 1
    second.unsent_size = 40
    buffers.note(second, 40)
    assert (buffers.is_full, buffers.size) == (False, 41)


def test_beyond_the_limit_who_has_been_behind_the_longest_goes() -> None:
    buffers = OutboundBuffers(100)
    first, second, third = (Peer(name, 45) for name in ("first", "second", "third"))
    buffers.note(first, 45)
    buffers.note(second, 45)
    buffers.note(first, 45)  # it does not become younger by getting more
    assert not first.ended
    buffers.note(third, 45)
    assert [each.ended for each in (first, second, third)] == ["slow_reader", "", ""]
    assert buffers.size == 90


def test_who_takes_something_is_not_the_one_that_goes() -> None:
    buffers = OutboundBuffers(100)
    slow, stalled, fresh = Peer("slow", 45), Peer("stalled", 45), Peer("fresh", 45)
    buffers.note(slow, 45)
    buffers.note(stalled, 45)
    slow.unsent_size = 44
    buffers.note(fresh, 45)
    assert [each.ended for each in (slow, stalled, fresh)] == ["", "slow_reader", ""]
    assert buffers.size == 89


def test_nobody_goes_when_enough_was_taken_meanwhile() -> None:
    buffers = OutboundBuffers(100)
    first, second, third = Peer("first", 40), Peer("second", 45), Peer("third", 45)
    for peer in (first, second):
        buffers.note(peer, peer.unsent_size)
    first.unsent_size = 10
    buffers.note(third, 45)
    assert not any(each.ended for each in (first, second, third))
    assert buffers.size == 100


def test_memory_is_given_back_once_after_a_flood_and_not_within_one() -> None:
    given: list[str] = []
    buffers, peer = InboundBuffers(FLOOD_SIZE * 2, lambda: given.append("back")), Peer("p")

    def hold(*sizes: int) -> None:
        for size in sizes:
            buffers.note(peer, size)
        buffers.look()

    hold(FLOOD_SIZE - 1, 0)
    hold()
    assert not given, "no flood"
    hold(FLOOD_SIZE, 0)
    hold(CALM_SIZE, 0)
    hold(CALM_SIZE, 0)
    assert not given, "it goes on"
    hold(CALM_SIZE - 1, 0)
    assert given == ["back"]
    hold()
    assert given == ["back"]
