"""Frames are cut from a read at the same places on both roads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol.frame import RawFrame, cut_frames, encode_frame
from tests.support.amounts import examples

pytestmark = pytest.mark.skipif(kernel.compiled is None, reason=kernel.why_pure)

FRAMES = st.builds(
    encode_frame, st.integers(0, 255), st.binary(max_size=20), st.binary(max_size=40)
)
LENGTH_MAX = 50


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """Frames that follow each other, often with a byte that is wrong, and often cut short."""
    data = bytearray(b"".join(draw(st.lists(FRAMES, max_size=4))))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    end = draw(st.integers(0, len(data)) | st.just(len(data)))
    return bytes(data[:end])


@examples(80, 1000)
@given(reads())
def test_a_read(data: bytes) -> None:
    made = cut_frames(data, LENGTH_MAX, RawFrame)
    assert made == kernel.twins["cut_frames"](data, LENGTH_MAX, RawFrame)
    assert {type(frame) for frame in made[0]} <= {RawFrame}


def test_a_frame_is_a_tuple() -> None:
    with pytest.raises(TypeError):
        cut_frames(b"", 1, dict)  # type: ignore[arg-type]
