"""What all peers together may hold, and who goes when it is too much."""

from __future__ import annotations

from skylarkmq.broker.buffers import InboundBuffers, OutboundBuffers


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


def test_full_is_told_when_it_begins_and_ends() -> None:
    buffers, told = OutboundBuffers(100), list[bool]()
    buffers.listener = lambda: told.append(buffers.is_full)
    first, second = Peer("first", 60), Peer("second", 60)
    buffers.note(first, 60)
    assert told == []
    buffers.note(second, 60)
    assert told == [True]
    buffers.caught_up(first)
    assert told == [True, False]
    assert buffers.size == 60


def test_what_was_taken_silently_is_asked_before_it_is_full() -> None:
    buffers = OutboundBuffers(100)
    first, second = Peer("first", 1), Peer("second", 60)
    buffers.note(first, 60)
    buffers.note(second, 60)
    assert (buffers.is_full, buffers.size) == (False, 61)


def test_beyond_twice_the_limit_who_has_been_behind_the_longest_goes() -> None:
    buffers = OutboundBuffers(100)
    first, second, third = (Peer(name, 90) for name in ("first", "second", "third"))
    buffers.note(first, 90)
    buffers.note(second, 90)
    buffers.note(first, 90)  # it does not become younger by getting more
    assert not first.ended
    buffers.note(third, 90)
    assert [each.ended for each in (first, second, third)] == ["slow_reader", "", ""]
    assert (buffers.size, buffers.is_full) == (180, True)
    second.unsent_size = third.unsent_size = 5
    buffers.recount()
    assert (buffers.size, buffers.is_full) == (10, False)


def test_who_took_enough_meanwhile_is_spared() -> None:
    buffers = OutboundBuffers(100)
    first, second, third = Peer("first", 80), Peer("second", 90), Peer("third", 90)
    for peer in (first, second):
        buffers.note(peer, peer.unsent_size)
    first.unsent_size = 10
    buffers.note(third, 90)
    assert not any(each.ended for each in (first, second, third))
    assert buffers.size == 190
