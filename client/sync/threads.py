"""The threads in which the application's plain functions are called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PROGRAM_ENDS: Final = "cannot schedule new futures after interpreter shutdown"
"""What Python's pools say from then on."""


class Threads(ThreadPoolExecutor):
    """A pool that serves on after the main thread has ended.

    A program goes on while one of its own threads is in `Consumer.run`, but Python's pools take no
    work any more once the main thread is through: every message would fail and be handed back. So
    from then on each call has a thread of its own, which the program's end waits for, as it does
    for those of the pool. Any thread.
    """

    _ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if self._ended or str(error) != PROGRAM_ENDS:
                raise
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name=f"{self._thread_name_prefix}-late", daemon=False).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        super().shutdown(wait, cancel_futures=cancel_futures)
