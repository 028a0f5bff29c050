"""Asking again while nobody answers: how often, how long, and after which errors."""

from __future__ import annotations

import pytest

from skylarkmq.client.errors import AuthError, ConnectionFailed, RocketMQError, RouteNotFound
from skylarkmq.spark.cluster import patiently
from tests.spark.support.blocking_clock import TestClock

AWAY = ConnectionFailed("a", "refused")


class Peer:
    """Answers after some failures."""

    def __init__(self, failures: int, error: RocketMQError = AWAY) -> None:
        self.failures = failures
        self.error = error

    def ask(self) -> str:
        if self.failures:
            self.failures -= 1
            raise self.error
        return "yes"


def test_it_waits_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock()
    assert patiently(Peer(7).ask, clock, 60, "topic T") == "yes"
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert caplog.messages[0] == f"topic T: trying again in 0.1 s: {AWAY}"
    assert len(caplog.messages) == 7


@pytest.mark.parametrize("patience_s", [0, 0.05, 1, 10])
def test_it_ends_within_its_patience(patience_s: float) -> None:
    clock = TestClock()
    with pytest.raises(ConnectionFailed):
        patiently(Peer(-1).ask, clock, patience_s, "x")
    assert patience_s - 2 <= sum(clock.slept) <= patience_s


@pytest.mark.parametrize(
    "error", [AuthError(1, "no", "a"), RouteNotFound("T", "auto_create_off", "create it")]
)
def test_what_asking_again_does_not_help(error: RocketMQError) -> None:
    clock = TestClock()
    with pytest.raises(type(error)):
        patiently(Peer(-1, error).ask, clock, 60, "x")
    assert clock.slept == []
    with pytest.raises(type(error)):
        patiently(Peer(-1, error).ask, clock, 60, "x", lambda error: True)
    assert clock.slept
