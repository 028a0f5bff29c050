"""Things that belong to one loop: messages, transactions, scans. They do not outlive a fork."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from skylarkmq.client.errors import IllegalState
from skylarkmq.client.sync.portal import Portal

T = TypeVar("T")


class Bound:
    """Root of them."""

    __slots__ = ("_generation", "_portal")

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._generation = portal.generation

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check()
        return self._portal.run(work)

    def _call(self, work: Callable[[], T]) -> T:
        self._check()
        return self._portal.call(work)

    def _check(self) -> None:
        if self._generation != self._portal.generation:
            raise IllegalState(f"this {type(self).__name__} belongs to the parent process")
