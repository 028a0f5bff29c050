"""The loop thread of a blocking client, and how other threads call into it.

Each client has one such thread: the first call starts it, `close` ends it. Any thread may call,
except the loop thread itself. A call that is interrupted (Ctrl-C) cancels its work and waits a
moment for the end of it, so that nothing is left half done. Then it lets the interruption through.

After a fork the child has no loop thread, and locks may be held by threads that it does not have.
So the portal begins anew there: no thread, new locks, the next `generation`. The objects on it make
their twins again when they are used next. What the parent's loop held is kept and never touched,
because its sockets and its selector are the parent's as well.

At the end of the program it stops the clients that are still open, each for EXIT_TIMEOUT_S at most.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from skylarkmq.client.errors import IllegalState

P = ParamSpec("P")
T = TypeVar("T")

EXIT_TIMEOUT_S: Final = 5.0
INTERRUPTED_TIMEOUT_S: Final = 5.0
"""How long an interrupted call waits for the end of what it cancelled."""
WAIT_SLICE_S: Final = 0.2 if sys.platform == "win32" else None
"""Windows looks for Ctrl-C only between waits."""

PROGRAM_ENDS: Final = "cannot schedule new futures after interpreter shutdown"
"""What Python's pools say from then on."""

_portals: weakref.WeakSet[Portal] = weakref.WeakSet()
_begun: dict[int, Portal] = {}
"""Portals with a loop thread; each is here until `close`, at the program's end at the latest."""
_inherited: list[object] = []


