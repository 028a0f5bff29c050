"""The command `skylarkmq drain`: moves clients away from a broker of this machine before its stop.

It asks the page `/drainz` of the broker's metrics port, until the broker is drained. A replica that
has handed over starts anew in its process, and its page is away meanwhile: that is no error.

Exit codes: 0 drained, 1 not in time, 3 there is nobody to move to, 4 unreachable, 5 refused.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.parse
from typing import Any, Final, NoReturn

import click

from skylarkmq.tools.local.addresses import host_and_port
from skylarkmq.tools.pages import UNREACHABLE, PageRequest, address_option, ask

NOT_IN_TIME: Final = 1
NO_OTHER_BROKER: Final = 3
REFUSED: Final = 5
SLICE_S: Final = 2.0
ANSWER_LIMIT_S: Final = 5.0
AGAIN_S: Final = 0.5


def _gone(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError("from another machine: skylarkmq cluster drain BROKER --wait 120")


@click.command()
@address_option
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, 3600), default=120.0, show_default=True,
    metavar="SECONDS", help="Give up after so long; what has begun goes on.",
)  # fmt: skip
@click.option(
    "--refresh", "refresh_s", type=click.FloatRange(0, 3600), default=30.0, show_default=True,
    metavar="SECONDS", help="Clients learn a new route within this time.",
)  # fmt: skip
@click.option(
    "--leaving", metavar="NAMES", default="",
    help="Brokers that leave as well, with commas: nothing moves to them.",
)  # fmt: skip
@click.option("--token-file", "--tls-ca", hidden=True, expose_value=False, callback=_gone)
@click.option("--undo", is_flag=True, help="Let clients come back.")
def drain(
    address: str,
    wait_s: float,
    refresh_s: float,
    leaving: str,
    undo: bool,
) -> None:
    """Move clients away from this machine's broker, so that nobody sees its stop.

    Producers send elsewhere, consumers confirm what is there and read elsewhere. Exit codes: 0
    drained, 1 not in time, 3 there is nobody to move to, 4 unreachable, 5 refused.

    From afar, with an admin's account: `skylarkmq cluster drain BROKER --wait 120`.
    """
    host, port = host_and_port(address, "--address")
    query = urllib.parse.urlencode({"refresh": refresh_s, "leaving": leaving})
    limit_s = time.monotonic() + wait_s
    told: tuple[str, ...] = ()
    try:  # first whether it is there at all: it may be away for a moment later
        ask(PageRequest(host, port, "/drainz", limit_s=ANSWER_LIMIT_S))
    except OSError as error:
        _end(UNREACHABLE, f"{address}: {error}")
    while True:  # until it is over, or the time is
        left_s = max(0.0, limit_s - time.monotonic())
        path = f"/drainz?{query}&wait={min(SLICE_S, left_s):.1f}"
        page, method = ("/drainz", "DELETE") if undo else (path, "POST")
        asked = PageRequest(host, port, page, method, SLICE_S + ANSWER_LIMIT_S)
        try:
            status, text = ask(asked)
        except OSError:
            status, text = http.client.SERVICE_UNAVAILABLE, "its page is away for a moment"
        state = _read(text)
        if status == http.client.OK:
            click.echo("clients may come back" if undo else _drained(state))
            return
        if status == http.client.CONFLICT:
            _end(NO_OTHER_BROKER, state["why"])
        if status not in (http.client.ACCEPTED, http.client.SERVICE_UNAVAILABLE):
            _end(REFUSED, state["why"])
        waits = tuple(state["waits_for"])
        if [_kind(wait) for wait in waits] != [_kind(wait) for wait in told]:
            told = waits
            click.echo("; ".join(waits) or state["why"], err=True)
        if time.monotonic() >= limit_s:
            _end(NOT_IN_TIME, f"not drained within {wait_s:.0f} s: {'; '.join(waits)}")
        if status == http.client.SERVICE_UNAVAILABLE:
            time.sleep(AGAIN_S)


def _read(text: str) -> dict[str, Any]:
    """Return the state; of a plain text, one that waits for it to change."""
    try:
        state = json.loads(text)
    except ValueError:
        state = {"why": text.strip(), "waits_for": [text.strip()]}
    if not isinstance(state, dict):
        state = {}
    return {"why": "", "waits_for": [], "stays": [], "stay_count": 0, "moved_topics": 0, **state}


def _kind(wait: str) -> str:
    """Return a text without its figures, which change all the time."""
    return "".join(letter for letter in wait if not letter.isdigit())


def _drained(state: dict[str, Any]) -> str:
    text = state["why"] or f"drained: {state['moved_topics']} topics have moved"
    if state["stay_count"]:
        names = ", ".join(state["stays"])
        text += f"; no other broker takes {state['stay_count']} topics, which stay: {names}"
    return text


def _end(code: int, why: str) -> NoReturn:
    click.echo(f"error: {why}", err=True)
    sys.exit(code)
