"""Who may use /drainz, and what it takes."""

from __future__ import annotations

import pytest

from skylarkmq.broker.draining.draining import DrainOrder
from skylarkmq.broker.pages.drain_page import read_request, refusal
from skylarkmq.broker.pages.http import HttpRequest

HERE, ELSEWHERE = "127.0.0.1", "10.0.0.7"


def request(peer: str = HERE, method: str = "POST", query: str = "", **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return HttpRequest(method, "/drainz", query, named, peer=peer)


@pytest.mark.parametrize("peer", [HERE, "::1", "127.8.0.1", ""])
def test_this_machine_may(peer: str) -> None:
    assert refusal(request(peer)) is None


@pytest.mark.parametrize("peer", [ELSEWHERE, "fe80::1%eth0", "somewhere", "::ffff:10.0.0.7"])
def test_others_may_look_and_change_nothing(peer: str) -> None:
    assert refusal(request(peer, "GET")) is None
    for method in ("POST", "DELETE"):
        refused = refusal(request(peer, method))
        assert refused is not None
        assert refused[0] == 403
        assert b"skylarkmq cluster drain BROKER" in refused[1]


@pytest.mark.parametrize(
    "header", ["origin", "sec_fetch_site", "x_forwarded_for", "forwarded", "via"]
)
def test_neither_a_web_page_nor_what_a_proxy_brings_counts_as_this_machine(header: str) -> None:
    assert refusal(request(HERE, **{header: "http://evil.example"})) is not None


def test_what_is_asked_for() -> None:
    asked = read_request(request(query="wait=2.5&refresh=10&leaving=broker-b,broker-c"))
    assert (asked.method, asked.wait_s) == ("POST", 2.5)
    assert asked.order == DrainOrder(10.0, frozenset({"broker-b", "broker-c"}))
    assert read_request(request()).order == DrainOrder()


@pytest.mark.parametrize("query", ["wait=soon", "wait=-1", "refresh=nan", "wait=1e9", "waits=1"])
def test_nonsense_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=query.partition("=")[0]):
        read_request(request(query=query))
