"""The pages for those who watch the broker, on a port and a thread of their own.

    GET /metrics   Prometheus text, or OpenMetrics when Accept asks for it; gzip when accepted
    GET /livez     200 while a restart would be no cure
    GET /readyz    200 when clients may be sent here, else 503; `?verbose` tells each check as JSON
    GET /version   JSON
    /drainz        moves clients away before a stop: `drain_page.py`

The port speaks TLS as the broker's does, by the same keys (`tls.py`).

`/livez` and `/version` are answered by the thread alone, also while the broker's loop waits for a
disk that stalls. `/metrics` and `/readyz` are worked out on the broker's loop; when it does not
answer in time, they are 503 and say since when it is silent. READY_LIMIT_S is below the second that
a Kubernetes probe waits, METRICS_LIMIT_S below the ten of a scrape.

But for /drainz nothing here changes the broker, and nothing touches its disk. A scrape lets the
loop run between two families, so a broker with many topics does not stall while it is watched. One
scrape runs at a time: those who ask meanwhile share the next one of their format, so they cost what
one reader costs, however many they are.

h11 reads one request of a connection, a page answers it, and the connection ends:

    reading     the request must be complete within REQUEST_LIMIT_S of the connection's begin
    answering   the page has limits of its own
    writing     the peer must read the answer within WRITE_LIMIT_S

Every answer says `Connection: close`: a scrape or a probe costs a connection, and none is left open
between two of them. Whatever a peer sends, it costs its own connection only: h11 refuses a
malformed request or a head above MAX_HEAD_SIZE, and a body above MAX_BODY_SIZE (no page here wants
a body) ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import zlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import msgspec

from skylarkmq import __version__
from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.health import HealthChecks, run_checks
from skylarkmq.broker.base.process import FILES_OF_PAGES
from skylarkmq.broker.config.tls_settings import ClientAuth, TlsConfig
from skylarkmq.broker.net.addresses import accept_from, bind, refused
from skylarkmq.broker.net.loop_thread import LoopThread
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.net.tls_context import server_contexts
from skylarkmq.broker.pages import drain_page
from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.remoting.waiting import within

if TYPE_CHECKING:
    import email.utils as email_utils

    import h11
    import prometheus_client.exposition as text_formats
    from prometheus_client import CollectorRegistry

    from skylarkmq.broker.draining import draining
else:  # loaded on the thread of the pages, by the first connection and by the first scrape
    email_utils = on_first_use("email.utils")
    h11 = on_first_use("h11")
    text_formats = on_first_use("prometheus_client.exposition")

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = FILES_OF_PAGES
MAX_HEAD_SIZE: Final = 16 * 1024
MAX_BODY_SIZE: Final = 64 * 1024
READ_SIZE: Final = 16 * 1024
REQUEST_LIMIT_S: Final = 10.0
WRITE_LIMIT_S: Final = 10.0
READY_LIMIT_S: Final = 0.8
METRICS_LIMIT_S: Final = 5.0
UNCERTIFIED: Final = ("/livez", "/readyz", drain_page.PATH)
"""Pages for those who have no certificate: probes, and one that asks for something else."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
OPENMETRICS_END: Final = b"# EOF\n"
GZIP_WBITS: Final = 31  # zlib's way to say: with a gzip header
GZIP_LEVEL: Final = 1
_HEAD: Final = re.compile(rb"\A(?:# [^\n]*\n)+")

Encoder = Callable[[Any], bytes]  # of prometheus-client: takes what has a `collect()`
T = TypeVar("T")


class HttpRequest(NamedTuple):
    """A request whose head is sound; the body, if any, was thrown away."""

    method: str
    path: str
    query: str  # what follows `?`, as sent
    headers: dict[str, str]  # lower-case names; the first of equal ones
    over_tls: bool = False
    is_known: bool = False  # by a certificate of a trusted issuer
    peer: str = ""  # its address; empty for a socket that another process of ours has handed over


