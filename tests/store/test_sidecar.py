"""Our own framing: every byte is checked, and each refusal names the file."""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack
import pytest

from skylarkmq.common.crc import crc32c
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import HEAD, Kind, decode_sidecar, encode_sidecar

PATH = Path("/store/skylarkmq/profile")
CONTENT = {"mappedFileSizeCommitLog": 1 << 30, "name": "böker", "list": [1, None, True]}
DATA = encode_sidecar(Kind.PROFILE, CONTENT)


def framed(payload: bytes, *, version: int = 1, kind: int = 1, magic: bytes = b"SKMQ") -> bytes:
    data = struct.pack(">4sHHI", magic, version, kind, len(payload)) + payload
    return data + struct.pack(">I", crc32c(data))


def test_what_is_framed_comes_back() -> None:
    assert decode_sidecar(PATH, Kind.PROFILE, DATA) == CONTENT


def test_the_bytes_are_as_documented() -> None:
    payload = msgpack.packb({"a": 1})
    assert encode_sidecar(Kind.PROFILE, {"a": 1}) == framed(payload)
    assert DATA[:8] == b"SKMQ\x00\x01\x00\x01"


@pytest.mark.parametrize("size", range(len(DATA)))
def test_every_cut_is_found(size: int) -> None:
    with pytest.raises(CorruptFileError) as caught:
        decode_sidecar(PATH, Kind.PROFILE, DATA[:size])
    assert caught.value.path == PATH


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_flipped_bit_is_found(position: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 0x10
    with pytest.raises(CorruptFileError, match=str(PATH)):
        decode_sidecar(PATH, Kind.PROFILE, bytes(damaged))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DATA + b"\0", "in a file of"),
        (framed(b"\x80", version=2), "later release"),
        (framed(b"\x80", kind=9), "another kind"),
        (framed(b"\x80", magic=b"SKMX"), "another kind"),
        (framed(msgpack.packb([1, 2])), "not a map"),
    ],
)
def test_each_refusal_says_why(data: bytes, why: str) -> None:
    with pytest.raises(CorruptFileError, match=why):
        decode_sidecar(PATH, Kind.PROFILE, data)


def test_a_payload_that_is_no_msgpack_is_refused_as_well() -> None:
    for payload in (b"", b"\xc1", b"\x81\xa1", b"\x80\x80"):
        with pytest.raises(CorruptFileError) as caught:
            decode_sidecar(PATH, Kind.PROFILE, framed(payload))
        assert caught.value.position == HEAD.size
