"""A blocking clock of tests: a sleep passes at once, and is remembered."""

from __future__ import annotations


class TestClock:
    """Implements `BlockingClock`; moves with each sleep, and by `advance`."""

    __test__ = False

    def __init__(self, start_s: float = 1000.0, start_ms: int = 1_700_000_000_000) -> None:
        self._s = start_s
        self._start_s = start_s
        self._start_ms = start_ms
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return self._start_ms + int((self._s - self._start_s) * 1000)

    def monotonic(self) -> float:
        return self._s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        self._s += seconds
