"""What a terminal shows of a long start."""

from __future__ import annotations

from io import StringIO

import pytest

from skylarkmq.broker.start.banner import QUIET_SIZE, StartProgress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_that_is_written_over_and_taken_away() -> None:
    stream = Terminal()
    progress = StartProgress(stream)
    for done in range(0, QUIET_SIZE + 1, QUIET_SIZE // 512):
        progress("recovering the log", done, QUIET_SIZE)
    shown = stream.getvalue()
    assert shown.count("\r\x1b[K") == 101, "once a percent"
    assert "recovering the log: 100 %, 64 of 64 MiB" in shown
    assert "\n" not in shown
    progress.end()
    assert stream.getvalue() == shown + "\r\x1b[K"


@pytest.mark.parametrize("stream", [StringIO(), Terminal()])
def test_silent_for_a_file_and_for_short_work(stream: StringIO) -> None:
    progress = StartProgress(stream)
    total = QUIET_SIZE - 1 if stream.isatty() else 1 << 40
    progress("recovering the log", 10, total)
    progress.end()
    assert stream.getvalue() == ""
