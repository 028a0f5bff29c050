"""What is started and stopped, as a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """`async with` starts it and stops it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @abstractmethod
    async def start(self) -> None:
        """Start; does nothing when started."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop, and close what is its own."""
