"""A real broker for tests: in this process, on free ports, ready in a few milliseconds.

    async with run_broker() as broker, broker.client() as client:
        async with Producer(client=client) as producer:
            await producer.send(Message("orders", b"hello"))
        assert [message.body for message in await broker.messages("orders")] == [b"hello"]

Under pytest the fixtures `skylarkmq_broker` and `skylarkmq_broker_session` give the same object,
`skylarkmq_broker_sync` one without await (`plugin.py`). Without pytest: `run_broker`, and from code
that has no event loop `run_broker_sync`.

The parts are loaded when they are asked for: pytest loads this package in every run wherever
SkylarkMQ is installed.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skylarkmq.testing.accounts import Account
    from skylarkmq.testing.broker import RunningBroker, run_broker
    from skylarkmq.testing.clock import VirtualClock
    from skylarkmq.testing.faults import Fault, Faults
    from skylarkmq.testing.threaded import SyncBroker, run_broker_in_thread, run_broker_sync

__all__ = [
    "Account",
    "Fault",
    "Faults",
    "RunningBroker",
    "SyncBroker",
    "VirtualClock",
    "run_broker",
    "run_broker_in_thread",
    "run_broker_sync",
]

_PLACES = {
    "Account": "accounts",
    "Fault": "faults",
    "Faults": "faults",
    "RunningBroker": "broker",
    "SyncBroker": "threaded",
    "VirtualClock": "clock",
    "run_broker": "broker",
    "run_broker_in_thread": "threaded",
    "run_broker_sync": "threaded",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if os.name != "posix":
        raise ImportError(
            f"{name} needs POSIX, as the broker does: run the tests in WSL or a container, or use "
            "a broker elsewhere with the SDK, which works here"
        )
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
