"""Replicas of which only the links are real, and the sockets between them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.replication.failover.replica_connection import ReplicaConnection
from skylarkmq.broker.replication.failover.replica_events import (
    Confirm,
    Hello,
    Message,
    Part,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_links import LinkOptions, ReplicaLinks
from skylarkmq.broker.replication.failover.replica_protocol import (
    End,
    Greeting,
    Identity,
    ReplicaDecoder,
    encode_greeting,
)
from skylarkmq.broker.replication.failover.terms import CommonPoint, Lineage, TermStart
from tests.store.support import LOG_SIZE, StoreRig
from tests.support.manual_clock import ManualClock, settle
from tests.support.patience import until

TERM = 3
SILENCE_S = 4.0
PART_SIZE = 1000
ROWS = (TermStart(1, 0),)


def identity(replica: str, **changes: Any) -> Identity:
    values: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "broker-a",
        "replica": replica,
        "log_file_size": LOG_SIZE,
        **changes,
    }
    return Identity(**values)


def hello(session: int, end: int = 0, lineage: Lineage = ()) -> Hello:
    return Hello(TERM, session, end, lineage)


class Replica(StoreRig):
    """Links over a store. Everything moves when `Replicas.see` looks.

    Attributes:
        lineage: that it welcomes followers with, if it answers.
        answers: as a master it welcomes every hello, and feeds who confirms; as a follower it
            confirms, and stores what comes.
    """

    def __init__(self, name: str, links: dict[str, Any], **config: Any) -> None:
        super().__init__(**config)
        self.name = name
        self.heard: list[tuple[str, Message]] = []
        self.lost: list[str] = []
        self.words: list[object] = []  # messages, and "lost", in their order
        self.link_clock = ManualClock()
        self.lineage: Lineage = ROWS
        self.answers = False
        self._begins: dict[str, int] = {}
        options: dict[str, Any] = {
            "allowed": None,
            "only_local": False,
            "silence_s": SILENCE_S,
            "part_size": PART_SIZE,
        }
        who = {key: links.pop(key) for key in list(links) if key not in options}
        self.links = ReplicaLinks(
            identity(**{"replica": name, **who}),
            self.link_clock,
            LinkOptions(**{**options, **links}),
            self._hear,
            self._lose,
        )
        self.refused: list[tuple[str, str, str]] = []  # kind, replica, why
        self._refuse, self.links.refused = self.links.refused, self._refused
        self.address = ""
        self.start()
        self.links.attach(self.store)

    async def serve(self) -> Replica:
        bound = bind("127.0.0.1", 0)
        await self.links.serve(bound)
        self.address = f"127.0.0.1:{port_of(bound)}"
        return self

    def put_many(self, count: int) -> None:
        body = b"0123456789" * 90
        for number in range(count):
            self.put("T", number % 4, body[: 1 + 97 * number % 900])
            self.workers.run_all()

    @property
    def end(self) -> int:
        return self.store.commit_log.stored_offset

    def log_bytes(self) -> bytes:
        log = self.store.commit_log
        data = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
        return data[: log.stored_offset - log.min_offset]

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in self.heard]

    @property
    def parts(self) -> list[Part]:
        return [each for each in self.messages if isinstance(each, Part)]

    def data(self) -> bytes:
        """What came as parts, which must follow each other."""
        place = self.parts[0].offset if self.parts else 0
        for part in self.parts:
            assert part.offset == place
            place += len(part.data)
        return b"".join(bytes(part.data) for part in self.parts)  # type: ignore[arg-type]

    def _refused(
        self, connection: ReplicaConnection, kind: str, why: str, replica: str = ""
    ) -> None:
        self.refused.append((kind, replica or connection.replica, why))
        self._refuse(connection, kind, why, replica)

    def _lose(self, replica: str, was_master: bool) -> None:
        self.lost.append(replica)
        self.words.append("lost")

    def _hear(self, sender: str, message: Message) -> None:
        self.heard.append((sender, message))
        self.words.append(message)
        if not self.answers:
            return
        match message:
            case Hello(term, session, end):
                point = CommonPoint(1, end) if end else None
                self._begins[sender] = end
                self.links.send(sender, Welcome(term, session, point, 0, self.lineage))
            case Welcome(term, session):
                self.links.send(sender, Confirm(term, session, self.end))
            case Confirm(term, session) if sender in self._begins:
                begin = self._begins.pop(sender)
                self.links.open_stream(sender, term, session, begin, self.lineage)
            case Part(_, _, offset, data):
                self.workers.run_all()
                self.store.take_records(offset, bytes(data))  # type: ignore[arg-type]
            case _:
                pass


class Replicas:
    """Some replicas, and the loop's patience with them."""

    def __init__(self) -> None:
        self.all: list[Replica] = []

    async def add(self, name: str, links: dict[str, Any] | None = None, **config: Any) -> Replica:
        self.all.append(Replica(name, dict(links or {}), **config))
        return await self.all[-1].serve()

    def turn(self, seconds: float = 0.0) -> None:
        for replica in self.all:
            replica.clock.advance(seconds)
            replica.link_clock.advance(seconds)
            replica.workers.run_all()

    async def pass_time(self, seconds: float) -> None:
        """Let time go by on all clocks, and the sockets do their part."""
        for _ in range(10):
            self.turn(seconds / 10)
            await settle()

    async def see(self, met: Callable[[], object], what: str = "it") -> None:
        def look() -> object:
            self.turn()
            return met()

        await until(look, what)

    async def quiet(self) -> None:
        """Wait until what was sent has surely come, as far as a loopback can be trusted."""
        for _ in range(10):
            self.turn()
            await asyncio.sleep(0.002)


@asynccontextmanager
async def replicas() -> AsyncGenerator[Replicas]:
    """Replicas whose links have all ended afterwards, with all their timers."""
    some = Replicas()
    try:
        yield some
    finally:
        for replica in some.all:
            replica.links.abort()
        for replica in some.all:
            await replica.links.stop()
            assert not replica.links.followers
            assert replica.links.master is None
            assert replica.link_clock.pending_count == 0


class RawFollower:
    """A follower of which every byte is the test's, and that reads when it is told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.received = 0
        self.ended = False
        self._socket = socket.socket()
        self._decoder = ReplicaDecoder(End.MASTER)

    async def connect(self, address: str, receive_size: int = 0) -> RawFollower:
        if receive_size:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = address.rsplit(":", 1)
        await asyncio.get_running_loop().sock_connect(self._socket, (host, int(port)))
        return self

    async def say(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError:
            self.ended = True

    async def greet(self, session: int, replica: str = "raw") -> None:
        await self.say(encode_greeting(identity(replica), hello(session)))

    def read(self, size: int = 1 << 16) -> None:
        """Take what is there; at most so many bytes."""
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return
        except OSError:
            self.ended = True
            return
        self.ended = not data
        self.received += len(data)
        for message in self._decoder.feed(data) if data else []:
            assert not isinstance(message, Greeting)
            self.messages.append(message)

    def is_over(self) -> bool:
        """Read, and return whether the other end has closed it."""
        if not self.ended:
            self.read()
        return self.ended

    def leave(self) -> None:
        self._socket.close()
