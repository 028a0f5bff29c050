"""Signals that end `Consumer.run`: the first one begins the stop, a second one acts as before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from skylarkmq.client.errors import IllegalState


@contextmanager
def stopped_on(numbers: Iterable[int], stop: Callable[[], object]) -> Generator[None]:
    """Call `stop` at the first of these signals, in the main thread; main thread.

    Raises:
        IllegalState: signals are named, and this is another thread, which gets none.
        TypeError: these are no signals.
    """
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def arrived(_number: int, _frame: object) -> None:
        restore()
        stop()

    given: Any = numbers
    wanted: list[Any] | None = [*given] if isinstance(given, Iterable) else None
    if wanted is None or not all(isinstance(each, int) for each in wanted):
        raise TypeError(f"stop_on is a list of signals, as (SIGTERM, SIGINT), not {given!r}")
    if wanted and threading.current_thread() is not threading.main_thread():
        raise IllegalState(
            "stop_on needs the main thread: no other one gets signals",
            hint="Leave it out, and call stop() of the consumer",
        )
    try:
        for number in wanted:
            before[number] = signal.signal(number, arrived)
        yield
    finally:
        restore()