class HttpResponse(NamedTuple):
    """An answer with its whole body."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Sequence[tuple[str, str]] = ()


Page = Callable[[HttpRequest], Awaitable[HttpResponse]]


class PeerLeftError(Exception):
    """The connection ended before its request was complete."""


async def exchange(reader: StreamReader, writer: StreamWriter, respond: Page, clock: Clock) -> None:
    """Answer the request of one connection, and end the connection.

    A limit that is reached aborts the connection, which ends every wait for the peer.
    """
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_SIZE)
    abort = writer.transport.abort
    limit = clock.call_at(clock.monotonic() + REQUEST_LIMIT_S, abort)
    try:
        try:
            request = await _read_request(http, reader)
        except h11.RemoteProtocolError as error:
            response = HttpResponse(error.error_status_hint, f"{error}\n".encode())
            with_body = True
        else:
            limit.cancel()
            request = request._replace(
                over_tls=writer.get_extra_info("ssl_object") is not None,
                is_known=writer.get_extra_info("peercert") is not None,
                peer=_host_of(writer.get_extra_info("peername")),
            )
            response = await _answer(respond, request)
            with_body = request.method != "HEAD"
        limit.cancel()
        limit = clock.call_at(clock.monotonic() + WRITE_LIMIT_S, abort)
        if http.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not writer.is_closing():
            writer.write(_encoded(http, response, clock.now_ms(), with_body=with_body))
        writer.close()
        await writer.wait_closed()
    except (PeerLeftError, ConnectionError):
        pass
    finally:
        limit.cancel()
        abort()


async def _read_request(http: h11.Connection, reader: StreamReader) -> HttpRequest:
    head: h11.Request | None = None
    body_size = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_SIZE))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body_size += len(event.data)
            if body_size > MAX_BODY_SIZE:
                raise h11.RemoteProtocolError(
                    "no page here takes a body",
                    error_status_hint=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return parsed(head)
        else:
            raise PeerLeftError


def _host_of(peer: object) -> str:
    """Return the address of a peer; a local socket has a path, and the one of a pair none."""
    return cast("tuple[str, int]", peer)[0] if isinstance(peer, tuple) else ""


async def _answer(respond: Page, request: HttpRequest) -> HttpResponse:
    try:
        return await respond(request)
    except Exception:
        log.exception("an HTTP page failed; its reader gets a 500")
        return HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"failed, see the log\n")


def _encoded(
    http: h11.Connection, response: HttpResponse, now_ms: int, *, with_body: bool
) -> bytes:
    headers = [
        ("Date", email_utils.formatdate(now_ms / 1000, usegmt=True)),
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *response.headers,
    ]
    status = HTTPStatus(response.status)
    events: list[h11.Event] = [
        h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
    ]
    if with_body:
        events.append(h11.Data(data=response.body))
    events.append(h11.EndOfMessage())
    return b"".join(http.send(event) or b"" for event in events)


def parsed(request: h11.Request) -> HttpRequest:
    """Return what a page needs of a request."""
    target = request.target.decode("ascii")
    if target.startswith("http://"):  # the absolute form, which a server must understand
        target = "/" + target[len("http://") :].partition("/")[2]
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for name, value in request.headers:
        headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
    return HttpRequest(request.method.decode("ascii"), path, query, headers)


class PageServer:
    """Answers GET requests for pages. Every method runs on the loop that `listen` ran on.

    Args:
        pages: by path; each is awaited without a limit of time.
        tls: its keys of TLS; None: plain text alone.
        methods: of pages that are not for reading alone.

    Attributes:
        tls: what speaks TLS here, while it listens.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        clock: Clock,
        tls: TlsConfig | None,
        methods: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.tls: TlsGate | None = None
        self._methods = methods or {}
        self._pages = pages
        self._clock = clock
        self._tls_config = tls
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # the oldest first

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen and return the address that was bound; port 0 picks a free one.

        Raises:
            OSError: the address is not available.
            ConfigError: a file of TLS cannot be used.
        """
        config = self._tls_config
        if config is not None and config.tls_server_mode != "disabled":
            # Probes have no certificates of their own; `respond` asks for one where it matters.
            wanted = config.tls_server_need_client_auth
            auth: ClientAuth = "optional" if wanted == "require" else wanted
            contexts = server_contexts(config, self._clock, client_auth=auth, quiet=True)
            contexts.load()
            contexts.start()
            self.tls = TlsGate(config.tls_server_mode, contexts, self._clock)
        try:
            bound = bind(host, port)
            with contextlib.ExitStack() as undo:
                undo.callback(bound.close)
                self._server = await accept_from(bound, self._make_protocol)
                undo.pop_all()
        except socket.gaierror:
            raise
        except OSError as error:  # asyncio's own text repeats the address
            raise refused(error, host, port, "metricsPromExporterPort") from error
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection, in plain text, that was made without the listener."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._make_plain_protocol, connection)

    def close(self) -> None:
        """Listen no more; what is open ends with the loop."""
        if self._server is not None:
            self._server.close()
        if self.tls is not None:
            self.tls.contexts.stop()

    def _make_plain_protocol(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(StreamReader(), self._connected)

    def _make_protocol(self) -> asyncio.Protocol:
        protocol = self._make_plain_protocol()
        return protocol if self.tls is None else self.tls.before(protocol)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin the exchange of a new connection; the oldest one makes room for it."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]  # its task ends later: others may come before that
            oldest.transport.abort()
        work = exchange(reader, writer, self.respond, self._clock)
        task = self._open[writer] = asyncio.get_running_loop().create_task(work, name="http")
        task.add_done_callback(lambda _: self._open.pop(writer, None))

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Answer one request.

        Where clients must have certificates, only probes and /drainz are answered over TLS without.
        """
        config = self._tls_config
        if (
            config is not None
            and config.tls_server_need_client_auth == "require"
            and request.over_tls
            and not request.is_known
            and request.path not in UNCERTIFIED
        ):
            why = b"tls.server.need.client.auth is require: come with a client certificate\n"
            return HttpResponse(HTTPStatus.FORBIDDEN, why)
        page = self._pages.get(request.path)
        if page is None:
            known = " ".join(self._pages)
            return HttpResponse(HTTPStatus.NOT_FOUND, f"no such page; there is {known}\n".encode())
        methods = self._methods.get(request.path, ("GET", "HEAD"))
        if request.method not in methods:
            return HttpResponse(
                HTTPStatus.METHOD_NOT_ALLOWED,
                b"read only\n" if "POST" not in methods else b"no such method\n",
                headers=[("Allow", ", ".join(methods))],
            )
        return await page(request)


