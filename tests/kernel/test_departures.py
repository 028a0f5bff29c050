"""The front of a send's frame: the kernel writes what Python writes, and what the encoders mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.client.wire import send_head
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.message import MessageQueue

HEADS = {
    SerializeType.JSON: ("json_send_head", send_head.json_parts),
    SerializeType.MSGPACK: ("msgpack_send_head", send_head.msgpack_parts),
}
QUEUE = MessageQueue("T", "broker-a", 3)
int32 = st.sampled_from([0, 1, 2**31 - 1, -1, -(2**31)]) | st.integers(-(2**31), 2**31 - 1)
int64 = st.sampled_from([0, 2**31, 2**32, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=40)


def heads(kind: SerializeType, parts: tuple[bytes, ...], *rest: Any) -> bytes:
    """What both roads write, which is the same."""
    name, _ = HEADS[kind]
    here = getattr(send_head, name)(parts, *rest)
    assert kernel.twins[name](parts, *rest) == here
    return bytes(here)


@given(
    kind=st.sampled_from(list(HEADS)), group=text, topic=text, broker=text, queue_id=int32,
    opaque=st.integers(0, 2**31 - 1), sys_flag=int32, born=int64, flag=int32, properties=text,
    body=st.binary(max_size=50),
)  # fmt: skip
@example(
    SerializeType.JSON, "%d%s", "%", "%%", 0, 2**31 - 1, 0, 0, 0,
    "".join(map(chr, range(0x100))) + "\u2028\U0001f600/", b"",
)  # fmt: skip
def test_heads_mean_what_the_typed_header_means(
    kind: SerializeType, group: str, topic: str, broker: str, queue_id: int, opaque: int,
    sys_flag: int, born: int, flag: int, properties: str, body: bytes,
) -> None:  # fmt: skip
    queue = MessageQueue(topic, broker, queue_id)
    parts = HEADS[kind][1](group, queue, 4)
    head = heads(kind, parts, opaque, sys_flag, born, flag, properties, len(body))
    (frame,) = FrameDecoder().feed(head + body)
    request = SendRequest(topic, body, properties, "ID", born, flag=flag, sys_flag=sys_flag)
    expected = SendTemplate(group, queue, 4).command(request)
    expected.opaque, expected.serialize_type = opaque, kind
    (expected_frame,) = FrameDecoder().feed(encode_command(expected))
    assert decode_command(frame) == decode_command(expected_frame)


@pytest.mark.parametrize("kind", list(HEADS))
@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 32_767, 70_000])
def test_properties_of_any_size_fit(kind: SerializeType, size: int) -> None:
    parts = HEADS[kind][1]("g", QUEUE, 4)
    for character in ("x", "\x01", "\u20ac"):
        head = heads(kind, parts, 7, 1, 2, 3, character * size, 0)
        (frame,) = FrameDecoder().feed(head)
        assert decode_command(frame).ext_fields["i"] == character * size


@pytest.mark.parametrize("kind", list(HEADS))
def test_what_is_no_utf8_is_refused(kind: SerializeType) -> None:
    name, make_parts = HEADS[kind]
    for road in (getattr(send_head, name), kernel.twins[name]):
        with pytest.raises(UnicodeEncodeError):
            road(make_parts("g", QUEUE, 4), 1, 0, 0, 0, "\ud800", 0)
