"""Lines of the log that do not come too often."""

from __future__ import annotations

import logging

import pytest

from skylarkmq.common import throttled_log
from skylarkmq.common.throttled_log import INTERVAL_S, ThrottledLog
from tests.support.manual_clock import ManualClock

log = logging.getLogger("throttled")


def test_a_kind_has_so_many_lines_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    lines = ThrottledLog(clock, log)
    for number in range(3):
        lines.tell("a", f"a{number}")
        lines.tell("b", f"b{number}", limit=2, level=logging.ERROR)
    assert caplog.messages == ["a0", "b0", "b1"]
    clock.advance(INTERVAL_S)
    lines.tell("a", "a again")
    lines.forget("a")
    lines.forget("unknown")
    lines.tell("a", "a anew")
    assert caplog.messages[3:] == ["a again", "a anew"]
    assert [record.levelname for record in caplog.records][:3] == ["WARNING", "ERROR", "ERROR"]


def test_the_kinds_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttled_log, "KINDS_MAX", 3)
    lines = ThrottledLog(ManualClock(), log)
    for kind in range(1000):
        lines.tell(kind, str(kind))
    assert len(lines._told) <= 3 and len(caplog.messages) == 1000
