"""What tests of brokers share."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


@pytest.fixture
def store_threads() -> Callable[[], list[str]]:
    """The names of the threads that brokers of this test have; a session's brokers live on."""
    others = set(threading.enumerate())

    def names() -> list[str]:
        started = set(threading.enumerate()) - others
        return [thread.name for thread in started if "skylarkmq" in thread.name]

    return names