class Portal:
    """Runs coroutines of one client in one thread. Any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        """Counts the forks that lie between the portal's making and this process."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._at_exit: Callable[[], None] | None = None
        _portals.add(self)
        _watch_forks()

    def run(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        take_back: Callable[[T], object] | None = None,
    ) -> T:
        """Run the coroutine that `work` makes in the loop thread; return its result or its error.

        Args:
            take_back: called in the loop thread with a result that an interruption kept from the
                caller, before any call that follows.

        Raises:
            IllegalState: closed, or called in the loop thread.
        """
        call = _Call(work, take_back)
        try:
            with self.lock:  # after `close` nothing begins any more
                call.loop = self._running()
                call.loop.call_soon_threadsafe(call.begin)
            return call.result()
        except concurrent.futures.CancelledError:
            raise IllegalState("the client was stopped during the call") from None
        except BaseException:
            # Interrupted here, wherever that was; else it is the call's own error, and it is over.
            call.abandon()
            raise

    def call(self, work: Callable[[], T]) -> T:
        """Call a plain function in the loop thread."""

        async def called() -> T:
            return work()

        return self.run(called)

    def future(self, work: Callable[[], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Return what `work` starts as a future for threads; cancelling it cancels the work."""
        handed: Handed[T] = Handed()

        def begun() -> None:
            handed.loop = asyncio.get_running_loop()
            handed.begun(work())

        self.call(begun)
        return handed.outer

    def post(self, callback: Callable[[], object]) -> asyncio.AbstractEventLoop:
        """Let the loop thread call something soon, and do not wait for it; return the loop.

        Raises:
            IllegalState: closed, or called in the loop thread.
        """
        with self.lock:
            loop = self._running()
            loop.call_soon_threadsafe(callback)
            return loop

    def close_at_exit(self, close: Callable[[], None]) -> None:
        """Let `close` be called when the program ends with the portal still open."""
        self._at_exit = close

    def close(self) -> None:
        """End the loop thread; what still runs in it is cancelled. Calls fail from now on."""
        with self.lock:
            self._closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            _begun.pop(id(self), None)
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and threading.current_thread() is not thread:
            thread.join()

    @property
    def closed(self) -> bool:
        """True after `close`, here or in the parent process."""
        return self._closed

    @property
    def begun(self) -> bool:
        """True when this process has a loop thread."""
        return self._loop is not None

    def keep(self, inherited: object) -> None:
        """Keep what the parent's loop owns from being collected, which would close its sockets."""
        _inherited.append(inherited)

    # Inside

    def _running(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self._closed:
                raise IllegalState("the client has stopped")
            if self._thread is not None and threading.current_thread() is self._thread:
                raise IllegalState(
                    "a blocking call in the client's own loop thread would wait for itself",
                    hint="Call from another thread, for instance from a handler of run",
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(Threads(thread_name_prefix="skylarkmq-callback"))
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="skylarkmq-client-loop", daemon=True
                )
                self._thread.start()
                _begun[id(self)] = self
            return self._loop

    def forked(self) -> None:
        """Begin anew in the child of a fork."""
        if self._loop is not None:
            self.keep((self._loop, self._thread))
        self.lock = threading.RLock()
        self._loop = None
        self._thread = None
        self.generation += 1
        _begun.pop(id(self), None)

    def exit(self) -> None:
        """Stop the client at the end of the program."""
        close, self._at_exit = self._at_exit, None
        if close is None or self._loop is None or self._closed:
            return
        closer = threading.Thread(target=close, name="skylarkmq-client-exit", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # from Python 3.12 on no thread begins any more by now
            close()
        else:
            closer.join(EXIT_TIMEOUT_S)


class Handed(Generic[T]):
    """Work in the loop thread and the future by which other threads hear of its end."""

    __slots__ = ("_inner", "loop", "outer")

    def __init__(self) -> None:
        self.outer: concurrent.futures.Future[T] = concurrent.futures.Future()
        """For the threads; cancelling it cancels the work."""
        self.outer.add_done_callback(self._outer_ended)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._inner: asyncio.Future[T] | None = None

    def begun(self, inner: asyncio.Future[T]) -> None:
        """The work has begun. Loop thread."""
        self._inner = inner
        inner.add_done_callback(self._ended)

    def failed(self, error: Exception) -> None:
        """The work could not begin. Loop thread."""
        if self.outer.set_running_or_notify_cancel():
            self.outer.set_exception(error)

    def _ended(self, inner: asyncio.Future[T]) -> None:
        if inner.cancelled():
            self.outer.cancel()
        if not self.outer.set_running_or_notify_cancel():
            return
        error = inner.exception()
        if error is not None:
            self.outer.set_exception(error)
        else:
            self.outer.set_result(inner.result())

    def _outer_ended(self, outer: concurrent.futures.Future[T]) -> None:
        if outer.cancelled() and self.loop is not None:
            _tell(self.loop, self._cancel)

    def _cancel(self) -> None:
        if self._inner is not None:
            self._inner.cancel()


class _Call(Generic[T]):
    """One call on its way through the loop thread."""

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        take_back: Callable[[T], object] | None,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._take_back = take_back
        self._future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: asyncio.Task[T] | None = None
        self._over = threading.Event()

    # In the loop thread

    def begin(self) -> None:
        """Start the work, unless it was given up meanwhile."""
        if self._future.cancelled():
            self._over.set()
            return
        self._task = asyncio.get_running_loop().create_task(_started(self._work))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._future.cancel()
        if self._future.set_running_or_notify_cancel():
            error = task.exception()
            if error is not None:
                self._future.set_exception(error)
            else:
                self._future.set_result(task.result())
        elif not task.cancelled() and task.exception() is None and self._take_back is not None:
            self._take_back(task.result())  # nobody waits for it any more
        self._over.set()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the interruption was quicker than its beginning
            self._over.set()

    def _untaken(self) -> None:
        """Take back a result that was ready but did not reach the caller."""
        if self._take_back is not None:
            self._take_back(self._future.result())

    # In the thread that calls

    def result(self) -> T:
        """Wait for the end; return the work's result or raise its error."""
        while True:
            try:
                return self._future.result(WAIT_SLICE_S)
            except concurrent.futures.TimeoutError:
                if self._future.done():
                    raise  # the work's own

    def abandon(self) -> None:
        """Cancel the work and wait for its end, for a moment; a result of it is taken back."""
        if self.loop is None:
            return
        if self._future.cancel():
            _tell(self.loop, self._cancel)
            self._over.wait(INTERRUPTED_TIMEOUT_S)
        elif self._future.exception(INTERRUPTED_TIMEOUT_S) is None:
            _tell(self.loop, self._untaken)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Let the loop call something soon; do nothing when the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def _started(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await work()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; the body of the loop thread."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()  # without waiting for threads of its executor, where a callback may be stuck


def _watch_forks() -> None:
    global _watching
    if _watching:
        return
    _watching = True
    atexit.register(_exit_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked_all)


_watching = False


def _forked_all() -> None:
    for portal in list(_portals):
        portal.forked()


def _exit_all() -> None:
    for portal in list(_begun.values()):
        portal.exit()


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
