"""Who may use /drainz, and what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker.draining.draining import DrainOrder
from skylarkmq.broker.pages.drain_page import read_request, refusal
from skylarkmq.broker.pages.http import HttpRequest

HERE, ELSEWHERE = "127.0.0.1", "10.0.0.7"


def request(peer: str = HERE, method: str = "POST", query: str = "", **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return HttpRequest(method, "/drainz", query, named, peer=peer)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("let me in\n")
    return file


@pytest.mark.parametrize("peer", [HERE, "::1", "127.8.0.1", ""])
def test_this_machine_may(peer: str, token: Path) -> None:
    assert refusal(request(peer), None) is None
    assert refusal(request(peer), token) is None


@pytest.mark.parametrize("peer", [ELSEWHERE, "fe80::1%eth0", "somewhere", "::ffff:10.0.0.7"])
def test_others_may_look_and_change_nothing(peer: str) -> None:
    assert refusal(request(peer, "GET"), None) is None
    for method in ("POST", "DELETE"):
        refused = refusal(request(peer, method), None)
        assert refused is not None
        assert refused[0] == 403
        assert b"drainTokenFile" in refused[1]


def test_others_may_with_the_token(token: Path) -> None:
    assert refusal(request(ELSEWHERE, authorization="Bearer let me in"), token) is None
    for given in ("Bearer let me", "Bearer ", "Basic let me in", "Bearer \xff"):
        assert refusal(request(ELSEWHERE, authorization=given), token) is not None


def test_a_wrong_token_is_worse_than_none(token: Path) -> None:
    assert refusal(request(HERE, authorization="Bearer x"), token) is not None


def test_an_empty_or_missing_file_lets_nobody_in(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for file in (empty, tmp_path / "missing"):
        assert refusal(request(ELSEWHERE, authorization="Bearer "), file) is not None
        assert refusal(request(ELSEWHERE, authorization="Bearer x"), file) is not None


@pytest.mark.parametrize(
    "header", ["origin", "sec_fetch_site", "x_forwarded_for", "forwarded", "via"]
)
def test_neither_a_web_page_nor_what_a_proxy_brings_counts_as_this_machine(header: str) -> None:
    assert refusal(request(HERE, **{header: "http://evil.example"}), None) is not None


def test_what_is_asked_for() -> None:
    asked = read_request(request(query="wait=2.5&refresh=10&leaving=broker-b,broker-c"))
    assert (asked.method, asked.wait_s) == ("POST", 2.5)
    assert asked.order == DrainOrder(10.0, frozenset({"broker-b", "broker-c"}))
    assert read_request(request()).order == DrainOrder()


@pytest.mark.parametrize("query", ["wait=soon", "wait=-1", "refresh=nan", "wait=1e9", "waits=1"])
def test_nonsense_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=query.partition("=")[0]):
        read_request(request(query=query))
