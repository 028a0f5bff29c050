"""What the broker tells its clients."""

from typing import Any

from skylarkmq.broker.outbound import Outbound
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.broker.group_rig import FakeConnection


def test_40_is_a_oneway_request_with_the_group() -> None:
    a, b = FakeConnection("a"), FakeConnection("b")
    peers: list[Any] = [a, b]
    Outbound(lambda group: True).notify_consumer_ids_changed(peers, "g")
    for each in (a, b):
        (push,) = each.pushes
        (frame,) = FrameDecoder().feed(encode_command(push))
        command = decode_command(frame)
        assert (command.code, command.is_oneway, command.is_response) == (40, True, False)
        assert command.ext_fields == {"consumerGroup": "g"}
    assert a.pushes[0] is not b.pushes[0], "each connection numbers its own"


def test_a_group_that_does_not_want_to_hear_is_left_alone() -> None:
    peer: Any = FakeConnection()
    Outbound(lambda group: group != "g").notify_consumer_ids_changed([peer], "g")
    assert peer.pushes == []
