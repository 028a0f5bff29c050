"""Places for those who wait: bounded, and shared by the addresses that they wait at.

While there is room everybody gets a place. Past the bound, an address with fewer than its share
gets that of the oldest of the address that has most, whose wait is over. Nobody else gets one. So
addresses that take all they can get do not keep others out, and clients behind one address are not
turned away while there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

PLACES_MAX: Final = 100_000
"""Of pulls that are held, and as many of receives that wait."""

T = TypeVar("T")


class Places(Generic[T]):
    """Who waits, by address. Loop thread.

    Attributes:
        count: how many wait.
    """

    def __init__(self, limit: int, give_way: Callable[[T], object]) -> None:
        """Begin with nobody.

        Args:
            limit: how many may wait.
            give_way: ends the wait of one whose place somebody else gets.
        """
        self.count = 0
        self._limit = limit
        self._give_way = give_way
        self._by_network: dict[bytes, dict[T, None]] = {}  # first the oldest

    def take(self, network: bytes, waiting: T) -> bool:
        """Give a place to one that waits; False when there is none.

        Args:
            network: its address, as `network_of` tells it.
        """
        if self.count >= self._limit and not self._make_room(network):
            return False
        self._by_network.setdefault(network, {})[waiting] = None
        self.count += 1
        return True

    def leave(self, network: bytes, waiting: T) -> None:
        """Give a place back; nothing happens where it was taken away."""
        of_network = self._by_network.get(network, {})
        if waiting in of_network:
            del of_network[waiting]
            self.count -= 1
            if not of_network:
                del self._by_network[network]

    def _make_room(self, network: bytes) -> bool:
        own = len(self._by_network.get(network, ()))
        if own * len(self._by_network) >= self._limit:
            return False
        most_at, most = max(self._by_network.items(), key=lambda item: len(item[1]))
        if len(most) <= own + 1:
            return False
        oldest = next(iter(most))
        self.leave(most_at, oldest)
        self._give_way(oldest)
        return True
