"""A server on loopback that says what a test wants where etcd's JSON gateway would be.

async with scripted_etcd(lambda request: json_answer({"header": header(7)})) as server:
    way = Etcd(EtcdConfig(endpoints=(server.endpoint,)), ...)
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skylarkmq.broker.base.endpoints import Endpoint

CLUSTER = 0xC0FFEE


class Request(NamedTuple):
    """What came: a POST with JSON."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class Answer(NamedTuple):
    """Bytes to send as they are; then the connection goes on, ends, or stays silent for good."""

    data: bytes
    then: str = "goes on"


@dataclass
class ScriptedEtcd:
    """The server; `answer` may be changed at any time."""

    answer: Callable[[Request], Answer]
    endpoint: Endpoint = field(default=Endpoint("127.0.0.1", 0, False))
    requests: list[Request] = field(default_factory=list[Request])
    connection_count: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    @property
    def paths(self) -> list[str]:
        """Which requests came, in order."""
        return [request.path for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        self.connection_count += 1
        self.open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = (line.partition(": ")[::2] for line in head[1:] if line)
                headers = {name.lower(): value for name, value in fields}
                body = await reader.readexactly(int(headers["content-length"]))
                request = Request(head[0].split()[1], json.loads(body), headers)
                self.requests.append(request)
                answer = self.answer(request)
                writer.write(answer.data)
                await writer.drain()
                if answer.then == "ends":
                    break
                if answer.then == "silent":
                    await reader.read()
        self.open.discard(writer)
        writer.close()

    def drop_connections(self) -> None:
        """End all connections, as a restart does."""
        for writer in list(self.open):
            writer.transport.abort()


@asynccontextmanager
async def scripted_etcd(
    answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None
) -> AsyncGenerator[ScriptedEtcd]:
    """Serve on a port of its own."""
    scripted = ScriptedEtcd(answer)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, ssl=tls)
    scripted.endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], tls is not None)
    try:
        yield scripted
    finally:
        scripted.drop_connections()
        server.close()


def header(revision: int, cluster: int = CLUSTER) -> dict[str, str]:
    """Return the header of an answer."""
    return {"cluster_id": str(cluster), "member_id": "7", "revision": str(revision)}


def json_answer(said: object, status: int = 200, then: str = "goes on") -> Answer:
    """Return a whole answer with a length."""
    return raw_answer(json.dumps(said).encode(), status, then)


def raw_answer(body: bytes, status: int = 200, then: str = "goes on") -> Answer:
    """Return a whole answer with these bytes as its body."""
    head = f"HTTP/1.1 {status} Words\r\nContent-Length: {len(body)}\r\n\r\n"
    return Answer(head.encode() + body, then)


def error_answer(status: int, code: int, message: str) -> Answer:
    """Return an error as etcd writes it."""
    return json_answer({"error": message, "code": code, "message": message}, status)


def line_answer(*lines: object, then: str = "silent") -> Answer:
    """Return an answer that goes on, a chunk for each line; bytes are sent as they are."""
    parts = [
        line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
    ]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    end = b"0\r\n\r\n" if then == "goes on" else b""
    return Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end, then)
