"""The clock's interface: the clock of the tests is one."""

from skylarkmq.common.clock import Clock, TimerHandle
from tests.support.manual_clock import ManualClock


def test_the_manual_clock_is_a_clock() -> None:
    clock: Clock = ManualClock()
    fired: list[str] = []
    handle: TimerHandle = clock.call_at(clock.monotonic() + 1, fired.append, "late")
    handle.cancel()
    assert clock.now_ms() > 0
    assert fired == []
