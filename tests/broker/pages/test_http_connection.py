"""The HTTP connection against scripted peers, without a socket."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.pages.http import (
    MAX_BODY_SIZE,
    MAX_HEAD_SIZE,
    REQUEST_LIMIT_S,
    WRITE_LIMIT_S,
    HttpRequest,
    HttpResponse,
    exchange,
)
from tests.support.manual_clock import ManualClock, settle

GET = b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """Remembers what was written; the test plays the peer."""

    def __init__(self, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.reads = True  # the peer; what it does not read, `close` waits for
        self.closed = False
        self.aborted = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        assert not self.is_closing()
        self.written += data

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        if not self.is_closing():
            self.closed = True
            if self.reads:
                self.protocol.connection_lost(None)

    def abort(self) -> None:
        if not self.aborted and not (self.closed and self.reads):
            self.aborted = True
            self.protocol.connection_lost(None)


class Peer:
    """A connection with its exchange and its pages."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.requests: list[HttpRequest] = []
        reader = asyncio.StreamReader()
        self.protocol = asyncio.StreamReaderProtocol(reader)
        self.transport = FakeTransport(self.protocol)
        self.protocol.connection_made(self.transport)
        loop = asyncio.get_running_loop()
        writer = asyncio.StreamWriter(self.transport, self.protocol, reader, loop)
        work = exchange(reader, writer, self.respond, self.clock)
        self.exchange = loop.create_task(work)

    async def respond(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        if request.path == "/broken":
            raise RuntimeError("boom")
        return HttpResponse(200, b"content\n")

    async def says(self, data: bytes) -> bytes:
        """Send bytes, return what comes back."""
        self.transport.written = b""
        if not self.transport.is_closing():
            self.protocol.data_received(data)
        await settle()
        return self.transport.written

    def ended(self) -> bool:
        """Whether the exchange is over, without an error and with nothing left behind."""
        return (
            self.exchange.done()
            and self.exchange.exception() is None
            and self.transport.is_closing()
            and self.clock.pending_count == 0
        )


async def test_answer_to_a_get() -> None:
    peer = Peer()
    assert await peer.says(GET) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: 8\r\n"
        b"Cache-Control: no-store\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"content\n"
    )
    assert peer.requests == [HttpRequest("GET", "/page", "", {"host": "here"})]
    assert peer.ended()


async def test_a_request_byte_by_byte() -> None:
    peer = Peer()
    for place in range(len(GET) - 1):
        assert await peer.says(GET[place : place + 1]) == b""
    assert (await peer.says(GET[-1:])).endswith(b"\r\n\r\ncontent\n")


async def test_a_connection_is_for_one_request() -> None:
    peer = Peer()
    answer = await peer.says(GET + GET.replace(b"/page", b"/second?a=1"))
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert [request.path for request in peer.requests] == ["/page"]
    assert peer.ended()


async def test_head_has_no_body() -> None:
    peer = Peer()
    answer = await peer.says(GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 8\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_the_absolute_form_of_a_target() -> None:
    peer = Peer()
    await peer.says(b"GET http://here:5557/page?x HTTP/1.1\r\nHost: here\r\n\r\n")
    assert peer.requests[0][:3] == ("GET", "/page", "x")


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /page HTTP/1.0\r\n\r\n",
        b"GET /page HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
    ],
)
async def test_a_peer_that_wants_one_answer(request_head: bytes) -> None:
    peer = Peer()
    assert (await peer.says(request_head)).endswith(b"content\n")
    assert peer.ended()


async def test_a_peer_that_ends_its_side_still_gets_its_answer() -> None:
    peer = Peer()
    peer.protocol.data_received(GET)
    assert peer.protocol.eof_received() is True
    await settle()
    assert peer.transport.written.endswith(b"content\n")
    assert peer.ended()


@pytest.mark.parametrize("sent", [b"", GET[:20]])
async def test_a_peer_that_leaves_before_its_request_is_whole(sent: bytes) -> None:
    peer = Peer()
    await peer.says(sent)
    peer.protocol.eof_received()
    await settle()
    assert peer.requests == []
    assert peer.ended()


async def test_a_page_that_fails_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    answer = await peer.says(GET.replace(b"/page", b"/broken"))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"boom" not in answer
    assert "boom" in caplog.text
    assert peer.ended()


MALFORMED = {
    "no request": b"\x00\x00\x00\x10\x00\x00\x00\x08not http\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bad header name": b"GET / HTTP/1.1\r\nHost: a\r\nb c: d\r\n\r\n",
    "folded first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "nul in a value": b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n",
    "bytes above ASCII in the target": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "negative length": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "bad chunk": b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "unknown coding": b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    "head too large": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MAX_HEAD_SIZE,
    "body too large": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n"
    + b"x" * (MAX_BODY_SIZE + 1),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_ends_its_connection(name: str) -> None:
    peer = Peer()
    answer = await peer.says(MALFORMED[name])
    assert answer[:11] in (b"HTTP/1.1 40", b"HTTP/1.1 41", b"HTTP/1.1 43", b"HTTP/1.1 50")
    assert peer.requests == []
    assert peer.ended()


async def test_a_body_is_read_and_thrown_away() -> None:
    peer = Peer()
    head = b"GET /page HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
    assert await peer.says(head + b"12") == b""
    assert (await peer.says(b"345")).endswith(b"content\n")


async def test_a_silent_peer_is_cut() -> None:
    peer = Peer()
    await settle()
    peer.clock.advance(REQUEST_LIMIT_S)
    assert peer.transport.aborted
    await settle()
    assert peer.ended()


async def test_a_byte_now_and_then_does_not_keep_a_request_open() -> None:
    peer = Peer()
    for place in range(int(REQUEST_LIMIT_S)):
        assert not peer.transport.aborted
        await peer.says(GET[place : place + 1])
        peer.clock.advance(1)
    assert peer.transport.aborted


async def test_a_peer_that_does_not_read_is_cut() -> None:
    peer = Peer()
    peer.transport.reads = False
    await peer.says(GET)
    assert not peer.exchange.done()
    peer.clock.advance(WRITE_LIMIT_S)
    assert peer.transport.aborted
    await settle()
    assert peer.ended()


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.sampled_from([GET, b"\r\n", b"HTTP/1.1", b"Transfer-Encoding: chunked\r\n", b":"]),
        ),
        max_size=8,
    )
)
def test_any_bytes_cost_their_connection_only(pieces: list[bytes]) -> None:
    async def feed() -> None:
        peer = Peer()
        for piece in pieces:
            await peer.says(piece)
        if not peer.transport.is_closing():
            peer.protocol.eof_received()
            await settle()
        assert all(request.path for request in peer.requests)
        assert peer.ended()

    asyncio.run(feed())
