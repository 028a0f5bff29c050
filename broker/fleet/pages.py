"""The pages of a fleet: those of one broker, answered for all.

    /metrics   the families of all brokers, and those of the supervisor
    /readyz    200 when every member is ready; `?verbose` tells each as JSON
    /livez     200 unless a process hangs that the supervisor does not kill
    /version   as every broker's
    /drainz    all brokers together: none of them is a place to move to for another one

Each question goes to all brokers at once, each by a connection of its own that ends with the
answer. A broker that does not answer in time is left out of a scrape, which says so.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylarkmq.broker.fleet.merging import merged
from skylarkmq.broker.fleet.supervisor import ProcessSlot, Supervisor
from skylarkmq.broker.pages import drain_page
from skylarkmq.broker.pages.http import (
    GZIP_LEVEL,
    GZIP_WBITS,
    JSON,
    HttpRequest,
    HttpResponse,
    Page,
    choose_format,
    verdict,
    version_page,
)
from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.remoting.waiting import within

if TYPE_CHECKING:
    import prometheus_client.exposition as text_formats
    import prometheus_client.metrics_core as metrics_core
else:  # by the first scrape
    text_formats = on_first_use("prometheus_client.exposition")
    metrics_core = on_first_use("prometheus_client.metrics_core")

PROBE_LIMIT_S: Final = 0.9
"""Below the second that a Kubernetes probe waits, above what a broker takes for its own answer."""
SCRAPE_LIMIT_S: Final = 6.0
PAGE_SIZE_MAX: Final = 64 << 20
"""Bytes of one broker's page; a broker with more is scraped alone."""


class Answer(NamedTuple):
    """What a broker says to a question; `why`, if not empty, says why there is no answer."""

    status: int = 0
    body: bytes = b""
    why: str = ""


class FleetPages:
    """Asks the brokers. Loop thread of the supervisor."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by path."""
        return {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/version": version_page,
            drain_page.PATH: self._drainz,
        }

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        accept = request.headers.get("accept", "")
        encode, content_type = choose_format(accept)
        answers = await self._ask_all("/metrics", SCRAPE_LIMIT_S, accept)
        scrapes = {
            name: answer.body for name, answer in answers.items() if answer.status == HTTPStatus.OK
        }
        families = [*fleet_families(self._supervisor, frozenset(scrapes))]
        own = encode(SimpleNamespace(collect=lambda: families))
        body = merged(scrapes) + own
        headers = [("Vary", "Accept, Accept-Encoding")]
        if text_formats.gzip_accepted(request.headers.get("accept-encoding", "")):
            packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
            body = packer.compress(body) + packer.flush()
            headers.append(("Content-Encoding", "gzip"))
        return HttpResponse(HTTPStatus.OK, body, content_type, headers)

    async def _readyz(self, request: HttpRequest) -> HttpResponse:
        reasons = {
            slot.name: "" if slot.fields is not None else "it is not ready yet, or starts again"
            for slot in self._supervisor.slots
        }
        for name, answer in (await self._ask_all("/readyz", PROBE_LIMIT_S)).items():
            reasons[name] = reasons[name] or _why_not(answer)
        return verdict(request, reasons, "ready")

    async def _livez(self, request: HttpRequest) -> HttpResponse:
        reasons = {slot.name: slot.hung for slot in self._supervisor.slots}
        return verdict(request, reasons, "live")

    async def _drainz(self, request: HttpRequest) -> HttpResponse:
        try:
            refused = drain_page.refusal(request)
            wait_s = drain_page.read_request(request).wait_s
        except ValueError as error:
            return HttpResponse(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        if refused is not None:
            return HttpResponse(*refused, JSON)
        given = [part for part in request.query.split("&") if part]
        leaving = [part for part in given if part.startswith("leaving=")]
        names = ",".join([*(part[8:] for part in leaving), *(b.name for b in self._members())])
        query = "&".join([*(part for part in given if part not in leaving), f"leaving={names}"])
        asked = f"{drain_page.PATH}?{query}"
        answers = await self._ask_all(asked, PROBE_LIMIT_S + wait_s, method=request.method)
        return HttpResponse(*drain_page.together(answers), JSON)

    def _members(self) -> list[ProcessSlot]:
        return [slot for slot in self._supervisor.brokers if slot.fields is not None]

    async def _ask_all(
        self, path: str, limit_s: float, accept: str = "", method: str = "GET"
    ) -> dict[str, Answer]:
        """Ask all brokers that are ready; return their answers by name."""
        slots = self._members()
        asked = (self._ask(slot, path, limit_s, accept, method) for slot in slots)
        answers = await asyncio.gather(*asked)
        return {slot.name: answer for slot, answer in zip(slots, answers, strict=True)}

    async def _ask(
        self, slot: ProcessSlot, path: str, limit_s: float, accept: str, method: str
    ) -> Answer:
        try:
            return await within(self._clock, limit_s, _fetch(slot, path, accept, method))
        except TimeoutError:
            return Answer(why=f"no answer within {limit_s} s")
        except (OSError, ValueError) as error:
            return Answer(why=f"no answer: {error or type(error).__name__}")


async def _fetch(slot: ProcessSlot, path: str, accept: str, method: str) -> Answer:
    if slot.child is None:
        raise OSError("it has ended")
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            slot.child.hand_over(theirs)
        except OSError:
            ours.close()
            raise
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        accepted = accept if accept.isascii() and accept.isprintable() else ""
        lines = [f"{method} {path} HTTP/1.1", "Host: member", f"Accept: {accepted}", "", ""]
        writer.write("\r\n".join(lines).encode())
        status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
        parts: list[bytes] = []
        size = 0
        while part := await reader.read(1 << 20):
            parts.append(part)
            size += len(part)
            if size > PAGE_SIZE_MAX:
                raise ValueError(f"its page is larger than {PAGE_SIZE_MAX} bytes")
        return Answer(status, b"".join(parts))
    except EOFError as error:  # it has ended meanwhile
        raise OSError("the connection has ended") from error
    finally:
        writer.transport.abort()


def _why_not(answer: Answer) -> str:
    if answer.status == HTTPStatus.OK:
        return ""
    first, *rest = answer.body.decode("utf-8", "replace").splitlines() or [answer.why]
    return "; ".join(rest) or first


def fleet_families(supervisor: Supervisor, scraped: frozenset[str]) -> Iterator[Any]:
    """Yield the supervisor's own families."""
    slots = supervisor.slots
    gauge, counter = metrics_core.GaugeMetricFamily, metrics_core.CounterMetricFamily
    hangs = counter(
        "skylarkmq_fleet_hangs", "Processes killed because they did not answer.", labels=["process"]
    )
    up = gauge(
        "skylarkmq_fleet_up", "Whether a process has started and serves.", labels=["process"]
    )
    restarts = counter(
        "skylarkmq_fleet_restarts", "Processes started again after they ended.", labels=["process"]
    )
    answered = gauge(
        "skylarkmq_fleet_scraped", "Whether a broker's metrics are in this scrape.",
        labels=["process"],
    )  # fmt: skip
    for slot in slots:
        up.add_metric([slot.name], float(slot.fields is not None))
        restarts.add_metric([slot.name], slot.restart_count)
        hangs.add_metric([slot.name], slot.aborted_count)
    for slot in supervisor.brokers:
        answered.add_metric([slot.name], float(slot.name in scraped))
    yield from (up, restarts, hangs, answered)
