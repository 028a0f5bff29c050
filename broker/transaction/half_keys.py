"""The half messages of producers that end their transactions by unique key alone.

    digest of (topic, key) -> the first queue offsets of the half messages, or how they ended

Clients of RocketMQ 5's gRPC protocol name no offsets. Their half messages have the topic as their
producer group, by which a start knows them. A send that was tried again has left several half
messages of one key; all of them are meant.

Bounded: the oldest entries go first. Most of those have ended; if one has not, the table says that
it does not know every open half message (`is_whole`).

Pure; loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from skylarkmq.common.first_use import on_first_use

if TYPE_CHECKING:
    import hashlib
else:  # by the first such half message
    hashlib = on_first_use("hashlib")

KEYS_MAX: Final = 100_000
"""Each takes some 240 bytes."""
COPIES_MAX: Final = 16
"""Half messages of one key that are remembered, the last ones."""
_DIGEST_SIZE: Final = 16


class HalfKeys:
    """Where to look for the half messages of a key. Loop thread.

    Attributes:
        is_whole: every open half message of such a producer is here.
    """

    __slots__ = ("_keys", "is_whole")

    def __init__(self) -> None:
        self.is_whole = True
        self._keys: OrderedDict[bytes, tuple[int, ...] | bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, topic: str, key: str, first_offset: int) -> None:
        """Remember a half message by the queue offset at which it was stored first."""
        digest = _digest(topic, key)
        before = self._keys.get(digest, ())
        offsets = () if isinstance(before, bool) else before
        if first_offset not in offsets:
            self._keys[digest] = (*offsets[-COPIES_MAX + 1 :], first_offset)
            self._bound()

    def find(self, topic: str, key: str) -> tuple[int, ...]:
        """Return the first queue offsets of the half messages of a key, in their order."""
        found = self._keys.get(_digest(topic, key), ())
        return () if isinstance(found, bool) else found

    def note_end(self, topic: str, key: str, *, committed: bool) -> None:
        """Remember how the transactions of a key have ended."""
        digest = _digest(topic, key)
        self._keys[digest] = committed
        self._keys.move_to_end(digest)
        self._bound()

    def verdict(self, topic: str, key: str) -> bool | None:
        """Return whether the transaction of a key was committed; None when no end is known."""
        found = self._keys.get(_digest(topic, key))
        return found if isinstance(found, bool) else None

    def _bound(self) -> None:
        if len(self._keys) > KEYS_MAX:
            _, oldest = self._keys.popitem(last=False)
            if not isinstance(oldest, bool):
                self.is_whole = False


def _digest(topic: str, key: str) -> bytes:
    text = f"{topic}\x01{key}".encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_SIZE).digest()
