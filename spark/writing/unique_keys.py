"""Unique keys that a row gets again when Spark sends it again.

A producer's id is new on every send. A Spark task that is repeated must give each row the id of its
first try, so that consumers and tools see a copy for what it is:

    columns   hash of the values of `idempotencyColumns`, say of topic, brokerName, queueId and
              queueOffset
    place     hash of (query id, batch id, partition), plus the row's number: for a stream that maps
              its source row by row; after a shuffle the rows of a partition may come in another
              order. Of a write inside foreachBatch also (topic, option `writeName`), for a batch
              may have several

The text has the form of a producer's id, upper-case hex of 16 bytes:

    position  size  here            in a producer's id
    0         10    hash            address, process, seed
    10        4     0               milliseconds since the month began
    14        2     hash            counter

Zero at 10, because Java's tools search a unique key from that time of the month on: so they start
at the month's first day, and not at a time made of a hash.

Pure; runs in Spark workers.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageClientIDSetter.java
(getNearlyTimeFromID)
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

_HASH_SIZE: Final = 12
_NUMBER_MAX: Final = (1 << 8 * _HASH_SIZE) - 1
_FRONT_LENGTH: Final = 20
_RUN: Final = 1 << 16
"""Keys that have the same front: the last two bytes are counted up."""
_TIME: Final = "00000000"
KEY_LENGTH: Final = 32
assert 2 * _HASH_SIZE + len(_TIME) == KEY_LENGTH
_PERSON: Final = b"skylarkmq-spark1"
"""Sets these hashes apart; the number at its end changes with the encoding below."""
assert len(_PERSON) == hashlib.blake2b.PERSON_SIZE

Value = str | bytes | bool | int | datetime.date | decimal.Decimal | None
"""What a column of identity may hold; an instant is its microseconds since the epoch."""


class PlaceKeys:
    """Keys by the row's place: one object per task."""

    def __init__(
        self, place: tuple[str, str, int], more: Callable[[str], tuple[str, ...]] | None = None
    ) -> None:
        """Take what tells this task's rows from all others.

        Args:
            place: write, batch and partition. The write is a stream's query id, which its
                checkpoint keeps; for a batch write an id that the driver made, so that a repeated
                task has the same and another write has not; its batch is empty.
            more: called once for each topic; what else tells rows to that topic from others.
        """
        self._place = place
        self._more = more
        self._starts: dict[str, int] = {}

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the rows that got a key."""
        return frozenset(self._starts)

    def key(self, topic: str, row: int) -> str:
        """Return the key of the partition's row number `row`, counted from 0, which goes to
        `topic`; raises what `more` does."""
        ((front, end, _),) = self.runs(topic, row, 1)
        return f"{front}{end:04X}"

    def runs(self, topic: str, row: int, count: int) -> list[tuple[str, int, int]]:
        """Return the keys of so many rows from one on, as runs that share their front.

            (front, number of the first one's end, how many): `key` is the front and four hex digits

        Raises what `more` does.
        """
        start = self._starts.get(topic)
        if start is None:
            digest = _new()
            digest.update(_encoded((*self._place, *(self._more(topic) if self._more else ()))))
            start = self._starts[topic] = int.from_bytes(digest.digest())
        runs: list[tuple[str, int, int]] = []
        while count > 0:
            front, end = divmod((start + row) & _NUMBER_MAX, _RUN)
            length = min(count, _RUN - end)
            runs.append((f"{front:0{_FRONT_LENGTH}X}{_TIME}", end, length))
            row, count = row + length, count - length
        return runs


def keys_of_columns(columns: Sequence[Sequence[Value]]) -> list[str | None]:
    """Return `key_of_values` of each row of some columns; None where all values are None.

    Rows mostly share the values of all columns but the last, which are taken in once.
    """
    *before, last = columns
    starts: dict[tuple[Value, ...], hashlib.blake2b] = {}
    keys: list[str | None] = []
    for values, value in zip(
        zip(*before, strict=True) if before else repeat(()), last, strict=False
    ):
        start = starts.get(values)
        if start is None:
            start = starts[values] = _new()
            start.update(_encoded(values))
        digest = start.copy()
        kind, data = _part(value)
        digest.update(b"%c%d:%b" % (kind, len(data), data))
        nothing = value is None and not any(each is not None for each in values)
        keys.append(None if nothing else _text(digest.digest()))
    return keys


def key_of_values(values: Sequence[Value]) -> str:
    """Return the key of a row with these values in its columns of identity, in their order.

    Raises:
        TypeError: a value of a type that has no one spelling, such as a floating-point number.
    """
    digest = _new()
    digest.update(_encoded(values))
    return _text(digest.digest())


def _new() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_HASH_SIZE, person=_PERSON)


def _text(digest: bytes) -> str:
    text = digest.hex().upper()
    return text[:_FRONT_LENGTH] + _TIME + text[_FRONT_LENGTH:]


def _encoded(values: Sequence[Value]) -> bytes:
    """Return bytes that differ for different values: each follows its kind and its size."""
    parts: list[bytes] = []
    for value in values:
        kind, data = _part(value)
        parts.append(b"%c%d:" % (kind, len(data)))
        parts.append(data)
    return b"".join(parts)


def _part(value: Value) -> tuple[bytes, bytes]:
    if isinstance(value, str):
        return b"s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, bool):
        return b"t", b"1" if value else b"0"
    if isinstance(value, int):
        return b"i", b"%d" % value
    if value is None:
        return b"n", b""
    if isinstance(value, datetime.date):
        return b"d", value.isoformat().encode()
    if isinstance(value, decimal.Decimal):  # pyright: ignore[reportUnnecessaryIsInstance]
        return b"i", format(value.normalize(), "f").encode()
    raise TypeError(f"{type(value).__name__} is no value of identity")  # from a later Spark
