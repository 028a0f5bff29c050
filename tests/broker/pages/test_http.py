"""The pages, over loopback."""

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from skylarkmq import __version__
from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.broker_metrics import build_registry
from skylarkmq.broker.metrics import sources
from skylarkmq.broker.pages.http import (
    MAX_CONNECTIONS,
    METRICS_LIMIT_S,
    READY_LIMIT_S,
    MetricsServer,
    choose_format,
)
from tests.broker.test_metrics import a_scenario
from tests.support.manual_clock import ManualClock, ManualTimer
from tests.support.patience import LIMIT_S, until


class Site:
    """A server on a free port; `async with` starts and stops it."""

    def __init__(self, **checks: object) -> None:
        self.reasons = {"store": "", "route": ""}
        self.stalled = ""
        health = HealthChecks(
            ready={name: lambda name=name: self.reasons[name] for name in self.reasons},
            live={"flush": lambda: self.stalled},
        )
        self.registry = build_registry(a_scenario(health=health))
        self.clock = ManualClock()
        self.silent_s = 0.0
        self.silence: Callable[[], float] = lambda: self.silent_s
        self.server = MetricsServer(
            ("127.0.0.1", 0),
            lambda: self.registry,
            health,
            lambda: self.silence(),
            lambda _: self.clock,
        )
        self.address = ("", 0)

    async def __aenter__(self) -> "Site":
        address = await self.server.start()
        assert address is not None
        self.address = address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    async def get(self, path: str, *headers: str, method: str = "GET") -> tuple[int, str, bytes]:
        """Return status, head and body."""
        reader, writer = await asyncio.open_connection(*self.address)
        lines = [f"{method} {path} HTTP/1.1", "Host: here", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode(), body


def without_process(text: bytes) -> bytes:
    """Figures of the process itself change from scrape to scrape."""
    return b"".join(line for line in text.splitlines(keepends=True) if b"process_" not in line)


async def test_metrics_are_the_registry_s_text() -> None:
    async with Site() as site:
        status, head, body = await site.get("/metrics")
        assert status == 200
        assert "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in head
        assert without_process(body) == without_process(generate_latest(site.registry))
        assert b"process_resident_memory_bytes" in body


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_a_family_of_many_series_is_written_in_parts(
    accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Site() as site:
        _, _, whole = await site.get("/metrics", f"Accept: {accept}")
        monkeypatch.setattr(sources, "PART_SIZE", 1)
        _, _, parts = await site.get("/metrics", f"Accept: {accept}")
    assert without_process(parts) == without_process(whole)


async def test_what_a_scrape_needs_is_measured_before_it() -> None:
    async with Site() as site:
        site.registry = CollectorRegistry()
        measured = Gauge("measured", "Scrapes.", registry=site.registry)

        async def prepare() -> None:
            measured.inc()

        site.server._prepare = prepare
        for scrapes in (b"1.0", b"2.0"):
            _, _, body = await site.get("/metrics")
            assert b"measured " + scrapes in body


async def test_scrapes_at_the_same_time_cost_what_one_after_the_other_costs() -> None:
    """Who asks while one is under way shares the next one; a form has its own."""
    async with Site() as site:
        site.registry = CollectorRegistry()
        measured = Gauge("measured", "Scrapes.", registry=site.registry)
        go_on, running, most = asyncio.Event(), 0, 0

        async def prepare() -> None:
            nonlocal running, most
            measured.inc()
            running += 1
            most = max(most, running)
            await go_on.wait()
            running -= 1

        site.server._prepare = prepare
        first = asyncio.create_task(site.get("/metrics"))
        await until(lambda: running == 1)
        zipped = "Accept-Encoding: gzip"
        others = [asyncio.create_task(site.get("/metrics")) for _ in range(5)]
        others += [asyncio.create_task(site.get("/metrics", zipped)) for _ in range(5)]
        scrapes = site.server._scrapes
        await until(lambda: len(scrapes._next) == 2)
        await until(lambda: len(site.server._pages._open) == 11)  # type: ignore[union-attr]
        assert (await site.get("/livez"))[0] == 200  # those before have been read
        go_on.set()
        assert b"measured 1.0" in (await first)[2]
        answers = [await other for other in others]
        assert {status for status, _, _ in answers} == {200}
        assert len({body for _, _, body in answers}) == 2
        assert (measured._value.get(), most) == (3, 1)
        assert b"measured 4.0" in (await site.get("/metrics"))[2]


async def test_a_scrape_whose_turn_does_not_come_says_so() -> None:
    async with Site() as site:
        go_on, begun = asyncio.Event(), asyncio.Event()

        async def prepare() -> None:
            begun.set()
            await go_on.wait()

        site.server._prepare = prepare
        first = asyncio.create_task(site.get("/metrics"))
        await begun.wait()
        second = asyncio.create_task(site.get("/metrics"))
        await until(lambda: bool(site.server._scrapes._next))
        thread = site.server._thread
        assert thread is not None
        thread.loop.call_soon_threadsafe(site.clock.advance, METRICS_LIMIT_S)
        status, _, body = await second
        assert (status, body) == (503, b"scrapes before this one took 5.0 s; scrape less often\n")
        assert (await first)[0] == 503
        go_on.set()
        assert (await site.get("/metrics"))[0] == 200


async def test_metrics_as_openmetrics_end_with_one_mark() -> None:
    async with Site() as site:
        _, head, body = await site.get(
            "/metrics", "Accept: application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.1"
        )
        assert "Content-Type: application/openmetrics-text; version=1.0.0" in head
        assert body.count(b"# EOF\n") == 1
        assert body.endswith(b"# EOF\n")
        assert len(list(text_string_to_metric_families(body.decode()))) > 20


async def test_metrics_are_zipped_for_who_accepts_it() -> None:
    async with Site() as site:
        _, plain_head, plain = await site.get("/metrics")
        _, head, body = await site.get("/metrics", "Accept-Encoding: gzip, deflate")
        assert "Content-Encoding" not in plain_head
        assert "Content-Encoding: gzip" in head
        assert without_process(gzip.decompress(body)) == without_process(plain)


HOSTILE_ACCEPTS = (
    "application/openmetrics-text;version=x.y",
    "text/plain;version=1.0.0-\xe9",
    "text/plain;version=",
    ";;==,,",
    "," * 5000,
)


def test_a_hostile_accept_header_gets_plain_text() -> None:
    for accept in HOSTILE_ACCEPTS:
        _, content_type = choose_format(accept)
        assert content_type.startswith("text/plain; version=0.0.4")


async def test_readiness_names_what_is_missing() -> None:
    async with Site() as site:
        assert (await site.get("/readyz"))[::2] == (200, b"ready\n")
        site.reasons["route"] = "no name server has answered"
        status, _, body = await site.get("/readyz")
        assert (status, body) == (503, b"not ready\nroute: no name server has answered\n")
        status, head, body = await site.get("/readyz?verbose")
        assert status == 503
        assert "Content-Type: application/json" in head
        assert json.loads(body) == {
            "status": "not ready",
            "checks": {
                "store": {"ok": True, "why": ""},
                "route": {"ok": False, "why": "no name server has answered"},
            },
        }


async def test_liveness_does_not_depend_on_readiness() -> None:
    async with Site() as site:
        site.reasons["route"] = "no name server has answered"
        assert (await site.get("/livez"))[::2] == (200, b"live\n")
        site.stalled = "the last flush ended 12 s ago"
        assert (await site.get("/livez"))[::2] == (
            503,
            b"not live\nflush: the last flush ended 12 s ago\n",
        )


async def test_version_and_the_rest() -> None:
    async with Site() as site:
        status, _, body = await site.get("/version")
        assert (status, json.loads(body)) == (200, {"name": "skylarkmq", "version": __version__})
        assert (await site.get("/metrics/../etc/passwd"))[0] == 404
        status, head, _ = await site.get("/metrics", method="POST")
        assert status == 405
        assert "Allow: GET, HEAD" in head
        status, _, body = await site.get("/metrics", method="HEAD")
        assert (status, body) == (200, b"")


async def test_the_oldest_connection_makes_room() -> None:
    async with Site() as site:
        peers = [await asyncio.open_connection(*site.address) for _ in range(MAX_CONNECTIONS)]
        assert (await site.get("/livez"))[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert await peers[0][0].read() == b""
        reader, writer = peers[1]
        writer.write(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, peer in peers:
            peer.close()


async def test_no_more_stay_than_may_when_many_come_at_once() -> None:
    async with Site() as site:
        is_held, goes_on = threading.Event(), threading.Event()

        def hold() -> float:
            is_held.set()
            goes_on.wait(LIMIT_S)
            return 0.0

        site.silence = hold
        held = asyncio.create_task(site.get("/readyz"))
        await until(is_held.is_set)
        crowd = [socket.create_connection(site.address) for _ in range(MAX_CONNECTIONS + 30)]
        site.silence = lambda: 0.0
        goes_on.set()
        await asyncio.gather(held, return_exceptions=True)  # the oldest of all
        assert (await site.get("/livez"))[0] == 200  # so all of the crowd were met before
        for peer in crowd:
            peer.setblocking(False)
        stay = [peer for peer in crowd if not has_ended(peer)]
        for peer in crowd:
            peer.close()
        assert len(stay) <= MAX_CONNECTIONS


def has_ended(peer: socket.socket) -> bool:
    """Return whether the other end has hung up."""
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    """Ask without an event loop; return status and body."""
    connection = HTTPConnection(*address, timeout=LIMIT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


async def test_a_loop_that_is_held_up_keeps_nobody_waiting() -> None:
    """Here the test's own loop is the broker's, and stands still while it asks."""
    async with Site() as site:
        site.silent_s = 7.25
        why = "the broker's event loop has not answered for 7.2 s\n"
        assert get(site.address, "/livez") == (200, "live\n")
        assert get(site.address, "/version")[0] == 200
        assert get(site.address, "/readyz") == (503, f"not ready\nloop: {why}")
        assert get(site.address, "/metrics") == (503, why)
        site.silent_s = 0.0
        assert (await site.get("/readyz"))[0] == 200


@pytest.mark.parametrize(
    ("path", "limit_s"), [("/readyz", READY_LIMIT_S), ("/metrics", METRICS_LIMIT_S)]
)
async def test_a_loop_that_stops_while_it_is_asked(path: str, limit_s: float) -> None:
    async with Site() as site:
        plan, time_is_up = site.clock.call_at, False

        def call_at(when_s: float, callback: Callable[..., object], *args: object) -> ManualTimer:
            nonlocal time_is_up
            if when_s == site.clock.monotonic() + limit_s:  # asked; the loop will not hear of it
                asyncio.get_running_loop().call_soon(callback, *args)
                time_is_up = True
            return plan(when_s, callback, *args)

        site.clock.call_at = call_at  # type: ignore[method-assign]
        status, body = get(site.address, path)
        assert time_is_up
        assert status == 503
        assert f"the broker's event loop has not answered for {limit_s:.1f} s\n" in body


async def test_stop_cuts_open_connections() -> None:
    site = Site()
    async with site:
        reader, writer = await asyncio.open_connection(*site.address)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readline()
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    writer.close()
    await site.server.stop()
