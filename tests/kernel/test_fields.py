"""A head's fields are the same on both roads, and so is the table that they leave."""

from __future__ import annotations

import random
from contextlib import suppress
from unittest import mock

import hpack
import pytest

from skylarkmq import kernel
from skylarkmq.protocol.http2 import hpack as ours
from skylarkmq.protocol.http2.hpack import STATIC, HpackDecoder, HpackError
from tests.support.amounts import sample

pytestmark = pytest.mark.skipif(kernel.compiled is None, reason=kernel.why_pure)

NAMES = [name for name, _ in STATIC] + [b"x-mq-client-id", b"x", b"x-" * 100]
SIZE_MAX = 16 << 10


def state(decoder: HpackDecoder) -> tuple[object, ...]:
    return decoder._added, decoder._added_size, decoder._table_size


def by_python(decoder: HpackDecoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    with mock.patch.object(ours, "compiled", None), suppress(HpackError):
        return decoder.decode(block)
    return None


def by_kernel(decoder: HpackDecoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    """What the kernel says; where that is nothing, the table is to be as it was."""
    assert kernel.compiled is not None
    before = list(decoder._added)
    read = kernel.compiled.read_fields(
        block,
        decoder._added,
        decoder._added_size,
        decoder._table_size,
        SIZE_MAX,
        STATIC,
        ours._HUFFMAN.tree,
    )
    if read is None:
        assert decoder._added == before
        with suppress(HpackError, IndexError):
            return decoder._decode(block)
        return None
    fields: list[tuple[bytes, bytes]]
    fields, decoder._added_size = read
    return fields


def a_block(rng: random.Random, encoder: hpack.Encoder) -> bytes:
    if rng.random() < 0.05:
        encoder.header_table_size = rng.randrange(4097)
    fields = [
        (rng.choice(NAMES), rng.choice((b"", b"same", rng.randbytes(rng.randrange(300)))))
        for _ in range(rng.randrange(20))
    ]
    sensitive = [(*field, rng.random() < 0.2) for field in fields]
    block: bytes = encoder.encode(sensitive, huffman=rng.random() < 0.5)
    return block


@pytest.mark.parametrize("seed", sample(range(40), 5))
def test_blocks_of_a_connection(seed: int) -> None:
    rng = random.Random(seed)
    encoder = hpack.Encoder()
    compiled, python = HpackDecoder(SIZE_MAX), HpackDecoder(SIZE_MAX)
    for _ in range(100):
        block = a_block(rng, encoder)
        read = by_kernel(compiled, block)
        assert read is not None
        assert read == by_python(python, block)
        assert state(compiled) == state(python)


@pytest.mark.parametrize("seed", sample(range(40), 5))
def test_blocks_that_were_damaged(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        encoder = hpack.Encoder()
        compiled, python = HpackDecoder(SIZE_MAX), HpackDecoder(SIZE_MAX)
        for _ in range(3):
            block = bytearray(a_block(rng, encoder))
            for _ in range(rng.randrange(3) if block else 0):
                block[rng.randrange(len(block))] = rng.randrange(256)
            cut = bytes(block[: rng.choice((len(block), rng.randrange(len(block) + 1)))])
            read = by_kernel(compiled, cut)
            assert read == by_python(python, cut)
            if read is None:  # the table is unknown from now on
                break
            assert state(compiled) == state(python)


@pytest.mark.parametrize("size", [639, 640, 641, 5000])
def test_long_strings_in_huffman_codes(size: int) -> None:
    for letter in (b"0", b"\xff"):
        encoder, decoder = hpack.Encoder(), HpackDecoder(1 << 20)
        fields = [(b"x-first", letter * size)]
        block = encoder.encode(fields, huffman=True)
        assert decoder.decode(block) == fields


def test_a_block_of_usual_fields_needs_no_python() -> None:
    assert kernel.compiled is not None
    block = hpack.Encoder().encode([(b":method", b"POST"), (b"date", b"20261127T0000Z")])
    with mock.patch.object(HpackDecoder, "_decode", side_effect=AssertionError):
        assert HpackDecoder(1000).decode(block) == [
            (b":method", b"POST"),
            (b"date", b"20261127T0000Z"),
        ]


def test_what_had_to_leave_the_table_in_a_block_is_no_field_in_its_rest() -> None:
    encoder, decoder = hpack.Encoder(), HpackDecoder(SIZE_MAX)
    decoder.decode(encoder.encode([(b"x-old", b"1")]))
    large = encoder.encode([(b"x-large", bytes(4050))], huffman=False)
    newest, before_it = b"\xbe", b"\xbf"
    with pytest.raises(HpackError):
        decoder.decode(large + before_it)
    assert decoder.decode(newest) == [(b"x-large", bytes(4050))]
