"""What peers make a server hold: requests that came in part or wait, answers that nobody reads.

    inbound     bytes of unfinished frames, and of whole ones that wait for the peer to read its
                answers. Beyond the limit the peer that holds the most is dropped.
    outbound    bytes that peers have left unread, of those that are BEHIND_SIZE behind or more.
                Beyond the limit requests with large answers are refused (`fast_failure.py`) and
                those peers are not read; beyond twice the limit the one that has been behind for
                the longest time is dropped.

Each peer has limits of its own besides (`connection.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

INBOUND_MAX: Final = 256 << 20
OUTBOUND_MAX: Final = 256 << 20
BEHIND_SIZE: Final = 64 << 10


class Peer(Protocol):
    """A connection as the buffers see it."""

    remote_address: str

    @property
    def unsent_size(self) -> int:
        """Bytes that it has not taken yet."""
        ...

    def abort(self, reason: str) -> None:
        """End it."""
        ...


class InboundBuffers:
    """Bytes that came and are not handled. Loop thread.

    Attributes:
        size: of all peers together.
    """

    def __init__(self, limit: int = INBOUND_MAX) -> None:
        self.limit = limit
        self.size = 0
        self._held: dict[Peer, int] = {}

    def note(self, peer: Peer, size: int) -> None:
        """A peer holds `size` bytes now."""
        self.size += size - self._held.get(peer, 0)
        if size:
            self._held[peer] = size
        else:
            self._held.pop(peer, None)
        while self.size > self.limit:
            largest = max(self._held, key=self._held.__getitem__)
            log.warning(
                "dropping %s: the peers' unfinished frames hold more than %d bytes, %d of them its",
                largest.remote_address,
                self.limit,
                self._held[largest],
            )
            self.note(largest, 0)
            largest.abort("limit")


class OutboundBuffers:
    """Bytes that peers have not taken. Loop thread.

    A peer takes bytes without a word, so the figures are those of its last write: never too small.

    Attributes:
        is_full: whether more than the limit is held.
        listener: called when `is_full` changes.
    """

    def __init__(self, limit: int = OUTBOUND_MAX) -> None:
        self.limit = limit
        self.size = 0
        self.is_full = False
        self.listener: Callable[[], None] = lambda: None
        self._behind: dict[Peer, int] = {}  # the one that has been behind the longest comes first

    def note(self, peer: Peer, size: int) -> None:
        """A peer that is behind has `size` bytes to take."""
        self.size += size - self._behind.get(peer, 0)
        self._behind[peer] = size
        if self.size > self.limit:
            if not self.is_full:
                self.recount()
            while self.size > 2 * self.limit:
                self._drop_slowest()

    def caught_up(self, peer: Peer) -> None:
        """A peer is no longer behind, or gone."""
        self.size -= self._behind.pop(peer, 0)
        self._update()

    def recount(self) -> None:
        """Ask every peer that is behind what it has taken in the meantime."""
        for peer in self._behind:
            self._behind[peer] = peer.unsent_size
        self.size = sum(self._behind.values())
        self._update()

    def _drop_slowest(self) -> None:
        self.recount()
        if self.size > 2 * self.limit:
            slowest = next(iter(self._behind))
            log.warning(
                "dropping %s: the peers leave more than %d bytes unread, and it reads the slowest",
                slowest.remote_address,
                2 * self.limit,
            )
            self.caught_up(slowest)
            slowest.abort("slow_reader")

    def _update(self) -> None:
        is_full = self.size > self.limit
        if is_full != self.is_full:
            self.is_full = is_full
            if is_full:
                log.warning("peers leave %d bytes unread: no more pulls until they read", self.size)
            self.listener()
