"""The loop thread behind the blocking facade: calls, interruptions, futures, forks, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import FrameType
from typing import Any, NoReturn

import pytest

from skylarkmq.client import IllegalState
from skylarkmq.client.sync.portal import Portal
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_calls_of_many_threads_at_once() -> None:
    portal = Portal()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: portal.run(lambda: double(n)), range(200)))
    assert found == [2 * n for n in range(200)]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("skylarkmq-client-loop") == 1
    portal.close()


def test_an_error_comes_out_as_it_is() -> None:
    portal = Portal()

    async def fail() -> NoReturn:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        portal.run(fail)
    portal.close()


def test_a_call_in_the_loop_thread_is_refused() -> None:
    portal = Portal()
    with pytest.raises(IllegalState, match="wait for itself"):
        portal.call(lambda: portal.run(lambda: double(1)))
    portal.close()


def test_ctrl_c_cancels_what_the_call_waits_for() -> None:
    portal = Portal()
    ended: list[str] = []

    async def wait_long() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        portal.run(wait_long)
    assert ended == ["cleaned up"], "the call returns when what it cancelled has ended"
    assert portal.run(lambda: double(2)) == 4
    portal.close()


def test_futures_carry_results_errors_and_cancellation() -> None:
    portal = Portal()
    waiting: list[asyncio.Future[int]] = []

    def begin() -> asyncio.Future[int]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    first, second, third = (portal.future(begin) for _ in range(3))
    portal.call(lambda: waiting[0].set_result(7))
    portal.call(lambda: waiting[1].set_exception(LookupError("no")))
    assert first.result(LIMIT_S) == 7
    assert isinstance(second.exception(LIMIT_S), LookupError)
    assert third.cancel()
    assert portal.call(waiting[2].cancelled)
    fourth = portal.future(begin)
    portal.call(waiting[3].cancel)
    with pytest.raises(CancelledError):
        fourth.result(LIMIT_S)
    portal.close()


def test_close_cancels_what_runs_and_ends_the_thread() -> None:
    portal = Portal()
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks: list[asyncio.Task[None]] = []
    portal.call(lambda: tasks.append(asyncio.get_running_loop().create_task(forever())))
    portal.run(lambda: double(0))
    portal.close()
    assert ended.is_set()
    assert all(thread.name != "skylarkmq-client-loop" for thread in threading.enumerate())
    with pytest.raises(IllegalState, match="has stopped"):
        portal.run(lambda: double(1))
    portal.close()


def test_calls_that_come_while_it_closes_end() -> None:
    for _ in range(50):
        portal = Portal()
        portal.run(lambda: double(0))
        outcomes: list[object] = []

        def keep_calling(portal: Portal = portal, outcomes: list[object] = outcomes) -> None:
            try:
                while True:
                    outcomes.append(portal.run(lambda: double(1)))
            except IllegalState as error:
                outcomes.append(error)

        threads = [threading.Thread(target=keep_calling) for _ in range(4)]
        for thread in threads:
            thread.start()
        portal.close()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a call that nobody answers"
        assert sum(isinstance(outcome, IllegalState) for outcome in outcomes) == 4


def test_ctrl_c_at_any_instruction_leaves_nothing_running() -> None:
    """The signal comes at another point of the call each time."""
    portal = Portal()
    running = 0

    async def wait_long() -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1

    def interrupt(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if event == "line" and frame.f_code.co_filename.endswith("portal.py"):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return interrupt

    for lines in range(1, 200):
        left = lines
        stop = threading.Timer(LIMIT_S, os._exit, [1])
        stop.start()
        sys.settrace(interrupt)
        try:
            portal.run(lambda: double(1))
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
            stop.cancel()
        assert portal.run(lambda: double(2)) == 4
        assert running == 0
    assert lines > 5
    portal.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_child_has_a_loop_of_its_own() -> None:
    portal = Portal()
    assert portal.run(lambda: double(1)) == 2
    held, release = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with portal.lock:
            held.set()
            release.wait(LIMIT_S)

    holder = threading.Thread(target=hold_the_lock)
    holder.start()
    assert held.wait(LIMIT_S)
    pid = os.fork()
    if pid == 0:  # the child, where nobody will ever release that lock
        try:
            signal.alarm(int(LIMIT_S))
            good = portal.run(lambda: double(21)) == 42 and portal.generation == 1
            portal.close()
            os._exit(0 if good else 1)
        finally:
            os._exit(2)  # else it would go on as a second run of the tests
    release.set()
    holder.join(LIMIT_S)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert portal.generation == 0
    assert portal.run(lambda: double(3)) == 6
    portal.close()


def test_the_program_s_end_closes_also_where_no_thread_begins_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal, closed = Portal(), list[str]()
    portal.close_at_exit(lambda: closed.append("closed"))
    portal.run(lambda: double(1))

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        portal.exit()
    assert closed == ["closed"]
    portal.close()
