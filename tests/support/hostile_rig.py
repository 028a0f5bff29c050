"""A whole broker and name server in the test's hands, for bytes that no honest peer sends.

    rig = HostileRig()
    answers = rig.feed(data)      # a fresh peer writes `data` and leaves; what it was told
    rig.check()                   # nothing broke: no defect was logged, the canary sings

All real but for sockets, threads, disk and clock. `census` counts what every container of the
broker's state holds, so that a table nobody thought of is seen to grow as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, cast

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.components import BrokerParts, make_server
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.namesrv.processor import NamesrvProcessor
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Handler
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import RemotingServer
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.record import decode_messages
from tests.store.support import HOST, store_config
from tests.support.crash_disk import CrashDisk
from tests.support.fake_transport import Transport
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import pull_fields, send_fields
from tests.support.workers import manual_store_workers

TURNS = 4  # of the loop behind each read, so that answers which wait for it come
LOG_SIZE = 1 << 20
OWN = ("skylarkmq.", "broker.", "store.", "protocol.")
CANARY = "canary"


class Defects(logging.Handler):
    """Keeps what is logged as an error: a handler that raised what it should not."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class HostileRig:
    """One broker with a name server; use as a context."""

    def __init__(self, **settings: Any) -> None:
        self.disk = CrashDisk()
        self.disk.used_percent = 10
        self.clock = ManualClock()
        self.workers = manual_store_workers()
        config = BrokerConfig(
            store=store_config(
                self.disk.root,
                mapped_file_size_commit_log=LOG_SIZE,
                mapped_file_size_consume_queue=20_000,
                max_index_num=20_000,
            ),
            broker_name="broker-a",
            enable_property_filter=True,
            **settings,
        )
        self.parts = BrokerParts(config, self.disk, self.clock, self.workers.workers, 1 << 33)
        self.routes = RouteInfoManager(self.clock)
        self.handled = 0
        self._rounds = 0
        self._defects = Defects()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> HostileRig:
        self.parts.store.load()
        self.parts.load_tables()
        self.parts.store.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.close()

    async def _stop(self) -> None:
        """End what waits for a clock that nobody moves any more."""
        waiting = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _start(self) -> None:
        self.server, self.router = make_server(self.parts, self.clock, HOST, Random(1))
        stats = BrokerStats()
        handlers = NamesrvProcessor(self.routes).handlers()
        self.namesrv_router = Router(handlers, stats, self.clock)
        self._namesrv = RemotingServer(self.namesrv_router, self.clock, stats)
        self.parts.start_services()

    def _run(self, coroutine: Any) -> None:
        """Run to the end, and note defects that are logged meanwhile: of this rig, not another."""
        logging.getLogger().addHandler(self._defects)
        try:
            self._loop.run_until_complete(coroutine)
        finally:
            logging.getLogger().removeHandler(self._defects)

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The codes of the broker but for those of sends."""
        return self.router.handlers

    # Peers

    def feed(
        self, data: bytes, *, part: int = 1 << 18, wait_s: int = 0, namesrv: bool = False
    ) -> list[RemotingCommand]:
        """Let a fresh peer write `data`, in parts of a size; return what it is told in a time."""
        answers: list[RemotingCommand] = []
        self._run(self._feed(data, part, wait_s, namesrv, answers))
        self.handled += 1
        return answers

    async def _feed(
        self, data: bytes, part: int, wait_s: int, namesrv: bool, answers: list[RemotingCommand]
    ) -> None:
        transport = Transport()
        server = self._namesrv if namesrv else self.server
        connection = Connection(self.namesrv_router if namesrv else self.router, server)
        transport.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, transport))
        for start in range(0, len(data), part):
            if not transport.ended:
                connection.data_received(data[start : start + part])
        await self._settle()
        for step_s in (0.001, *[1.0] * wait_s):
            await self._advance(step_s)
        connection.connection_lost(None)
        await self._settle()
        decoder = FrameDecoder()
        for written in transport.writes:
            answers += [decode_command(frame) for frame in decoder.feed(bytes(written))]
        assert decoder.buffered_size == 0, "an answer was cut"

    def advance(self, seconds: float) -> None:
        """Let time go by, and what is due happen."""
        self._run(self._advance(seconds))

    async def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(TURNS):
            self.workers.run_all()
            await asyncio.sleep(0)

    def exchange(self, *requests: RemotingCommand) -> dict[int, RemotingCommand]:
        """Feed sound requests in one read; their answers by opaque, of which there is one each."""
        told = self.feed(b"".join(map(encode_command, requests)))
        answers = [answer for answer in told if answer.is_response]
        twice = [opaque for opaque, n in Counter(a.opaque for a in answers).items() if n > 1]
        assert not twice, f"answered twice: {twice}"
        return {answer.opaque: answer for answer in answers}

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        """The answer to one sound request of a peer of its own."""
        request = RemotingCommand.request(code, dict(fields), body, opaque=1)
        return self.exchange(request)[1]

    # What must hold

    def check(self) -> None:
        """Nothing was logged as a defect, and an honest client is served."""
        self.check_defects()
        body = b"canary %d" % self._rounds
        sent = self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(CANARY), body)
        assert sent.code == 0, sent.remark
        pull = pull_fields(CANARY, 0, int(sent.ext_fields["queueOffset"]), group=CANARY)
        pulled = self.ask(RequestCode.PULL_MESSAGE, pull)
        found = [message.body for message in decode_messages(pulled.body)]
        assert found == [body], (pulled.code, pulled.remark, found)
        self._rounds += 1

    def check_defects(self) -> None:
        """Nothing was logged as a defect."""
        shown = [logging.Formatter().format(record) for record in self._defects.records]
        assert not shown, shown[0]

    def census(self) -> dict[str, int]:
        """How many things each container holds that can be reached from the broker's state."""
        return dict(_count(("state", self.parts), ("server", self.server), ("ns", self.routes)))


def _count(*roots: tuple[str, object]) -> Iterator[tuple[str, int]]:
    """Walk attributes of our own objects and plain containers; one figure for each place."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    ahead: deque[tuple[str, object]] = deque(roots)
    while ahead:
        path, value = ahead.popleft()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, type)):
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, set, deque, tuple, frozenset, bytearray)):
            sizes[path] = sizes.get(path, 0) + len(value)
            items = value.values() if isinstance(value, dict) else value
            if not isinstance(value, bytearray):
                ahead.extend((f"{path}[]", item) for item in list(items))
        elif type(value).__module__.startswith(OWN):
            ahead.extend((f"{path}.{name}", item) for name, item in _attributes(value))
    yield from sizes.items()


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    for name in (*names, *getattr(value, "__dict__", ())):
        if hasattr(value, name) and name not in ("__weakref__", "__dict__"):
            yield name, getattr(value, name)
