"""A broker in a thread of its own, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.live_broker import live_broker, namesrv_of

NUMBERS = count()


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of its name server."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()
    found: list[str] = []

    async def serve() -> None:
        async with live_broker(tmp_path_factory.mktemp("broker")) as broker:
            found.append(namesrv_of(broker))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(NUMBERS)}"
