"""Watches of etcd that are silent, lost, refused or told nonsense; and TLS to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.endpoints import Endpoint
from skylarkmq.broker.net import http_client
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    CompactedError,
    CoordinationError,
    Event,
    Swapped,
)
from skylarkmq.broker.replication.failover.etcd import WATCH_SILENCE_S, Etcd, EtcdConfig
from skylarkmq.remoting.tls import ClientTls
from tests.broker.replication.test_etcd import PREFIX, b64, client, nobody, sound, stored
from tests.support.certificates import Authority
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until
from tests.support.scripted_etcd import (
    Answer,
    Request,
    error_answer,
    header,
    line_answer,
    raw_answer,
    scripted_etcd,
)

pytestmark = pytest.mark.timing

CREATED = {"result": {"header": header(7), "created": True}}


def change(*revisions: int, **more: object) -> dict[str, object]:
    """A line that tells puts at these revisions."""
    events = [{"kv": stored(revision=str(revision), **more)} for revision in revisions]
    return {"result": {"header": header(max(revisions)), "events": events}}


async def next_event(watch: AsyncGenerator[Event]) -> Event:
    async with asyncio.timeout(LIMIT_S):
        return await anext(watch)


async def end_of(way: Etcd) -> tuple[list[int], CoordinationError]:
    """Return the revisions that a watch after 4 told, and how it ended."""
    told: list[int] = []
    async with aclosing(way.watch(4)) as watch:
        with pytest.raises(CoordinationError) as ended:
            while True:
                told.append((await next_event(watch)).revision)
    return told, ended.value


async def test_changes_are_put_together_by_their_revision() -> None:
    both = [{"kv": stored("a", "6")}, {"type": "DELETE", "kv": stored("b", "6")}]
    lines = [
        CREATED,
        change(4, 5),
        {"result": {"header": header(6), "events": [*both, {"kv": stored("a", "7")}]}},
        {"result": {"header": header(9)}},  # progress: nothing for us
    ]
    whole = line_answer(*lines)
    async with scripted_etcd(lambda _: whole) as server:
        async with aclosing(client(server).watch(4)) as watch:
            told = [await next_event(watch) for _ in range(3)]
        await until(lambda: not server.open or server.drop_connections() is None)

    assert [event.revision for event in told] == [5, 6, 7]
    assert {key: bool(entry) for key, entry in told[1].entries.items()} == {"a": True, "b": False}
    asked = server.requests[0]
    assert asked.headers["grpc-metadata-hasleader"] == "true"
    assert asked.body["create_request"] == {
        "key": b64(PREFIX),
        "range_end": b64(PREFIX[:-1] + b"0"),
        "start_revision": "4",
    }


async def test_lines_may_come_in_any_pieces() -> None:
    text = b"".join(json.dumps(line).encode() + b"\n" for line in (CREATED, change(5), change(6)))
    pieces = line_answer(*(text[place : place + 7] for place in range(0, len(text), 7)))
    async with (
        scripted_etcd(lambda _: pieces) as server,
        aclosing(client(server).watch(4)) as watch,
    ):
        assert [(await next_event(watch)).revision for _ in range(2)] == [5, 6]


NO_KEY = {"result": {"header": header(7), "events": [{"type": "PUT"}]}}
OTHER_TYPE = {"result": {"header": header(7), "events": [{"type": "RENAME", "kv": stored()}]}}
FOREIGN = {"result": {"header": header(7), "events": [{"kv": {"key": b64(b"/x")}}]}}
SIZE_MAX = 1 << 16  # bytes of a line, here
REASON = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"hello\n", "no sense"),
        (b"\n", "no sense"),
        ({"results": {}}, "neither result nor error"),
        ({"result": 7}, "no sense"),
        ({"result": {"events": []}}, "no header"),
        ({"result": {"header": header(7, 0xBAD)}}, "one cluster"),
        ({"result": {"header": header(7), "events": 7}}, "no sense"),
        (NO_KEY, "without a key"),
        (OTHER_TYPE, "RENAME"),
        (FOREIGN, "not asked for"),
        (change(7, 6), "revision 6 after one of 7"),
        ({"error": {"grpc_code": 14, "http_code": 503, "message": "no leader"}}, "no leader"),
        ({"result": {"header": header(0), "canceled": True, "cancel_reason": REASON}}, "denied"),
        ({"result": {"header": header(0), "canceled": True}}, "read again"),
        (b" " * (SIZE_MAX + 1), "more than"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_watch_ends_at_what_it_cannot_understand(
    line: object, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_BODY_SIZE", SIZE_MAX)
    answer = line_answer(CREATED, change(5), line)
    async with scripted_etcd(lambda _: answer) as server:
        told, ended = await end_of(client(server))
    # The first of two changes in a wrong order is already told.
    assert told in ([5], [5, 7])
    assert word in str(ended)
    assert not isinstance(ended, CompactedError)


async def test_a_watch_that_was_compacted_meanwhile() -> None:
    line = {"result": {"header": header(0), "canceled": True, "compact_revision": "6"}}
    answer = line_answer(CREATED, line)
    async with scripted_etcd(lambda _: answer) as server:
        told, ended = await end_of(client(server))
    assert told == []
    assert isinstance(ended, CompactedError)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (line_answer(change(5)), "without saying so"),
        (line_answer(then="goes on"), "ended its answer"),
        (line_answer(CREATED, then="goes on"), "ended its answer"),
        (line_answer(CREATED, then="ends"), "closed the connection"),
        (line_answer(b'{"result":', then="goes on"), "no sense"),
        (error_answer(400, 3, "etcdserver: user name is empty"), "user name is empty"),
        (error_answer(503, 14, "etcdserver: no leader"), "no leader"),
        (raw_answer(b"<html>", 404), "html"),
        (Answer(b"hello\r\n\r\n"), "not HTTP"),
        (Answer(b"", "ends"), "closed the connection"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_watch_that_does_not_begin_or_ends(answer: Answer, word: str) -> None:
    async with scripted_etcd(lambda _: answer) as server:
        told, ended = await end_of(client(server))
    assert told == []
    assert word in str(ended)


async def test_a_watch_finds_an_endpoint_that_lets_it() -> None:
    sick_answer, answer = error_answer(503, 14, "no leader"), line_answer(CREATED, change(5))
    async with (
        scripted_etcd(lambda _: sick_answer) as sick,
        scripted_etcd(lambda _: answer) as well,
        aclosing(client(nobody(), sick, well).watch(4)) as watch,
    ):
        assert (await next_event(watch)).revision == 5
    assert len(sick.requests) == 1


async def test_a_silent_watch_begins_anew_where_it_was() -> None:
    clock = ManualClock()
    answers = [line_answer(CREATED, change(5)), line_answer(CREATED, change(5, 6))]
    async with (
        scripted_etcd(lambda _: answers.pop(0)) as first,
        scripted_etcd(lambda _: answers.pop(0)) as second,
        aclosing(client(first, second, clock=clock).watch(4)) as watch,
    ):
        assert (await next_event(watch)).revision == 5
        waiting = asyncio.ensure_future(next_event(watch))
        await until(lambda: clock.pending_count)
        clock.advance(WATCH_SILENCE_S - 0.1)
        await asyncio.sleep(0)
        assert not second.requests
        clock.advance(0.1)
        assert (await waiting).revision == 6
        assert second.requests[0].body["create_request"]["start_revision"] == "5"
        await until(lambda: not first.open)


async def test_a_watch_that_does_not_begin_in_time() -> None:
    clock = ManualClock()
    async with scripted_etcd(lambda _: Answer(b"", "silent")) as server:
        ended = asyncio.ensure_future(end_of(client(server, clock=clock)))
        await until(lambda: server.requests)
        clock.advance(2)
        assert "no answer within 2 s" in str((await ended)[1])
        await until(lambda: not server.open)


async def test_close_ends_watches() -> None:
    async with scripted_etcd(lambda _: line_answer(CREATED)) as server:
        way = client(server)
        ended = asyncio.ensure_future(end_of(way))
        await until(lambda: way._watches)
        way.close()
        assert "lost" in str((await ended)[1])
        assert not way._watches


async def test_a_watch_asks_for_a_token_and_for_a_new_one() -> None:
    reason = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
    canceled = {"result": {"header": header(0), "canceled": True, "cancel_reason": reason}}

    def answer(request: Request) -> Answer:
        if request.path == "/v3/auth/authenticate":
            return raw_answer(json.dumps({"header": header(7), "token": "t"}).encode())
        assert request.headers["authorization"] == "t"
        return line_answer(CREATED, canceled) if request.path == "/v3/watch" else sound(request)

    async with scripted_etcd(answer) as server:
        way = client(server, user="root", password="hunter2")
        assert "invalid auth token" in str((await end_of(way))[1])
        await way.read()
    assert server.paths == [
        "/v3/auth/authenticate",
        "/v3/watch",
        "/v3/auth/authenticate",
        "/v3/kv/range",
    ]


# TLS


def over_tls(endpoint: Endpoint, context: ssl.SSLContext | None) -> Etcd:
    config = EtcdConfig(endpoints=(endpoint,), request_limit_s=LIMIT_S)
    tls = None if context is None else ClientTls(context, settings_hint="See tls.client.")
    return Etcd(config, PREFIX, SystemClock(asyncio.get_running_loop()), tls)


async def test_requests_and_watches_go_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context("127.0.0.1", wants_client=True)

    def answer(request: Request) -> Answer:
        return line_answer(CREATED, change(5)) if request.path == "/v3/watch" else sound(request)

    async with scripted_etcd(answer, context) as server:
        way = over_tls(server.endpoint, authority.client_context(with_certificate=True))
        assert (await way.read()).revision == 7
        assert await way.swap([], [Change("state", b"1")]) is Swapped.REFUSED
        async with aclosing(way.watch(4)) as watch:
            assert (await next_event(watch)).revision == 5
        way.close()


WHY = {
    "no trust": "issuer check",
    "the system's trust": "issuer check",
    "no certificate": "client certificate",
    "wrong name": "host name check",
}


@pytest.mark.parametrize("who", WHY)
async def test_tls_that_fails_says_why_and_nothing_was_sent(tmp_path: Path, who: str) -> None:
    authority = Authority(tmp_path)
    names = ["other.example"] if who == "wrong name" else ["127.0.0.1"]
    server_context = authority.server_context(*names, wants_client=who == "no certificate")
    contexts = {
        "no trust": Authority(tmp_path, "another").client_context(),
        "the system's trust": None,
    }
    context = contexts.get(who, authority.client_context())
    async with scripted_etcd(sound, server_context) as server:
        way = over_tls(server.endpoint, context)
        with pytest.raises(CoordinationError, match=WHY[who]) as told:
            await way.read()
        assert ("tls.client" in str(told.value)) == (who in ("no trust", "wrong name"))
        assert not server.requests


async def test_tls_to_a_server_without(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw_answer(b"this is HTTP", 400).data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], True)
    with pytest.raises(CoordinationError, match=r"what the peer sent is no TLS.*tls\.client"):
        await over_tls(endpoint, Authority(tmp_path).client_context()).read()
    server.close()
