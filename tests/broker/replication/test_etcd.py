"""The client of etcd against servers that answer nonsense, half, late or not at all."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.endpoints import Endpoint
from skylarkmq.broker.net.http_client import MAX_BODY_SIZE, MAX_HEAD_SIZE
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    Condition,
    CoordinationError,
    LeaseEndedError,
    Swapped,
)
from skylarkmq.broker.replication.failover.etcd import Etcd, EtcdConfig, prefix_of
from skylarkmq.common.clock import Clock
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_ports
from tests.support.scripted_etcd import (
    Answer,
    Request,
    ScriptedEtcd,
    error_answer,
    header,
    json_answer,
    line_answer,
    raw_answer,
    scripted_etcd,
)

pytestmark = pytest.mark.timing

PREFIX = prefix_of("cluster", "broker-a")
STATE = [Change("state", b"1")]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def stored(key: str = "state", revision: object = "5", **more: object) -> dict[str, object]:
    return {"key": b64(PREFIX + key.encode()), "mod_revision": revision, **more}


def client(*servers: ScriptedEtcd | Endpoint, clock: Clock | None = None, **more: Any) -> Etcd:
    endpoints = tuple(each if isinstance(each, Endpoint) else each.endpoint for each in servers)
    limit_s = LIMIT_S if clock is None else 2.0
    config = EtcdConfig(endpoints=endpoints, request_limit_s=limit_s, **more)
    return Etcd(config, PREFIX, clock or SystemClock(asyncio.get_running_loop()))


def nobody() -> Endpoint:
    return Endpoint("127.0.0.1", free_ports()[0], False)


def sound(request: Request) -> Answer:
    """What an etcd at revision 7 with no keys says; swaps fail."""
    return json_answer({"header": header(7)})


def done(request: Request) -> Answer:
    return json_answer({"header": header(8), "succeeded": True})


# Nonsense

NONSENSE: dict[str, Callable[[], Answer]] = {
    "nothing": lambda: raw_answer(b""),
    "no JSON": lambda: raw_answer(b"<html>hello</html>"),
    "half a JSON": lambda: raw_answer(b'{"header":{"cluster_id":"1"'),
    "not UTF-8": lambda: raw_answer(b'{"header":"\xff\xfe"}'),
    "a list": lambda: json_answer([1, 2]),
    "a number": lambda: json_answer(7),
    "very deep": lambda: raw_answer(b'{"header":' * 50_000),
    "no header": lambda: json_answer({"succeeded": True}),
    "header of another type": lambda: json_answer({"header": "yes"}),
    "no cluster": lambda: json_answer({"header": {"revision": "7"}}),
    "cluster in words": lambda: json_answer({"header": {"cluster_id": "one", "revision": "7"}}),
    "cluster too large": lambda: json_answer({"header": header(7, 2**64)}),
    "revision 0": lambda: json_answer({"header": header(0)}),
    "revision negative": lambda: json_answer({"header": header(-7)}),
    "revision too large": lambda: json_answer({"header": header(2**63)}),
    "revision endless": lambda: json_answer({"header": {**header(7), "revision": "7" * 5000}}),
    "revision a fraction": lambda: json_answer({"header": {**header(7), "revision": 7.5}}),
    "revision no digits": lambda: json_answer({"header": {**header(7), "revision": "\u0667"}}),
    "no HTTP": lambda: Answer(b"hello, who is there?\r\n\r\n"),
    "a head without end": lambda: Answer(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 3 * MAX_HEAD_SIZE),
    "a body that is too large": lambda: raw_answer(b" " * (MAX_BODY_SIZE + 1)),
    "chunks that are too large": lambda: line_answer(b" " * (MAX_BODY_SIZE + 1)),
    "half a body": lambda: Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "ends"),
    "half a chunk": lambda: Answer(line_answer(b"{}").data[:-3], "ends"),
    "half a head": lambda: Answer(b"HTTP/1.1 200 OK\r\nContent-", "ends"),
    "an end": lambda: Answer(b"", "ends"),
    "a page of a proxy": lambda: raw_answer(b"<html>502</html>", 502),
    "another way": lambda: raw_answer(b"", 302),
    "a status of its own": lambda: json_answer({"header": header(7), "succeeded": True}, 299),
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_is_not_believed(what: str) -> None:
    async with scripted_etcd(lambda _: NONSENSE[what]()) as server:
        way = client(server)
        with pytest.raises(CoordinationError) as told:
            await way.read()
        assert len(str(told.value)) < 1500
        with pytest.raises(CoordinationError):
            await way.grant(10)
        with pytest.raises(CoordinationError):
            await way.renew(77)
        if what != "revision 0":  # nothing that a revocation looks at
            with pytest.raises(CoordinationError):
                await way.revoke(77)
        assert await way.swap([], STATE) is Swapped.UNKNOWN
        assert server.paths.count("/v3/kv/txn") == 1
        server.answer = sound
        assert (await way.read()).revision == 7
        way.close()


@pytest.mark.parametrize(
    ("kvs", "word"),
    [
        ("none", "array"),
        ([7], "object"),
        ([{"key": "*"}], "base64"),
        ([stored(value=5)], "bytes"),
        ([{"key": b64(b"/skylarkmq/other/x"), "mod_revision": "5"}], "not asked for"),
        ([{"key": b64(PREFIX), "mod_revision": "5"}], "not asked for"),
        ([{"key": b64(PREFIX + b"\xff"), "mod_revision": "5"}], "no text"),
        ([stored(), stored()], "twice"),
        ([stored(revision="8")], "revision 8"),
        ([stored(revision="0")], "mod_revision is 0"),
        ([stored(revision="-1")], "mod_revision is -1"),
        ([stored(lease="-1")], "lease is -1"),
        ([stored(lease=None)], "null"),
    ],
)
async def test_keys_that_cannot_be(kvs: object, word: str) -> None:
    async with scripted_etcd(lambda _: json_answer({"header": header(7), "kvs": kvs})) as server:
        with pytest.raises(CoordinationError, match=f"{word}.*controllerEndpoints|{word}.*Delete"):
            await client(server).read()


async def test_what_is_left_out_and_what_is_new_is_understood() -> None:
    kvs = [stored(value=b64(b"x"), lease="77", version="1", news=[1]), stored("b", 3)]
    said = {"header": {**header(7), "raft_term": "2"}, "kvs": kvs, "more": False, "count": 2}
    async with scripted_etcd(lambda _: json_answer(said)) as server:
        read = await client(server).read()
    assert {key: (e.value, e.revision, e.lease) for key, e in read.entries.items()} == {
        "state": (b"x", 5, 77),
        "b": (b"", 3, 0),
    }
    assert server.requests[0].body == {"key": b64(PREFIX), "range_end": b64(PREFIX[:-1] + b"0")}


async def test_keys_that_were_left_out() -> None:
    async with scripted_etcd(lambda _: json_answer({"header": header(7), "more": True})) as server:
        with pytest.raises(CoordinationError, match="leaves keys out"):
            await client(server).read()


async def test_a_history_that_goes_back_is_not_believed() -> None:
    async with scripted_etcd(sound) as server:
        way = client(server)
        await way.read()
        server.answer = lambda _: json_answer({"header": header(6), "succeeded": True})
        with pytest.raises(CoordinationError, match=r"revision 6.*was of 7.*restore"):
            await way.read()
        assert await way.swap([], STATE) is Swapped.UNKNOWN
        # A lease's answer comes from a member that may be behind.
        server.answer = lambda _: json_answer({"header": header(6), "ID": "77", "TTL": "10"})
        assert await way.grant(10) == 77
        server.answer = sound
        assert (await way.read()).revision == 7


async def test_another_cluster_is_not_believed() -> None:
    def other(_: Request) -> Answer:
        return json_answer({"header": header(9, 0xBAD), "succeeded": True})

    async with scripted_etcd(sound) as server, scripted_etcd(other) as stranger:
        way = client(server, stranger)
        await way.read()
        server.answer = lambda _: Answer(b"", "ends")
        with pytest.raises(CoordinationError, match=r"cluster bad.*c0ffee.*one cluster"):
            await way.read()
        server.answer = sound
        assert (await way.read()).revision == 7


# Swaps


async def test_what_a_swap_says_to_etcd() -> None:
    async with scripted_etcd(done) as server:
        end = await client(server).swap(
            [Condition("state", 5, 6), Condition("master", 0), Condition("alive/x")],
            [Change("state", b"v", 9), Change("master", None)],
        )
    assert end is Swapped.DONE
    state, master = b64(PREFIX + b"state"), b64(PREFIX + b"master")
    assert server.requests[0].body == {
        "compare": [
            {"key": state, "result": "EQUAL", "target": "MOD", "mod_revision": "5"},
            {"key": state, "result": "EQUAL", "target": "LEASE", "lease": "6"},
            {"key": master, "result": "EQUAL", "target": "MOD", "mod_revision": "0"},
        ],
        "success": [
            {"request_put": {"key": state, "value": b64(b"v"), "lease": "9"}},
            {"request_delete_range": {"key": master}},
        ],
    }


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (error_answer(404, 5, "etcdserver: requested lease not found"), LeaseEndedError),
        (error_answer(404, 5, "Not Found"), CoordinationError),
        (error_answer(400, 3, "etcdserver: duplicate key given in txn request"), CoordinationError),
        (error_answer(403, 7, "etcdserver: permission denied"), CoordinationError),
        (error_answer(401, 16, "etcdserver: invalid auth token"), CoordinationError),
        # etcd may have made the change before it says this.
        (error_answer(429, 8, "etcdserver: mvcc: database space exceeded"), Swapped.UNKNOWN),
        (error_answer(503, 14, "etcdserver: request timed out"), Swapped.UNKNOWN),
        (error_answer(503, 14, "etcdserver: leader changed"), Swapped.UNKNOWN),
        (error_answer(504, 4, "context deadline exceeded"), Swapped.UNKNOWN),
        (error_answer(408, 1, "context canceled"), Swapped.UNKNOWN),
        (error_answer(500, 2, "unknown"), Swapped.UNKNOWN),
        (json_answer({"code": "5", "message": "lease not found"}, 404), Swapped.UNKNOWN),
        (json_answer({"code": True, "message": "lease not found"}, 404), Swapped.UNKNOWN),
        (json_answer({"code": 5, "message": ["lease not found"]}, 404), Swapped.UNKNOWN),
        (raw_answer(b"not found", 404), Swapped.UNKNOWN),
        (json_answer({"header": header(8)}), Swapped.REFUSED),
        (json_answer({"header": header(8), "succeeded": False}), Swapped.REFUSED),
        (json_answer({"header": header(8), "succeeded": "true"}), Swapped.UNKNOWN),
        (json_answer({"header": header(8), "succeeded": None}), Swapped.UNKNOWN),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_an_answer_says_of_a_swap(
    answer: Answer, end: Swapped | type[Exception]
) -> None:
    async with scripted_etcd(lambda _: answer) as server, scripted_etcd(done) as other:
        swap = client(server, other).swap([], [Change("master", b"x", 77)])
        if isinstance(end, Swapped):
            assert await swap is end
        else:
            with pytest.raises(CoordinationError) as told:
                await swap
            assert type(told.value) is end or issubclass(type(told.value), end)
            assert ("lease" in str(told.value)) == (end is LeaseEndedError)
        assert (len(server.requests), len(other.requests)) == (1, 0)


async def test_a_swap_goes_on_only_while_nobody_has_it() -> None:
    async with scripted_etcd(done) as server:
        way = client(nobody(), nobody(), server)
        assert await way.swap([], STATE) is Swapped.DONE
        assert server.paths == ["/v3/kv/txn"]
    with pytest.raises(CoordinationError, match=r"no endpoint.*refused.*Is etcd running"):
        await client(nobody(), nobody()).swap([], STATE)


async def test_a_swap_without_an_answer_is_unknown_and_not_sent_again() -> None:
    clock = ManualClock()
    silent = Answer(b"", "silent")
    async with scripted_etcd(lambda _: silent) as server, scripted_etcd(done) as other:
        way = client(server, other, clock=clock)
        swap = asyncio.ensure_future(way.swap([], STATE))
        await until(lambda: server.requests)
        clock.advance(1.9)
        await asyncio.sleep(0)
        assert not swap.done()
        clock.advance(0.1)
        assert await swap is Swapped.UNKNOWN
        assert other.requests == []
        # The next request goes elsewhere, and never gets the late answer of this one.
        assert await way.swap([], STATE) is Swapped.DONE
        assert len(server.requests) == 1
        assert clock.pending_count == 0


async def test_a_swap_whose_caller_left_leaves_no_answer_behind() -> None:
    async with scripted_etcd(lambda _: Answer(b"", "silent")) as server:
        way = client(server)
        swap = asyncio.ensure_future(way.swap([], STATE))
        await until(lambda: server.requests)
        swap.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swap
        server.answer = sound
        assert (await way.read()).revision == 7
        assert server.connection_count == 2


# Endpoints and connections


async def test_one_connection_serves_all_requests() -> None:
    async with scripted_etcd(sound) as server:
        way = client(server)
        await asyncio.gather(*(way.read() for _ in range(10)))
        assert server.connection_count == 1
        way.close()
        await way.read()
        assert server.connection_count == 2


async def test_a_connection_that_died_is_made_again() -> None:
    async with scripted_etcd(sound) as server:
        way = client(server)
        await way.read()
        server.drop_connections()
        assert (await way.read()).revision == 7
        # Now it is found out only after the request has been sent.
        answers = [Answer(b"", "ends"), sound(server.requests[0])]
        server.answer = lambda _: answers.pop(0)
        assert (await way.read()).revision == 7
        assert server.connection_count == 3


async def test_an_endpoint_that_works_is_kept() -> None:
    async with scripted_etcd(lambda _: raw_answer(b"", 503)) as sick, scripted_etcd(sound) as well:
        way = client(nobody(), sick, well)
        for _ in range(3):
            assert (await way.read()).revision == 7
        assert (len(sick.requests), len(well.requests)) == (1, 3)
        sick.answer, well.answer = sound, lambda _: raw_answer(b"", 503)
        assert (await way.read()).revision == 7


async def test_an_endpoint_that_says_nothing_costs_its_time_alone() -> None:
    clock = ManualClock()
    async with (
        scripted_etcd(lambda _: Answer(b"HTTP/1.1 200", "silent")) as server,
        scripted_etcd(sound) as other,
    ):
        way = client(server, other, clock=clock)
        read = asyncio.ensure_future(way.read())
        await until(lambda: server.requests)
        clock.advance(2)
        assert (await read).revision == 7


# Leases


async def test_a_renewal_waits_for_no_other_request() -> None:
    """A read that is slow, or a swap, must not cost the lease."""

    def slow(request: Request) -> Answer:
        if request.path == "/v3/lease/keepalive":
            result = {"header": header(7), "ID": "77", "TTL": "10"}
            return line_answer({"result": result}, then="goes on")
        return Answer(b"HTTP/1.1 200", "silent")

    async with scripted_etcd(slow) as server:
        way = client(server, clock=ManualClock())
        others = [asyncio.ensure_future(way.read()), asyncio.ensure_future(way.swap([], STATE))]
        await until(lambda: server.requests)
        async with asyncio.timeout(LIMIT_S):
            for _ in range(2):
                assert await way.renew(77)
        assert not any(other.done() for other in others)
        assert len(server.requests) == 3, "reads and swaps wait for each other"
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        way.close()


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"ID": "0", "TTL": "10"}, "ID is 0"),
        ({"ID": "-5", "TTL": "10"}, "ID is -5"),
        ({"ID": "77", "TTL": "9"}, "TTL is 9"),
        ({"ID": "77"}, "TTL is 0"),
        ({"ID": "77", "TTL": "10", "error": "no"}, "no"),
    ],
)
async def test_a_lease_that_cannot_be(said: dict[str, str], word: str) -> None:
    async with scripted_etcd(lambda _: json_answer({"header": header(7), **said})) as server:
        with pytest.raises(CoordinationError, match=word):
            await client(server).grant(10)


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ({"result": {"header": header(7), "ID": "77", "TTL": "10"}}, True),
        ({"result": {"header": header(7), "ID": "77"}}, False),
        ({"result": {"header": header(7), "ID": "77", "TTL": "0"}}, False),
        ({"result": {"header": header(7), "ID": "78", "TTL": "10"}}, None),
        ({"result": {"header": header(7), "ID": "77", "TTL": "-1"}}, None),
        ({"result": {"ID": "77"}}, None),
        ({"result": None}, None),
        ({"header": header(7), "ID": "77"}, None),
        ({"error": {"grpc_code": 14, "http_code": 503, "message": "no leader"}}, None),
        ({"error": {"grpc_code": 5, "message": "requested lease not found"}}, None),
    ],
    ids=str,
)
async def test_only_a_clear_word_ends_a_lease(line: dict[str, object], end: bool | None) -> None:
    async with scripted_etcd(lambda _: line_answer(line, then="goes on")) as server:
        if end is None:
            with pytest.raises(CoordinationError):
                await client(server).renew(77)
        else:
            assert await client(server).renew(77) is end


# User and password


def wants_token(tokens: list[str]) -> Callable[[Request], Answer]:
    """Return a server that gives one token after the other, and takes the last one alone."""
    given: list[str] = []

    def answer(request: Request) -> Answer:
        if request.path == "/v3/auth/authenticate":
            if request.body != {"name": "root", "password": "hunter2"}:
                words = "etcdserver: authentication failed, invalid user ID or password"
                return error_answer(400, 3, words)
            given.append(tokens.pop(0))
            return json_answer({"header": header(7), "token": given[-1]})
        if request.headers.get("authorization", "none") not in given[-1:]:
            return error_answer(401, 16, "etcdserver: invalid auth token")
        return done(request)

    return answer


async def test_a_token_is_fetched_and_renewed_when_it_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_etcd(wants_token(["token-1"])) as server:
        way = client(server, user="root", password="hunter2")
        await way.read()
        await way.read()
        assert server.paths == ["/v3/auth/authenticate", *["/v3/kv/range"] * 2]
        server.answer = wants_token(["token-2"])  # restarted: it knows no token
        assert await way.swap([], STATE) is Swapped.DONE
        assert server.paths[3:] == ["/v3/kv/txn", "/v3/auth/authenticate", "/v3/kv/txn"]
        old = error_answer(400, 3, "etcdserver: revision of auth store is old")
        fresh, answers = wants_token(["token-3"]), [old]
        server.answer = lambda request: answers.pop() if answers else fresh(request)
        assert await way.swap([], STATE) is Swapped.DONE
    assert "hunter2" not in f"{caplog.text} {way!r} {way._config!r}"
    assert "token-" not in caplog.text


async def test_a_token_that_is_always_refused_is_asked_for_once() -> None:
    def never(request: Request) -> Answer:
        if request.path == "/v3/auth/authenticate":
            return json_answer({"header": header(7), "token": "x"})
        return error_answer(401, 16, "etcdserver: invalid auth token")

    async with scripted_etcd(never) as server:
        way = client(server, user="root", password="hunter2")
        with pytest.raises(CoordinationError, match="invalid auth token"):
            await way.swap([], STATE)
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (error_answer(400, 3, "invalid user ID or password"), "correct them"),
        (error_answer(400, 9, "authentication is not enabled"), "take user and password out"),
        (raw_answer(b"busy", 503), "busy"),
        (json_answer({"header": header(7)}), "no token"),
        (json_answer({"header": header(7), "token": "a\r\nX: y"}), "no token"),
        (json_answer({"header": header(7), "token": " a"}), "no token"),
        (json_answer({"token": "x"}), "no header"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_no_token(answer: Answer, word: str) -> None:
    async with scripted_etcd(lambda _: answer) as server:
        way = client(server, user="root", password="hunter3")
        with pytest.raises(CoordinationError, match=word) as told:
            await way.read()
        assert "hunter3" not in str(told.value)
        assert "/v3/kv/range" not in server.paths


# Settings


def test_no_two_names_share_a_prefix() -> None:
    names = ["a", "a/b", "a%2Fb", "a%", "ä", "A", "a.b", "..", "a b", "a0", "%"]
    prefixes = sorted(prefix_of(cluster, name) for cluster in names for name in names)
    assert all(not later.startswith(sooner) for sooner, later in pairwise(prefixes))
    assert prefix_of("DefaultCluster", "broker-a") == b"/skylarkmq/DefaultCluster/broker-a/"
    for cluster, name in (("", "a"), ("a", "")):
        with pytest.raises(ValueError, match="empty"):
            prefix_of(cluster, name)
