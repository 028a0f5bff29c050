"""One life of a broker: on one disk, by a clock that goes on behind it. See `broker_lives.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

from skylarkmq.broker.components import BrokerParts, make_server
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.client import Credentials
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.signature import sign_request
from tests.store.support import HOST, store_config
from tests.support.broker_machine import MEMORY_SIZE, Peer
from tests.support.crash_disk import CrashDisk
from tests.support.fake_transport import Transport
from tests.support.manual_clock import ManualClock, ManualTimer
from tests.support.workers import ManualWorker, manual_store_workers

NAME: Final = "broker-a"
ROOT: Final = Credentials("administrator", "secret-of-root")
ACCOUNTS_FILE: Final = "conf/plain_acl.yml"


class OwnTimers:
    """The clock as one life of a broker sees it: its timers end with it."""

    def __init__(self, clock: ManualClock) -> None:
        self.now_ms = clock.now_ms
        self.monotonic = clock.monotonic
        self._clock = clock
        self._timers: list[ManualTimer] = []

    def call_at(self, when_s: float, callback: Callable[..., object], *args: Any) -> ManualTimer:
        timer = self._clock.call_at(when_s, callback, *args)
        self._timers.append(timer)
        return timer

    def end(self) -> None:
        """Forget what was planned."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class Life:
    """One life of the broker, on one disk."""

    def __init__(self, disk: CrashDisk, clock: ManualClock, *, sync: bool) -> None:
        self.disk = disk
        self.clock = OwnTimers(clock)
        disk.now_ms = clock.now_ms
        disk.used_percent = 10
        self.workers = manual_store_workers()
        self.stalled: set[ManualWorker] = set()
        home = disk.root if disk.exists(disk.root / ACCOUNTS_FILE) else None
        config = BrokerConfig(
            store=store_config(disk.root, flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH"),
            broker_name=NAME,
            acl_enable=home is not None,
            rocketmq_home=home,
        )
        workers = self.workers.workers
        self.parts = BrokerParts(config, disk, self.clock, workers, MEMORY_SIZE)
        if self.parts.access_files is not None:
            self.parts.access_files.load()
        self.parts.store.load()
        self.parts.load_tables()
        self.parts.store.start()
        self.server, self.router = make_server(self.parts, self.clock, HOST, Random(1))
        self.parts.start_services()
        self.peer = self.connect(ROOT)

    def connect(self, account: Credentials) -> Peer:
        """Return a client without the SDK, which signs if the broker wants it."""
        transport = Transport()
        connection = self.accept()
        transport.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, transport))
        peer = Peer(connection, transport)
        if self.parts.access_files is not None:
            peer.sign = lambda command: _sign(command, account)
        return peer

    def accept(self) -> Connection:
        """Make what stands for a peer that has connected."""
        return Connection(self.router, self.server)

    def work(self) -> None:
        """Let all threads do what they have to, but for one that stands still."""
        workers = [each for each in self.workers.all() if each not in self.stalled]
        while any([worker.step() for worker in workers]):
            pass

    def end(self) -> None:
        """Be dead: no timer, no thread."""
        self.clock.end()
        for worker in self.workers.all():
            worker.stopped = True

    async def stop(self) -> None:
        """Stop as a broker stops that is asked to."""
        parts = self.parts
        await parts.topics.flush()
        parts.holding.stop()
        parts.housekeeping.stop()
        await parts.stop_services()
        parts.store.stop_writing()
        for worker in self.workers.all():
            worker.stop()
            while worker.deliver():
                pass
        parts.store.close()
        assert not self.disk.exists(parts.store.paths.abort)


def _sign(command: RemotingCommand, account: Credentials) -> None:
    sign_request(command, account.access_key, account.secret_key.encode())
