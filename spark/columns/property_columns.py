# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The properties of many records as one map column, and single properties as text columns.

A map made in Python for each row would cost more than all the rest of a record. So one call of
Arrow's splits the texts of all rows and gives names and values in turn, after a check that they
stand so:

    texts        KEYS 1 k 2 TAGS 1 a     KEYS 1 l
    skeleton     1 2 1                   1             nothing but the separators 0x01 and 0x02
    items        KEYS k TAGS a KEYS l
    shapes       (KEYS, TAGS)            (KEYS)        numbers of the names, for each row

Rows of one producer have one shape, so its names are looked at once. Texts that are not made of
well-formed pairs, or not UTF-8, are read one by one by the protocol's own decoder: same result.
Pure; in executors, one thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.protocol.properties import decode_properties

compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all


def steps(first: int, step: int, count: int) -> Any:
    """Return the int32 column first, first + step, ... of `count` values."""
    counting = _counting(1 << max(count - 1, 1).bit_length()).slice(0, count)
    scaled = compute.multiply(counting, pa.scalar(step, pa.int32()))
    return compute.add(scaled, pa.scalar(first, pa.int32()))


@lru_cache(maxsize=32)
def _counting(count: int) -> Any:
    return pa.array(range(count), pa.int32())


_map_array: Final[Any] = pa.MapArray.from_arrays  # its stub knows 64-bit offsets alone

_NAME: Final = b"\x01"
_PAIR: Final = b"\x02"
_ROW: Final = b"\x02\x02"
_NO_SEPARATORS: Final = bytes(range(256)).translate(None, _NAME + _PAIR)
_CODE_SIZE: Final = array("i").itemsize  # of a name's number
assert _CODE_SIZE == 4

Shape = tuple[str, ...]


class _Pairs(NamedTuple):
    """All pairs of all rows. `shapes` has the names of each row, `starts` its first pair."""

    shapes: list[Shape]
    starts: list[int]
    names: Any
    values: Any


class PropertyColumns:
    """Columns of the encoded property texts of some rows."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._pairs = _split(texts) or _read(texts)

    def maps(self) -> pa.Array[Any]:
        """Return the map column; of a name that repeats in a row the last value counts."""
        _, starts, names, values = self._pairs
        made: pa.Array[Any] = _map_array(pa.array(starts, pa.int32()), names, values)
        return made

    def values_of(self, name: str) -> pa.Array[Any]:
        """Return the property's value in each row, null where there is none."""
        shapes, starts, _, values = self._pairs
        found: pa.Array[Any]
        first = shapes[0] if shapes else ()
        if name in first and shapes.count(first) == len(shapes):
            place, step = first.index(name), len(first)
            found = values.take(steps(place, step, len(shapes)))
            return found
        places = {shape: shape.index(name) for shape in set(shapes) if name in shape}
        rows = [
            start + places[shape] if shape in places else None
            for shape, start in zip(shapes, starts, strict=False)
        ]
        found = values.take(pa.array(rows, pa.int32()))
        return found


def _split(texts: Sequence[bytes]) -> _Pairs | None:
    """Return the pairs of well-formed texts; None when one is not."""
    if texts and texts[0].endswith(_PAIR):  # releases from 5 on end every pair so
        texts = [text.removesuffix(_PAIR) for text in texts]
    counts = _counts(texts)
    if counts is None:
        return None
    joined = _PAIR.join(texts if all(counts) else [text for text in texts if text])
    total = sum(counts)
    if not total or not _is_utf8(joined):
        return None
    items = _items(joined)
    if compute.min(compute.binary_length(items)).as_py() == 0:
        return None  # a pair without a name or a value
    names, values = items.take(steps(0, 2, total)), items.take(steps(1, 2, total))
    return _shaped(counts, names, values)


def _counts(texts: Sequence[bytes]) -> list[int] | None:
    """Return how many pairs each text has; None when one is not made of pairs."""
    skeletons = _ROW.join(texts).translate(None, _NO_SEPARATORS).split(_ROW)
    if len(skeletons) != len(texts):
        return None
    known = {skeleton: (len(skeleton) + 1) // 2 for skeleton in set(skeletons)}
    for skeleton, count in known.items():
        if skeleton != (_NAME + _PAIR) * (count - 1) + _NAME * min(count, 1):
            return None
    if b"" in known and any(
        not skeleton and text for skeleton, text in zip(skeletons, texts, strict=True)
    ):
        return None  # a text without a separator is no pair
    return [known[skeleton] for skeleton in skeletons]


def _items(joined: bytes) -> Any:
    """Return what stands between the separators, as one text column."""
    data = joined.replace(_NAME, _PAIR)
    whole = array("i", (0, len(data)))
    buffers = [None, pa.py_buffer(whole), pa.py_buffer(data)]
    text = pa.Array.from_buffers(pa.string(), 1, buffers)
    return compute.split_pattern(text, _PAIR).values


def _shaped(counts: list[int], names: Any, values: Any) -> _Pairs:
    """Return the pairs with the shapes of their rows; of names that repeat the last one stays."""
    starts = list(accumulate(counts, initial=0))
    coded = names.dictionary_encode()
    codes = bytes(coded.indices.buffers()[1])[: _CODE_SIZE * len(names)]
    first = codes[: _CODE_SIZE * counts[0]]
    if counts.count(counts[0]) == len(counts) and codes == first * len(counts):
        rows = [first] * len(counts)
    else:
        places = [_CODE_SIZE * start for start in starts]
        rows = [codes[begin:end] for begin, end in pairwise(places)]
    known: list[str] = coded.dictionary.to_pylist()
    shapes = {row: tuple(known[code] for code in memoryview(row).cast("i")) for row in set(rows)}
    pairs = _Pairs([shapes[row] for row in rows], starts, names, values)
    if any(len(set(shape)) < len(shape) for shape in shapes.values()):
        return _without_repeats(pairs)
    return pairs


def _without_repeats(pairs: _Pairs) -> _Pairs:
    """Return the pairs without those whose name comes again in their row."""
    kept_of: dict[Shape, list[int]] = {}
    for shape in set(pairs.shapes):
        last = {name: place for place, name in enumerate(shape)}
        kept_of[shape] = sorted(last.values())
    rows = [kept_of[shape] for shape in pairs.shapes]
    kept = pa.array(
        [start + place for start, row in zip(pairs.starts, rows, strict=False) for place in row],
        pa.int32(),
    )
    shapes = {shape: tuple(shape[place] for place in row) for shape, row in kept_of.items()}
    return _Pairs(
        [shapes[shape] for shape in pairs.shapes],
        list(accumulate(map(len, rows), initial=0)),
        pairs.names.take(kept),
        pairs.values.take(kept),
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(texts: Sequence[bytes]) -> _Pairs:
    """Return the pairs of any texts, one text at a time."""
    rows = [decode_properties(text.decode("utf-8", "replace")) for text in texts]
    starts = list(accumulate(map(len, rows), initial=0))
    names = [name for row in rows for name in row]
    values = [value for row in rows for value in row.values()]
    return _Pairs(
        [tuple(row) for row in rows],
        starts,
        pa.array(names, pa.string()),
        pa.array(values, pa.string()),
    )
