"""Fields as the library hpack packs them, and blocks that cannot be read."""

import random

import hpack
import pytest

from skylarkmq.protocol.http2.frames import header_block
from skylarkmq.protocol.http2.hpack import (
    ENTRY_SIZE,
    STATIC,
    TABLE_SIZE,
    HpackDecoder,
    HpackError,
    TooLargeError,
)

NAMES = [name for name, _ in STATIC] + [b"x-mq-client-id", b"x", b"x-" * 100]


def a_field(rng: random.Random) -> tuple[bytes, bytes]:
    value = rng.choice((b"", b"200", rng.randbytes(rng.randrange(200)), b"same", b"20261126T1800Z"))
    return rng.choice(NAMES), value


@pytest.mark.parametrize("seed", range(40))
def test_what_the_library_packs_is_read(seed: int) -> None:
    rng = random.Random(seed)
    encoder, decoder = hpack.Encoder(), HpackDecoder(1 << 20)
    for _ in range(100):
        if rng.random() < 0.05:
            encoder.header_table_size = rng.randrange(TABLE_SIZE + 1)
        fields = [a_field(rng) for _ in range(rng.randrange(20))]
        sensitive = [(*field, rng.random() < 0.2) for field in fields]
        block = encoder.encode(sensitive, huffman=rng.random() < 0.5)
        assert decoder.decode(block) == fields


@pytest.mark.parametrize("seed", range(40))
def test_bytes_of_chance_are_read_as_the_library_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        block = rng.randbytes(rng.randrange(12))
        if rng.random() < 0.5:
            block = hpack.Encoder().encode([a_field(rng)]) + block
        ours, theirs = HpackDecoder(1 << 16), hpack.Decoder()
        try:
            expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            with pytest.raises(HpackError):
                ours.decode(block)
        else:
            try:
                assert ours.decode(block) == expected
            except HpackError as error:  # the library takes any number of sizes
                assert "two others" in str(error)
                assert block[0] >> 5 == 1


def test_a_field_counts_more_than_its_bytes() -> None:
    block = hpack.Encoder().encode([(b"ab", b"cde")])
    size = 5 + ENTRY_SIZE
    assert HpackDecoder(size).decode(block) == [(b"ab", b"cde")]
    with pytest.raises(TooLargeError):
        HpackDecoder(size - 1).decode(block)


def test_of_too_many_fields_the_rest_is_not_read() -> None:
    post, none = b"\x83", b"\x80"
    decoder = HpackDecoder(10 * (len(":method") + len("POST") + ENTRY_SIZE))
    assert decoder.decode(post * 10) == [(b":method", b"POST")] * 10
    with pytest.raises(TooLargeError):
        decoder.decode(post * 100 + none)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x82\x20",
        b"\x3f\xe2\x1f",
        b"\x7f\xff\xff\xff\xff\xff\xff",
        b"\x40\x01",
        b"\x40\x01a\x7f",
        b"\x00\x84\xff\xff\xff\xff\x00",
        b"\x00\x82\x1f\xff\x00",
        b"\x00\x81\x18\x00",
    ],
)
def test_a_block_that_cannot_be_read_says_so(block: bytes) -> None:
    with pytest.raises(HpackError):
        HpackDecoder(1 << 16).decode(block)


def test_our_blocks_are_read_whatever_the_sizes_of_their_texts() -> None:
    """A size of 127 is the first that does not fit into its first byte."""
    for size in (0, 1, 126, 127, 128, 254, 255, 127 + 128, 20_000):
        fields = [(b":status", b"200"), (b"x-name", b"v" * size), (b"n" * max(1, size), b"")]
        block = header_block(fields)
        assert HpackDecoder(1 << 20).decode(block) == fields
        assert [tuple(each) for each in hpack.Decoder(1 << 20).decode(block, raw=True)] == fields
