"""A test's broker in a thread of its own, for tests that have no event loop, or block theirs.

    with run_broker_sync() as broker:
        broker.create_topic("orders")
        ...

`run_broker_in_thread` gives the object of `run_broker`, whose methods may be awaited from any loop:
the fixtures use it, so that a broker outlives the loops of single tests and serves whatever a test
does to its own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from skylarkmq.broker.config.config_file import Profile
from skylarkmq.common.clock import Clock
from skylarkmq.common.settings import checked
from skylarkmq.embedded import Settings
from skylarkmq.loop_thread import LoopThread
from skylarkmq.protocol.message import MessageExt
from skylarkmq.testing.accounts import Account
from skylarkmq.testing.broker import QUEUE_COUNT, RunningBroker, run_broker
from skylarkmq.testing.faults import Faults

if TYPE_CHECKING:
    from skylarkmq.client import Credentials
    from skylarkmq.client.sync import Client

T = TypeVar("T")

THREAD_NAME: Final = "skylarkmq-test-broker"


class SyncBroker:
    """A `RunningBroker` without await, for any thread but the broker's own.

    Attributes:
        broker: the same broker, for coroutines.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker

    @property
    def namesrv_addr(self) -> str:
        """`host:port` for clients; the same after a restart."""
        return self.broker.namesrv_addr

    @property
    def root(self) -> Path:
        """The folder of the store."""
        return self.broker.root

    @property
    def faults(self) -> Faults:
        """What can be made to go wrong."""
        return self.broker.faults

    def client(self, account: str | None = None, **settings: Any) -> Client:
        """Return a client of `skylarkmq.client.sync`, not started; else `RunningBroker.client`."""
        from skylarkmq.client.sync import Client

        if account is not None:
            settings["credentials"] = self.credentials(account)
        settings.setdefault("start_timeout", 0)
        return Client(self.namesrv_addr, **settings)

    def credentials(self, account: str) -> Credentials:
        """As `RunningBroker.credentials`."""
        return self.broker.credentials(account)

    def create_topic(self, topic: str, queues: int = QUEUE_COUNT, *, order: bool = False) -> None:
        """As `RunningBroker.create_topic`."""
        self._run(self.broker.create_topic(topic, queues, order=order))

    def messages(self, topic: str, queue_id: int | None = None) -> list[MessageExt]:
        """As `RunningBroker.messages`."""
        return self._run(self.broker.messages(topic, queue_id))

    def lag(self, group: str) -> int | None:
        """As `RunningBroker.lag`."""
        return self._run(self.broker.lag(group))

    def wait_lag(self, group: str, lag: int = 0, timeout: float = 10.0) -> None:
        """As `RunningBroker.wait_lag`."""
        self._run(self.broker.wait_lag(group, lag, timeout))

    def wait_members(self, group: str, count: int = 1, timeout: float = 10.0) -> None:
        """As `RunningBroker.wait_members`."""
        self._run(self.broker.wait_members(group, count, timeout))

    def now(self) -> datetime:
        """As `RunningBroker.now`."""
        return self.broker.now()

    def advance(self, seconds: float | timedelta) -> None:
        """As `RunningBroker.advance`."""
        self._run(self.broker.advance(seconds))

    def restart(self, *, kill: bool = False) -> None:
        """As `RunningBroker.restart`."""
        self._run(self.broker.restart(kill=kill))

    def dump(self) -> str:
        """As `RunningBroker.dump`."""
        return self._run(self.broker.dump())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.broker.home).result()


@checked
@contextmanager
def run_broker_in_thread(
    profile: Profile = "test",
    store: Literal["memory"] | str | Path = "memory",
    port: int = 0,
    clock: Clock | None = None,
    *,
    settings: Settings | None = None,
    accounts: Sequence[Account] | None = None,
) -> Generator[RunningBroker]:
    """Run a broker in a loop and a thread of its own; arguments and errors of `run_broker`."""
    thread = LoopThread(
        lambda: run_broker(profile, store, port, clock, settings=settings, accounts=accounts),
        THREAD_NAME,
    )
    thread.start()
    try:
        yield thread.started.result()
    finally:
        thread.stop()
        thread.join()
    thread.ended.result()


@checked
@contextmanager
def run_broker_sync(
    profile: Profile = "test",
    store: Literal["memory"] | str | Path = "memory",
    port: int = 0,
    clock: Clock | None = None,
    *,
    settings: Settings | None = None,
    accounts: Sequence[Account] | None = None,
) -> Generator[SyncBroker]:
    """Run a broker for code without an event loop; arguments and errors of `run_broker`."""
    with run_broker_in_thread(
        profile, store, port, clock, settings=settings, accounts=accounts
    ) as broker:
        yield SyncBroker(broker)