class _Scrapes:
    """Runs one scrape at a time. Loop of the pages."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[tuple[str, bool], asyncio.Task[bytes | None]] = {}

    def begun(
        self, form: tuple[str, bool], scrape: Callable[[], Awaitable[bytes]]
    ) -> asyncio.Task[bytes | None]:
        """Return the next scrape of a form, which begins when those before it have ended.

        Its result is None where the broker's loop did not answer.
        """
        task = self._next.get(form)
        if task is None:
            work = self._run(form, scrape)
            task = self._next[form] = asyncio.get_running_loop().create_task(work, name="scrape")
        return task

    def has_next(self, task: asyncio.Task[bytes | None]) -> bool:
        """Return whether a scrape has not begun."""
        return task in self._next.values()

    async def _run(
        self, form: tuple[str, bool], scrape: Callable[[], Awaitable[bytes]]
    ) -> bytes | None:
        async with self._turn:
            del self._next[form]  # who asks from now on gets figures of a later moment
            with contextlib.suppress(TimeoutError):
                return await scrape()
            return None


class MetricsServer:
    """Serves a broker's pages. `start` and `stop` belong to its loop, all else to the thread.

    Args:
        address: host and port to listen on, port 0 picks a free one; None: only what `adopt` gets
            is served.
        make_registry: makes what a scrape collects; called on the thread, by the first scrape.
        silence_s: how long the broker's loop has run no timer, s; called on the thread.
        make_clock: makes the clock of the thread's loop; a test hands in one of its own.
        tls: its keys of TLS; None: plain text alone.
        prepare: what has to be measured for a scrape; called on the broker's loop before it.
        drain: what /drainz acts on; None: there is no such page.
    """

    def __init__(
        self,
        address: tuple[str, int] | None,
        make_registry: Callable[[], CollectorRegistry],
        checks: HealthChecks,
        silence_s: Callable[[], float],
        make_clock: Callable[[asyncio.AbstractEventLoop], Clock] = SystemClock,
        tls: TlsConfig | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        drain: drain_page.Find | None = None,
    ) -> None:
        self._address = address
        self._make_registry = make_registry
        self._registry: CollectorRegistry | None = None
        self._checks = checks
        self._silence_s = silence_s
        self._tls_config = tls
        self._make_clock = make_clock
        self._prepare = prepare
        self._drain = drain
        self._scrapes = _Scrapes()
        self._thread: LoopThread | None = None
        self._pages: PageServer | None = None

    @property
    def tls(self) -> TlsGate | None:
        """What speaks TLS here, while it listens."""
        return None if self._pages is None else self._pages.tls

    async def start(self) -> tuple[str, int] | None:
        """Serve and return the address that was bound.

        Raises:
            OSError: the address is not available.
            ConfigError: a file of TLS cannot be used.
        """
        self._broker_loop = asyncio.get_running_loop()
        self._thread = LoopThread("skylarkmq-http")
        self._clock = self._make_clock(self._thread.loop)
        pages = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/version": version_page,
        }
        if self._drain is not None:
            pages[drain_page.PATH] = partial(self._drainz, self._drain)
        methods = {drain_page.PATH: drain_page.METHODS}
        self._pages = PageServer(pages, self._clock, self._tls_config, methods)
        if self._address is None:
            return None
        try:
            return await self._thread.call(self._pages.listen(*self._address))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening and cut what is open; may be called twice."""
        if self._thread is not None and self._pages is not None:
            thread, self._thread = self._thread, None
            await thread.call(self._closed(self._pages))
            await thread.stop()

    async def _closed(self, pages: PageServer) -> None:
        pages.close()

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection, in plain text, that was made without the listener. Any thread."""
        thread, pages = self._thread, self._pages
        if thread is None or pages is None:
            connection.close()
        else:
            asyncio.run_coroutine_threadsafe(pages.adopt(connection), thread.loop)

    async def _ask_loop(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Return what `work` answers on the broker's loop.

        Raises:
            TimeoutError: the loop did not answer within `limit_s`, or has not for so long already.
        """
        if self._silence_s() >= limit_s:  # requests that are given up must not pile up there
            work.close()
            raise TimeoutError
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._broker_loop))
        return await within(self._clock, limit_s, answer)

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        if self._registry is None:
            self._registry = self._make_registry()
        encode, content_type = choose_format(request.headers.get("accept", ""))
        zipped = text_formats.gzip_accepted(request.headers.get("accept-encoding", ""))
        scrape = partial(self._scrape, self._registry, encode, zipped=zipped)
        shared = self._scrapes.begun((content_type, zipped), scrape)
        body = None
        with contextlib.suppress(TimeoutError):
            body = await within(self._clock, METRICS_LIMIT_S, asyncio.shield(shared))
        if body is None:
            why = self._silent(METRICS_LIMIT_S)
            if self._scrapes.has_next(shared):
                why = f"scrapes before this one took {METRICS_LIMIT_S:.1f} s; scrape less often"
            return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode())
        headers = [("Vary", "Accept, Accept-Encoding")]
        if zipped:
            headers.append(("Content-Encoding", "gzip"))
        return HttpResponse(HTTPStatus.OK, body, content_type, headers)

    async def _scrape(self, registry: CollectorRegistry, encode: Encoder, *, zipped: bool) -> bytes:
        async def scrape() -> bytes:
            if self._prepare is not None:
                await self._prepare()
            return await exposition(registry, encode, zipped=zipped)

        return await self._ask_loop(scrape(), METRICS_LIMIT_S)

    async def _livez(self, request: HttpRequest) -> HttpResponse:
        return verdict(request, run_checks(self._checks.live), "live")

    async def _readyz(self, request: HttpRequest) -> HttpResponse:
        try:
            reasons = await self._ask_loop(self._readiness(), READY_LIMIT_S)
        except TimeoutError:
            reasons = {"loop": self._silent(READY_LIMIT_S)}
        return verdict(request, reasons, "ready")

    async def _readiness(self) -> dict[str, str]:
        return run_checks(self._checks.ready)

    async def _drainz(self, find: drain_page.Find, request: HttpRequest) -> HttpResponse:
        async def ask(asked: drain_page.DrainRequest) -> draining.DrainState:
            return await self._ask_loop(perform(asked), READY_LIMIT_S)

        async def perform(asked: drain_page.DrainRequest) -> draining.DrainState:
            drain = find()
            if drain is None:
                raise TimeoutError
            return await drain_page.perform(asked, drain)

        try:
            status, body = drain_page.refusal(request) or await drain_page.answer(
                drain_page.read_request(request), ask, self._clock
            )
        except ValueError as error:
            return HttpResponse(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        except TimeoutError:
            why = b"the broker has not started yet, or its event loop does not answer\n"
            return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, why)
        return HttpResponse(status, body, JSON)

    def _silent(self, waited_s: float) -> str:
        silent_s = max(waited_s, self._silence_s())
        return f"the broker's event loop has not answered for {silent_s:.1f} s"


