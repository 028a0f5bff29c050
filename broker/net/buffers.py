"""What peers make a server hold: requests that are unfinished or wait, answers that are not read.

    inbound     bytes of unfinished frames, and of whole ones that wait for the peer to read its
                answers. Beyond the limit the peer that holds the most is dropped.
    outbound    bytes that peers have left unread, of those that are BEHIND_SIZE behind or more.
                Beyond half of the limit those peers are not read; beyond the limit the one that
                has taken nothing for the longest time is dropped.

Each peer has limits of its own besides (`connection.py`). malloc keeps what a flood of small pieces
took; once it is over, that is given back to the system.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.base.process import give_memory_back

if TYPE_CHECKING:
    from skylarkmq.broker.net.peer_connection import PeerConnection

log = logging.getLogger(__name__)

GiveBack = Callable[[], None]

INBOUND_MAX: Final = 256 << 20
OUTBOUND_MAX: Final = 256 << 20
BEHIND_SIZE: Final = 64 << 10
FLOOD_SIZE: Final = 64 << 20
CALM_SIZE: Final = 16 << 20


class _Buffers:
    """Bytes of all peers together, and whether a flood of them is over.

    A flood is over when FLOOD_SIZE was reached, and CALM_SIZE was not between two looks.
    """

    def __init__(self, limit: int, give_back: GiveBack) -> None:
        """Count from nothing; `give_back` returns freed memory to the system."""
        self.limit = limit
        self.size = 0
        self._give_back = give_back
        self._was_flood = False
        self._highest = 0  # since the last look

    def look(self) -> None:
        """Called every few seconds; after a flood, give memory back."""
        highest, self._highest = self._highest, self.size
        if highest >= FLOOD_SIZE:
            self._was_flood = True
        elif self._was_flood and highest < CALM_SIZE:
            self._was_flood = False
            self._give_back()

    def _add(self, size: int) -> None:
        self.size += size
        if self.size > self._highest:
            self._highest = self.size


class InboundBuffers(_Buffers):
    """Bytes that came and are not handled. Loop thread."""

    def __init__(self, limit: int = INBOUND_MAX, give_back: GiveBack = give_memory_back) -> None:
        super().__init__(limit, give_back)
        self._held: dict[PeerConnection, int] = {}

    def note(self, peer: PeerConnection, size: int) -> None:
        """A peer holds `size` bytes now."""
        self._add(size - self._held.get(peer, 0))
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


class OutboundBuffers(_Buffers):
    """Bytes that peers have not taken. Loop thread.

    A peer takes bytes without a word, so the figures are those of its last write, never too small;
    before anything is done about them the peers are counted anew.
    """

    def __init__(self, limit: int = OUTBOUND_MAX, give_back: GiveBack = give_memory_back) -> None:
        super().__init__(limit, give_back)
        self._counted = 0  # the size when the peers were last counted
        # The one that has taken nothing for the longest time comes first.
        self._behind: dict[PeerConnection, int] = {}

    def note(self, peer: PeerConnection, size: int) -> None:
        """A peer that is behind has `size` bytes to take."""
        self._add(size - self._behind.get(peer, 0))
        self._behind[peer] = size
        if self.size > self.limit:
            self._count()
            while self.size > self.limit:
                self._drop_first()
        elif self.is_full and self.size - self._counted > self.limit // 16:
            self._count()

    def caught_up(self, peer: PeerConnection) -> None:
        """A peer is no longer behind, or gone."""
        self.size -= self._behind.pop(peer, 0)

    @property
    def is_full(self) -> bool:
        """Peers that are behind should get no more."""
        return self.size > self.limit // 2

    def _count(self) -> None:
        """Ask every peer what it has taken in the meantime; who took something goes last."""
        took: dict[PeerConnection, int] = {}
        for peer, size in list(self._behind.items()):
            unsent = peer.unsent_size
            if unsent < size:
                del self._behind[peer]
                took[peer] = unsent
        self._behind |= took
        self.size = self._counted = sum(self._behind.values())

    def _drop_first(self) -> None:
        peer = next(iter(self._behind))
        log.warning(
            "dropping %s: the peers leave more than %d bytes unread, and it reads none of its",
            peer.remote_address,
            self.limit,
        )
        self.caught_up(peer)
        peer.abort("slow_reader")
