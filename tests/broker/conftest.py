"""What tests of brokers share."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.store.read.message_reader import MessageReader
from tests.support.raw_client import RawClient


@pytest.fixture
def store_threads() -> Callable[[], list[str]]:
    """The names of the threads that brokers of this test have; a session's brokers live on."""
    others = set(threading.enumerate())

    def names() -> list[str]:
        started = set(threading.enumerate()) - others
        return [thread.name for thread in started if "skylarkmq" in thread.name]

    return names


@pytest.fixture(params=["warm", "cold"])
def age_of_records(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With records taken to be in memory, and with records to be read off the loop."""
    if request.param == "cold":
        monkeypatch.setattr(MessageReader, "is_in_memory", lambda *_: False)


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """A connection to the module's broker."""
    peer = await RawClient.open(broker.listen_address)
    yield peer
    await peer.close()
