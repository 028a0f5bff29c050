"""A member's end of the link to its supervisor."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from skylarkmq.broker.fleet.link import ALIVE, ASK, NAMESRV, SupervisorLink
from tests.support.patience import LIMIT_S, until_sync

pytestmark = pytest.mark.timing


@contextmanager
def linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SupervisorLink, socket.socket]]:
    """A link and the supervisor's end; when that closes, the process would get SIGTERM."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(LIMIT_S)
        yield SupervisorLink(theirs.detach()), ours
    until_sync(lambda: killed, "the end of the link")
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_until_the_start_is_over_the_link_answers_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with linked(monkeypatch) as (link, supervisor):
        supervisor.sendall(ASK)
        assert supervisor.recv(100) == ALIVE
        asked: list[bool] = []
        link.on_ask = lambda: asked.append(True)
        supervisor.sendall(ASK)
        until_sync(lambda: asked)
        link.ready({"broker": "a"})
        assert supervisor.recv(100) == b'{"broker":"a","event":"ready"}\n', "and no answer"


def test_a_loop_that_is_closed_does_not_end_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    with linked(monkeypatch) as (link, supervisor):
        link.on_namesrv = link.on_ask = closed
        supervisor.sendall(NAMESRV + ASK)


def test_answers_that_nobody_reads_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked(monkeypatch) as (link, supervisor):
        supervisor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(20_000):
            link.alive()
