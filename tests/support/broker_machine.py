"""A whole broker driven by hand: its disk, its clock, its threads, its peers, its power switch.

    machine = BrokerMachine(sync=True, rng=rng)
    await machine.boot()
    await machine.run(40)                # sends, delays, transactions, offsets, groups, time
    point = machine.crash_point          # a moment of the run, chosen evenly over all disk steps

Requests go in as bytes through real connections; the sockets alone are not there. What the broker
owes is kept in a `Ledger`, whose copy at the crash point is the promise that a recovery is held to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from skylarkmq.broker.components import BrokerParts, make_server
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_message
from tests.store.support import HOST, store_config
from tests.support.broker_applications import LEVELS, Applications, heartbeat
from tests.support.broker_ledger import Ledger
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import Names
from tests.support.fake_transport import Transport
from tests.support.manual_clock import START_MS, ManualClock, settle
from tests.support.workers import ManualWorker, manual_store_workers

MEMORY_SIZE = 1 << 33
STEP_S = 0.1
TURNS = 6  # of the loop, for a step: a request, a worker's result and an answer pass


class CrashPoint(NamedTuple):
    """A machine that stands still, and what it had promised by then."""

    disk: CrashDisk
    ledger: Ledger
    now_ms: int


class Peer:
    """A client without a socket."""

    def __init__(self, connection: Connection, transport: Transport) -> None:
        self.connection = connection
        self.transport = transport
        self.answers: dict[int, RemotingCommand] = {}
        self.pushes: list[RemotingCommand] = []
        self.sign: Callable[[RemotingCommand], None] | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0

    def send(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, oneway: bool = False,
    ) -> int:  # fmt: skip
        """Write a request; its opaque."""
        self._opaque += 1
        command = RemotingCommand.request(
            code, fields or {}, body, oneway=oneway, opaque=self._opaque
        )
        if self.sign is not None:
            self.sign(command)
        self.connection.data_received(encode_command(command))
        return self._opaque

    def read(self) -> None:
        """Take what the broker has written."""
        for data in self.transport.writes:
            for frame in self._decoder.feed(bytes(data)):
                command = decode_command(frame)
                if command.is_response:
                    self.answers[command.opaque] = command
                else:
                    self.pushes.append(command)
        self.transport.writes.clear()


class BrokerMachine(Applications):
    """A broker and everything around it."""

    def __init__(
        self,
        *,
        sync: bool,
        rng: Random,
        disk: CrashDisk | None = None,
        ledger: Ledger | None = None,
        start_ms: int = START_MS,
    ) -> None:
        self.sync = sync
        self.rng = rng
        self.disk = disk or CrashDisk(rng.choice((Names.STRICT, Names.ORDERED)))
        self.ledger = ledger or Ledger()
        self.crash_point: CrashPoint | None = None
        self.failures: list[Exception] = []
        self._start_ms = start_ms
        self._steps = 0
        self._waiting: dict[int, Callable[[RemotingCommand], None]] = {}
        self._lazy = False  # the threads lag behind
        self._stalled: list[ManualWorker] = []  # and these stand still

    # Power

    async def boot(self, *, watch: bool = True) -> None:
        """Load and start a broker from the disk as it is."""
        self.clock = ManualClock(self._start_ms)
        self.disk.now_ms = self.clock.now_ms
        self.disk.used_percent = 10
        self.workers = manual_store_workers()
        self.disk.before_step = self._before_step if watch else None
        config = self._config()
        self.parts = BrokerParts(config, self.disk, self.clock, self.workers.workers, MEMORY_SIZE)
        self.parts.store.load()
        self.parts.load_tables()
        self.parts.store.start()
        self.server, self.router = make_server(self.parts, self.clock, HOST, Random(1))
        self.parts.start_services()
        self._waiting.clear()
        self.peer = self._connect()
        self.call(RequestCode.HEART_BEAT, body=heartbeat(), done=lambda answer: None)
        await self.pump(0.2)

    def _config(self) -> BrokerConfig:
        return BrokerConfig(
            store=store_config(
                self.disk.root,
                message_delay_level=LEVELS,
                flush_disk_type="SYNC_FLUSH" if self.sync else "ASYNC_FLUSH",
                flush_delay_offset_interval=200,
                timer_flush_interval_ms=200,
            ),
            broker_name="broker-a",
            transaction_time_out=1000,
            transaction_check_interval=2000,
        )

    def _connect(self) -> Peer:
        transport = Transport()
        connection = Connection(self.router, self.server)
        transport.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, transport))
        return Peer(connection, transport)

    async def stop(self, turns: int = 10_000) -> None:
        """Stop cleanly, in so many steps at most."""
        self._lazy = False
        self.server.stop_reading()
        stopping = asyncio.ensure_future(self._stop())
        for _ in range(turns):
            if stopping.done():
                return await stopping
            await self._turn()
            self.clock.advance(STEP_S)
        stopping.cancel()
        raise AssertionError("the stop does not end")

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.stop()
        self.ledger.keep(self.ledger.mark())
        self._start_ms = self.clock.now_ms() + self.rng.choice((10, 3000))
        await self.boot()

    async def _stop(self) -> None:
        await self.parts.topics.flush()
        self.parts.holding.stop()
        self.parts.housekeeping.stop()
        await self.parts.stop_services()
        store = self.parts.store
        store.stop_writing()
        for worker in self.workers.all():
            worker.stop()
            while worker.deliver():
                pass
        store.close()
        is_unclean = self.disk.exists(store.paths.abort)
        assert is_unclean == (store.failure is not None), "`abort` tells of an unclean stop"

    def _before_step(self, _op: str, _path: Path) -> None:
        self._steps += 1
        if self.rng.random() * self._steps < 1:
            self.crash_point = CrashPoint(
                self.disk.snapshot(), deepcopy(self.ledger), self.clock.now_ms()
            )

    # Time

    async def pump(self, seconds: float) -> None:
        """Let time pass, all threads and the peer doing what they have to."""
        for _ in range(max(1, round(seconds / STEP_S))):
            self.clock.advance(STEP_S)
            await self._turn()

    async def _turn(self) -> None:
        for _ in range(2):
            await settle(TURNS)
            if self._lazy:
                for worker in self.workers.all():
                    if worker not in self._stalled:
                        for _ in range(self.rng.choice((0, 1, 2))):
                            worker.step()
            else:
                self.workers.run_all()
        await settle(TURNS)
        self._read()

    def _read(self) -> None:
        self.peer.read()
        for opaque in [opaque for opaque in self._waiting if opaque in self.peer.answers]:
            self._waiting.pop(opaque)(self.peer.answers.pop(opaque))
        pushes, self.peer.pushes = self.peer.pushes, []
        for push in pushes:
            if push.code == RequestCode.CHECK_TRANSACTION_STATE:
                self.checked(push)

    def call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, done: Callable[[RemotingCommand], None],
    ) -> None:  # fmt: skip
        """Send a request; `done` gets the answer."""
        self._waiting[self.peer.send(code, fields, body)] = done

    # What happens to it

    async def run(self, count: int) -> None:
        """Do `count` random things."""
        choices = self.choices()
        weights = [weight for weight, _ in choices]
        for action in self.rng.choices([action for _, action in choices], weights, k=count):
            self._lazy = self.rng.random() < 0.7
            self._stalled = [w for w in self.workers.all() if self.rng.random() < 0.3]
            result = action()
            if result is not None:
                await result
            self.raise_failures()
        self._lazy = False

    def choices(self) -> list[tuple[int, Callable[[], Awaitable[None] | None]]]:
        """What happens, and how often."""
        return [
            (3, self.send_plain),
            (5, self.send_delayed),
            (5, self.send_timed),
            (5, self.cancel),
            (6, self.send_half),
            (6, self.decide),
            (4, self.commit_offset),
            (2, self.make_group),
            (2, self.make_topic),
            (12, lambda: self.pump(self.rng.choice((0.1, 0.5, 1.0, 2.0)))),
            (3, self.settle),
            (6, self.lag),
            (1, self.restart),
        ]

    def raise_failures(self) -> None:
        """Raise what went wrong in a task of an application."""
        for failure in self.failures:
            raise failure

    async def lag(self) -> None:
        """Let the log's sync stand still, and it alone, while messages fall due."""
        self._lazy, self._stalled = True, [self.workers.flush]
        await self.pump(self.rng.choice((1.0, 3.0)))

    async def settle(self) -> None:
        """Let the intervals of flushing and of tables pass: what was done before is durable."""
        self._lazy = False
        mark = self.ledger.mark()
        await self.pump(0.6)
        self.ledger.keep(mark, offsets=False)
        if self.rng.random() < 0.5:
            await self.pump(5.5)
            self.ledger.keep(mark)

    def messages(self, topic: str, queues: int) -> list[Any]:
        """All visible messages of a topic, queue by queue."""
        found: list[Any] = []
        store = self.parts.store
        for queue_id in range(queues):
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get_message(topic, queue_id, offset, 32)
                assert result.count, f"{topic}-{queue_id} at {offset}: {result.status}"
                data, position = b"".join(result.views), 0
                while position < len(data):
                    message = decode_message(data, position)
                    found.append(message)
                    position += message.store_size
                offset = result.next_begin_offset
        return found

    def close(self) -> None:
        """Forget the peers; nothing is stopped."""
        with suppress(Exception):
            self.peer.connection.connection_lost(None)
