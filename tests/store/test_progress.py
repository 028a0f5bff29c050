"""Long work is in the log every two seconds, and told to whoever listens each time."""

from __future__ import annotations

import logging

import pytest

from skylarkmq.store.progress import ProgressLog, progress_text
from tests.support.manual_clock import ManualClock

MIB = 1 << 20


def test_a_line_every_two_seconds_of_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    told: list[tuple[str, int, int]] = []
    progress = ProgressLog(clock, lambda *step: told.append(step))
    with caplog.at_level(logging.INFO, "skylarkmq.store.progress"):
        for step in range(10):
            progress("reading", step * MIB, 10 * MIB)
            clock.advance(0.5)
    assert len(told) == 10
    assert caplog.messages == ["reading: 40 %, 4 of 10 MiB", "reading: 80 %, 8 of 10 MiB"]


def test_work_of_no_size_is_done() -> None:
    assert progress_text("reading", 0, 0) == "reading: 100 %, 0 of 0 MiB"
