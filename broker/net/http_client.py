"""The other side of HTTP: one connection to a server, and requests on it, one after the other.

For servers that answer a POST with JSON: at once, or line by line for as long as both sides like.
h11 reads and writes the messages. Whatever the server sends is bounded; what HTTP does not allow,
or too much of it, ends the connection. Every wait is the caller's to bound: a wait that is
cancelled in the middle of an answer leaves a connection that must be aborted. Loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from skylarkmq.broker.base.endpoints import Endpoint
from skylarkmq.common.first_use import on_first_use
from skylarkmq.remoting.tls import ClientTls, TlsFailure

if TYPE_CHECKING:
    import h11
else:  # a process that asks no server over HTTP does not load it
    h11 = on_first_use("h11")

MAX_HEAD_SIZE: Final = 16 * 1024
MAX_BODY_SIZE: Final = 8 * 1024 * 1024
"""Of an answer, or of one line of an answer that goes on."""
READ_SIZE: Final = 64 * 1024
CLOSED: Final = "it closed the connection without a whole answer"
WANTS_CERTIFICATE: Final = ", and never said a word: does it want a client certificate?"

Headers = Sequence[tuple[str, str]]


class HttpFailure(Exception):
    """No whole answer came; the connection is of no use any more."""


class HttpAnswer(NamedTuple):
    """An answer with its whole body."""

    status: int
    body: bytes


class HttpConnection:
    """An open connection.

    Attributes:
        sent: some of the last request may have reached the server.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: ClientTls,
    ) -> None:
        self.sent = False
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._tls = tls
        self._heard = False
        self._has_ended = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_SIZE)

    @property
    def is_usable(self) -> bool:
        """Whether a request may be tried: nobody ended it, and no answer is left half read."""
        return (
            not self._writer.is_closing()
            and not self._reader.at_eof()
            and self._reader.exception() is None
            and self._http.our_state is h11.IDLE
        )

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> HttpAnswer:
        """Send a request and return its answer.

        Raises:
            HttpFailure: the connection ended or the server does not speak HTTP; see `sent`.
        """
        with self._failing():
            status = await self._begin(path, body, headers)
            parts: list[bytes] = []
            size = 0
            async for part in self._parts():
                parts.append(part)
                size += len(part)
                if size > MAX_BODY_SIZE:
                    raise HttpFailure(f"its answer has more than {MAX_BODY_SIZE} bytes")
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
            return HttpAnswer(status, b"".join(parts))

    async def lines(
        self, path: str, body: bytes, headers: Headers = ()
    ) -> AsyncGenerator[HttpAnswer]:
        """Send a request and yield each line of the answer, without its end, with the status.

        Raises:
            HttpFailure: as `post`; also when the answer ends.
        """
        with self._failing():
            status = await self._begin(path, body, headers)
            rest = b""
            async for part in self._parts():
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    yield HttpAnswer(status, line)
                if len(rest) > MAX_BODY_SIZE:
                    raise HttpFailure(f"a line of its answer has more than {MAX_BODY_SIZE} bytes")
            if rest:
                yield HttpAnswer(status, rest)
            raise HttpFailure("it ended its answer")

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def _begin(self, path: str, body: bytes, headers: Headers) -> int:
        """Send the request and return the answer's status."""
        self.sent = False
        head = [
            ("Host", self.endpoint.address),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            *headers,
        ]
        request = h11.Request(method="POST", target=path, headers=head)
        data = self._http.send(request), self._http.send(h11.Data(data=body))
        end = self._http.send(h11.EndOfMessage())
        self.sent = True
        self._writer.write(b"".join(part for part in (*data, end) if part))
        await self._writer.drain()
        while not isinstance(event := await self._next_event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise HttpFailure(CLOSED)
        return event.status_code

    async def _parts(self) -> AsyncGenerator[bytes]:
        """Yield the body's bytes as they come."""
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise HttpFailure(CLOSED)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(READ_SIZE)
            self._heard, self._has_ended = self._heard or bool(data), not data
            self._http.receive_data(data)
        return event

    @contextlib.contextmanager
    def _failing(self) -> Generator[None]:
        try:
            yield
        except h11.RemoteProtocolError as error:
            if not self._has_ended:
                raise HttpFailure(f"what it says is not HTTP: {error}") from error
            silent = self.endpoint.is_tls and not self._heard
            raise HttpFailure(CLOSED + (WANTS_CERTIFICATE if silent else "")) from error
        except ssl.SSLError as error:  # where a server refuses a client's certificate
            raise HttpFailure(_in_words(self._tls.explain(error, ""))) from error
        except OSError as error:
            raise HttpFailure(f"the connection was lost: {error}") from error


async def connect(endpoint: Endpoint, tls: ClientTls) -> HttpConnection:
    """Open a connection; over TLS where the endpoint says so, by the rules of `tls`.

    Raises:
        HttpFailure: no such host, nothing listens there, or TLS failed.
    """
    host, port = endpoint.host, endpoint.port
    name = ""
    try:
        if not endpoint.is_tls:
            reader, writer = await asyncio.open_connection(host, port)
        else:
            name = tls.expected_name(endpoint.address, host)
            reader, writer = await asyncio.open_connection(
                host, port, ssl=tls.context, server_hostname=name
            )
    except TlsFailure as error:
        raise HttpFailure(_in_words(error)) from error
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
        raise HttpFailure(_in_words(tls.explain(error, name))) from error
    except ConnectionRefusedError as error:  # the loop's text names a system call
        raise HttpFailure("connection refused: nothing listens there") from error
    except (OSError, ValueError) as error:
        raise HttpFailure(f"no connection: {error}") from error
    return HttpConnection(endpoint, reader, writer, tls)


def _in_words(failure: TlsFailure) -> str:
    return f"{failure}. {failure.hint}"
