"""Progress: lines at their pace, nothing when it is off."""

from __future__ import annotations

import io

from skylarkmq.spark.jobs.reporting import LINE_INTERVAL_S, Progress


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_lines_at_their_pace() -> None:
    clock, out = Clock(), io.StringIO()
    progress = Progress("archiving", shown=True, out=out, clock=clock)
    progress.show(1, 1000)
    clock.sleep(LINE_INTERVAL_S)
    progress.show(500, 1000, "lag 3")
    progress.show(600, 1000)
    clock.sleep(LINE_INTERVAL_S)
    progress.show(700, 1000)
    clock.sleep(LINE_INTERVAL_S)
    progress.show(900)
    assert out.getvalue().splitlines() == [
        "archiving: 500 of 1,000 (50%) messages, 100/s, lag 3",
        "archiving: 700 of 1,000 (70%) messages, 70/s",
        "archiving: 900 messages, 60/s",
    ]


def test_nothing_when_it_is_off() -> None:
    clock, out = Clock(), io.StringIO()
    progress = Progress("archiving", shown=False, out=out, clock=clock)
    clock.sleep(LINE_INTERVAL_S)
    progress.show(500)
    assert out.getvalue() == ""
