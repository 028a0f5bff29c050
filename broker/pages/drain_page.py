"""The page /drainz: move clients away before a stop (`broker/draining/draining.py`).

    GET     200 drained, 503 not yet or not asked for
    POST    begin; 200 drained, 202 it goes on, 409 there is nobody to move to
    DELETE  let clients come back; 200

    ?wait=S       POST answers after S seconds at the latest, or when it is over; 0 without it
    ?refresh=S    clients learn a new route within S seconds; 30 without it
    ?leaving=A,B  brokers that leave as well

The answer is JSON, with what is waited for. POST and DELETE are for processes on this machine: what
a web page sends is refused, and what a proxy on this machine brings. From afar the request 30004
does the same, with an admin's account (`skylarkmq cluster drain`).
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.remoting.waiting import sleep

if TYPE_CHECKING:
    import skylarkmq.broker.draining.draining as draining
    from skylarkmq.broker.pages.http import HttpRequest
else:  # a broker that is not drained loads none of it; the page server loads this file
    draining = on_first_use("skylarkmq.broker.draining.draining")

PATH: Final = "/drainz"
METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
WAIT_S_MAX: Final = 3600.0
LOOK_EVERY_S: Final = 0.5
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class DrainRequest(NamedTuple):
    """What the page was asked for."""

    method: str
    wait_s: float
    order: draining.DrainOrder


Find = Callable[[], "draining.Draining | None"]  # None: the broker has not started; its loop
Answer = tuple[int, bytes]


def refusal(request: HttpRequest) -> Answer | None:
    """Return why a request may not change anything; None: it may."""
    if request.method in ("GET", "HEAD"):
        return None
    headers = request.headers
    if "origin" in headers or "sec-fetch-site" in headers:
        return _refused("web pages may not drain a broker")
    if is_here(request.peer) and not any(name in headers for name in FORWARDED):
        return None
    return _refused(
        "only this machine may do this; from another one: skylarkmq cluster drain BROKER, with an "
        "admin's account"
    )


def is_here(peer: str) -> bool:
    """Return whether a peer is on this machine; "" is a socket that our supervisor has made."""
    try:
        return not peer or ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        return False


def read_request(request: HttpRequest) -> DrainRequest:
    """Return what is asked for.

    Raises:
        ValueError: a parameter that is unknown, or is no number of seconds.
    """
    given = dict(urllib.parse.parse_qsl(request.query, keep_blank_values=True, max_num_fields=8))
    unknown = given.keys() - {"wait", "refresh", "leaving", "verbose"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known: wait, refresh, leaving")
    leaving = frozenset(name for name in given.get("leaving", "").split(",") if name)
    order = draining.DrainOrder(_seconds(given, "refresh", draining.REFRESH_S), leaving)
    return DrainRequest(request.method, _seconds(given, "wait", 0.0), order)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    if name not in given:
        return default
    with suppress(ValueError):
        seconds = float(given[name])
        if 0 <= seconds <= WAIT_S_MAX:
            return seconds
    raise ValueError(f"{name}={given[name]}: it takes seconds, from 0 to {WAIT_S_MAX:.0f}")


async def answer(
    asked: DrainRequest,
    ask: Callable[[DrainRequest], Awaitable[draining.DrainState]],
    clock: Clock,
) -> Answer:
    """Do what is asked, and wait for as long as is wanted.

    Args:
        ask: has it done on the broker's loop, and returns how it stands then.
    """
    state = await ask(asked)
    limit_s = clock.monotonic() + asked.wait_s
    while _goes_on(state) and asked.method == "POST" and clock.monotonic() < limit_s:
        await sleep(clock, LOOK_EVERY_S)
        state = await ask(asked._replace(method="GET"))
    return _status(asked.method, state), encoded(state)


async def perform(asked: DrainRequest, drain: draining.Draining) -> draining.DrainState:
    """Do what is asked, on the broker's loop; return how it stands."""
    if asked.method == "POST":
        drain.start(asked.order)
    elif asked.method == "DELETE":
        await drain.undo()
    return drain.state


def encoded(state: draining.DrainState) -> bytes:
    """Return a state as JSON."""
    content = {
        "state": state.phase.value,
        "moved_topics": state.moved,
        "waits_for": state.waits_for,
        "stays": state.stays,
        "stay_count": state.stay_count,
        "why": state.why,
    }
    return msgspec.json.encode(content) + b"\n"


class MemberAnswer(Protocol):
    """What one of several brokers below a supervisor answered."""

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def why(self) -> str: ...


def together(answers: Mapping[str, MemberAnswer]) -> Answer:
    """Return the answer for several brokers: each by its name, and what waits longest for all."""
    states: dict[str, dict[str, Any]] = {}
    for name, one in answers.items():
        try:
            states[name] = msgspec.json.decode(one.body, type=dict[str, Any])
        except msgspec.DecodeError:
            states[name] = {
                "state": "unknown",
                "why": one.why or one.body.decode("utf-8", "replace"),
            }
    status = max((one.status for one in answers.values()), key=_weight, default=0)
    content = {
        "state": next((s["state"] for n, s in states.items() if answers[n].status == status), ""),
        "moved_topics": max((s.get("moved_topics", 0) for s in states.values()), default=0),
        "waits_for": [f"{n}: {w}" for n, s in states.items() for w in s.get("waits_for", ())],
        "stays": sorted({topic for s in states.values() for topic in s.get("stays", ())}),
        "stay_count": max((s.get("stay_count", 0) for s in states.values()), default=0),
        "why": "; ".join(f"{n}: {s['why']}" for n, s in states.items() if s.get("why")),
        "brokers": states,
    }
    return status or HTTPStatus.SERVICE_UNAVAILABLE, msgspec.json.encode(content) + b"\n"


def _weight(status: int) -> int:
    if status == HTTPStatus.OK:
        return 0
    return 1 if status == HTTPStatus.CONFLICT else 2


def _goes_on(state: draining.DrainState) -> bool:
    return state.phase in (draining.Phase.PRODUCERS, draining.Phase.CONSUMERS)


def _status(method: str, state: draining.DrainState) -> int:
    if method == "DELETE" or state.phase is draining.Phase.DRAINED:
        return HTTPStatus.OK
    if method != "POST":
        return HTTPStatus.SERVICE_UNAVAILABLE
    is_impossible = state.phase is draining.Phase.IMPOSSIBLE
    return HTTPStatus.CONFLICT if is_impossible else HTTPStatus.ACCEPTED


def _refused(why: str) -> Answer:
    return HTTPStatus.FORBIDDEN, msgspec.json.encode({"state": "refused", "why": why}) + b"\n"
