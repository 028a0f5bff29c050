"""What stands on a blocking client: its own one or a shared one, and starts and stops with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from skylarkmq.client.errors import IllegalState
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.inner import Inner, Startable

A = TypeVar("A", bound=Startable)


class OnClient(ABC, Generic[A]):
    """A producer, a consumer and their like; `with` starts it and stops it. Any thread."""

    def _stand_on(
        self,
        client: Client | None,
        namesrv_addr: str | None,
        make: Callable[[AsyncClient], A],
        when_stopped: Callable[[str], IllegalState] = IllegalState,
    ) -> None:
        """Take a shared client, or name servers for one of its own; `make` makes the twin."""
        if client is not None and namesrv_addr is not None:
            raise ValueError("give client= or namesrv_addr=, not both")
        self._owned = client is None
        self._client = Client(namesrv_addr) if client is None else client
        self._inner = Inner(self._client.portal, self._client.maker(make), when_stopped)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start; does nothing when started."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and close what is its own."""

    def _end(self, work: Callable[[A], Coroutine[Any, Any, None]]) -> None:
        """Stop the twin, and the client with it if nobody else has it."""
        try:
            self._inner.end(work)
        finally:
            if self._owned:
                self._client.stop()
