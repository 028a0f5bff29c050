"""Progress: plain lines at their pace, a bar on a terminal, nothing when it is off."""

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_at_their_pace() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress("archiving", shown=True, out=out, clock=clock) as progress:
        progress.show(1, 1000)
        clock.sleep(LINE_INTERVAL_S)
        progress.show(500, 1000, "lag 3")
        progress.show(600, 1000)
        clock.sleep(LINE_INTERVAL_S)
        progress.advance(100)
    assert out.getvalue().splitlines() == [
        "archiving: 500 of 1,000 (50%) messages, 100/s, lag 3",
        "archiving: 700 of 1,000 (70%) messages, 70/s",
    ]


def test_nothing_when_it_is_off() -> None:
    clock, out = Clock(), Terminal()
    with Progress("archiving", shown=False, out=out, clock=clock) as progress:
        clock.sleep(LINE_INTERVAL_S)
        progress.show(500)
        progress.say("half")
    assert out.getvalue() == ""
    assert progress.done == 500


def test_a_terminal_gets_a_bar() -> None:
    out = Terminal()
    with Progress("archiving [x]", shown=True, out=out) as progress:
        progress.show(500, 1000, "lag [3]")
        progress.say("a line [y]")
    assert "archiving [x]" in out.getvalue()
    assert "500/1,000" in out.getvalue()
    assert "a line [y]\n" in out.getvalue()


def test_a_terminal_without_rich_gets_lines() -> None:
    clock, out = Clock(), Terminal()
    with Progress("archiving", shown=True, out=out, clock=clock, rich=False) as progress:
        clock.sleep(LINE_INTERVAL_S)
        progress.show(5)
        progress.say("done")
    assert out.getvalue().splitlines() == ["archiving: 5 messages, 1/s", "archiving: done"]