async def version_page(_: HttpRequest) -> HttpResponse:
    """Answer what runs here."""
    return _json(HTTPStatus.OK, {"name": "skylarkmq", "version": __version__})


def choose_format(accept: str) -> tuple[Encoder, str]:
    """Return the encoder and the content type for an Accept header, whatever is in it."""
    if accept.isascii():  # what it asks for is repeated in a header
        with contextlib.suppress(ValueError, TypeError):  # a version that is no number
            return text_formats.choose_encoder(accept)
    return text_formats.generate_latest, text_formats.CONTENT_TYPE_PLAIN_0_0_4


async def exposition(registry: CollectorRegistry, encode: Encoder, *, zipped: bool) -> bytes:
    """Return the text of all families, compressed if asked; the loop runs in between.

    A family may come in parts, one after the other.
    """
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS) if zipped else None
    parts: list[bytes] = []
    ends_with_mark = False
    name = ""
    for family in registry.collect():
        text = encode(SimpleNamespace(collect=partial(iter, (family,))))
        ends_with_mark = ends_with_mark or text.endswith(OPENMETRICS_END)
        text = text.removesuffix(OPENMETRICS_END)
        if family.name == name:  # another part of the same family
            text = _HEAD.sub(b"", text)
        name = family.name
        parts.append(packer.compress(text) if packer else text)
        await asyncio.sleep(0)
    end = OPENMETRICS_END if ends_with_mark else b""
    parts.append(packer.compress(end) + packer.flush() if packer else end)
    return b"".join(parts)


def verdict(request: HttpRequest, reasons: Mapping[str, str], word: str) -> HttpResponse:
    """Answer a probe: 200 when there is no reason against `word`, else 503 with the reasons."""
    well = not any(reasons.values())
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    if "verbose" in (part.partition("=")[0] for part in request.query.split("&")):
        shown = {name: {"ok": not why, "why": why} for name, why in reasons.items()}
        return _json(status, {"status": word if well else f"not {word}", "checks": shown})
    lines = [word] if well else [f"not {word}"]
    lines += [f"{name}: {why}" for name, why in reasons.items() if why]
    return HttpResponse(status, "\n".join([*lines, ""]).encode())


def _json(status: int, content: object) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(content) + b"\n", JSON)
