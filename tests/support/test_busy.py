"""Busy processes run while they are wanted, and none stays."""

from __future__ import annotations

from tests.support.busy import busy_processes

IDLE = "import signal; signal.pause()"  # busy ones would have taken seconds from the test itself


def test_they_end_with_the_block() -> None:
    with busy_processes(2, IDLE) as started:
        assert [process.poll() for process in started] == [None, None]
    assert all(process.returncode for process in started)
