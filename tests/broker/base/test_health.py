"""Named checks."""

import os
import threading

from skylarkmq.broker.base.health import LOOP_DEAD_S, LoopCheck, run_checks, waits_for_disk


def test_each_check_gives_its_reason() -> None:
    assert run_checks({"store": lambda: "", "route": lambda: "no name server answered"}) == {
        "store": "",
        "route": "no name server answered",
    }


def test_a_check_that_raises_is_a_failed_one() -> None:
    def broken() -> str:
        raise RuntimeError("no such table")

    reasons = run_checks({"disk": broken, "store": lambda: ""})
    assert "no such table" in reasons["disk"]
    assert reasons["store"] == ""


def test_a_loop_is_dead_when_it_is_silent_and_waits_for_no_disk() -> None:
    silent_s, in_disk = LOOP_DEAD_S - 1, False
    check = LoopCheck(lambda: silent_s, lambda: in_disk)
    assert check() == ""
    silent_s = LOOP_DEAD_S
    assert check() == "the event loop has not answered for 60 s, and waits for no disk"
    in_disk = True
    assert check() == ""


def test_a_thread_that_runs_waits_for_no_disk() -> None:
    assert not waits_for_disk(threading.get_native_id())
    assert not waits_for_disk(os.getpid() + (1 << 22))  # no such thread
