"""Things that belong to one loop: messages, transactions, scans. They do not outlive a fork."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from skylarkmq.client.errors import IllegalState
from skylarkmq.client.sync.portal import Portal

T = TypeVar("T")


class Binding:
    """The way into that loop, for as long as this process has it."""

    __slots__ = ("_generation", "_portal")

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._generation = portal.generation

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], owner: object) -> T:
        """Run the coroutine that `work` makes in the loop thread.

        Raises:
            IllegalState: the parent process has that loop, and `owner` with it.
        """
        self._check(owner)
        return self._portal.run(work)

    def call(self, work: Callable[[], T], owner: object) -> T:
        """Call `work` in the loop thread; raises as `run` does."""
        self._check(owner)
        return self._portal.call(work)

    def _check(self, owner: object) -> None:
        if self._generation != self._portal.generation:
            raise IllegalState(f"this {type(owner).__name__} belongs to the parent process")


class Bound:
    """Root of them."""

    __slots__ = ("_binding",)

    def __init__(self, portal: Portal) -> None:
        self._binding = Binding(portal)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._binding.run(work, self)

    def _call(self, work: Callable[[], T]) -> T:
        return self._binding.call(work, self)
