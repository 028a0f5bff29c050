"""A proxy on loopback: passes bytes on both ways, and tells a recorder of the commands in them.

What cannot be read as commands, such as TLS, passes unrecorded. With `brokers` the addresses in
routes are replaced by those of further proxies, which are opened as they are needed, so clients
that were told of the name server's proxy alone reach the brokers through proxies, too.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Final

import click

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, encode_frame
from skylarkmq.tools.traffic.recording import Recorder, Side

READ_SIZE: Final = 65_536
PROXIES_MAX: Final = 256
ROUTES: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
_ADDRESS: Final = re.compile(rb':\s*"([^"\s]+:\d{1,5})"')


class Proxy:
    """Listens, and passes on. Loop thread; `async with`."""

    def __init__(
        self,
        recorder: Recorder,
        clock: Clock,
        host: str,
        *,
        tls: ssl.SSLContext | None = None,
        brokers: bool = False,
        limit: int | None = None,
    ) -> None:
        """Take what is the same for all servers behind it.

        Args:
            tls: how to speak to the servers; clients speak plain text.
            limit: commands to record.
        """
        self._recorder = recorder
        self._clock = clock
        self._host = host
        self._tls = tls
        self._brokers = brokers
        self._limit = limit
        self._begun_s = clock.monotonic()
        self._listeners: dict[str, asyncio.Server] = {}
        self._ports: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        self.full = asyncio.Event()
        """Nothing is recorded any more: as much is as was wanted, or `failure` says why."""
        self.failure: OSError | None = None

    @property
    def connections(self) -> int:
        """How many clients connected."""
        return self._connections

    async def listen(self, to: str, port: int = 0) -> str:
        """Stand in front of a server; return where clients connect to.

        Raises:
            click.ClickException: nobody can listen there.
        """
        if to not in self._ports:
            if len(self._ports) >= PROXIES_MAX:
                return to
            self._ports[to] = 0  # so that nobody else opens one meanwhile

            def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.create_task(self._serve(reader, writer, to))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            try:
                server = await asyncio.start_server(serve, self._host, port)
            except OSError as error:
                del self._ports[to]
                raise click.ClickException(
                    f"cannot listen on {self._host}:{port}: {error}"
                ) from error
            self._listeners[to] = server
            self._ports[to] = server.sockets[0].getsockname()[1]
        return f"{self._host}:{self._ports[to]}"

    async def close(self) -> None:
        """Listen no more and close all connections."""
        for server in self._listeners.values():
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str
    ) -> None:
        self._connections += 1
        number = self._connections
        host, _, port = to.rpartition(":")
        server: asyncio.StreamWriter | None = None
        try:
            answers, server = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=self._tls
            )
            ways = [
                asyncio.create_task(self._pass(reader, server, Way(self, number, "client", to))),
                asyncio.create_task(self._pass(answers, writer, Way(self, number, "server", to))),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, ValueError) as error:
            click.echo(f"connection {number} to {to}: {error}", err=True)
        finally:
            self._recorder.closed(number)
            for each in (writer, server):
                if each is not None:
                    each.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        while data := await reader.read(READ_SIZE):
            writer.write(await way.take(data))
            await writer.drain()

    def record(self, number: int, side: Side, to: str, frame: RawFrame) -> int:
        """Record a command; return the code of the request that it is or answers."""
        at_ms = (self._clock.monotonic() - self._begun_s) * 1000
        if self.full.is_set():
            return -1
        try:
            code = self._recorder.add(at_ms, number, side, to, decode_command(frame))
        except OSError as error:  # of the file
            self.failure = error
            self.full.set()
            return -1
        if self._limit is not None and sum(self._recorder.counts.values()) >= self._limit:
            self.full.set()
        return code

    @property
    def changes_routes(self) -> bool:
        """Whether routes lead to proxies."""
        return self._brokers

    async def through_proxies(self, body: bytes) -> bytes:
        """Return a body with routes, each address in it replaced by a proxy's."""
        places = {found[1].decode("latin-1") for found in _ADDRESS.finditer(body)}
        known = {place: await self.listen(place) for place in sorted(places)}

        def replaced(found: re.Match[bytes]) -> bytes:
            address = found[1].decode("latin-1")
            return found[0].replace(found[1], known[address].encode("latin-1"))

        return _ADDRESS.sub(replaced, body)


class Way:
    """One direction of a connection."""

    def __init__(self, proxy: Proxy, number: int, side: Side, to: str) -> None:
        self._proxy = proxy
        self._number = number
        self._side: Side = side
        self._to = to
        self._decoder: FrameDecoder | None = FrameDecoder()
        self._changes = proxy.changes_routes and side == "server"

    async def take(self, data: bytes) -> bytes:
        """Record the commands that end in these bytes; return what to pass on."""
        if self._decoder is None:
            return data
        try:
            frames = self._decoder.feed(data)
            codes = [self._proxy.record(self._number, self._side, self._to, f) for f in frames]
        except WireError as error:
            self._decoder = None
            where = f"connection {self._number} to {self._to}, from the {self._side}"
            click.echo(f"{where}: no commands, passed on unrecorded ({error})", err=True)
            if self._changes:
                raise OSError("what the server sends cannot be read") from error
            return data
        if not self._changes:
            return data
        parts: list[bytes] = []
        for frame, code in zip(frames, codes, strict=True):
            body = frame.body
            if code in ROUTES and body:
                body = await self._proxy.through_proxies(bytes(body))
            parts.append(encode_frame(frame.serialize_type, frame.header, body))
        return b"".join(parts)
