"""A sweep tells what went wrong, hides nothing behind a known fault, and needs a call to pass."""

from __future__ import annotations

import pytest

from tests.support.call_limit import call_limit
from tests.support.crash_disk import CrashDisk
from tests.support.fault_sweep import NO_DESCRIPTOR, Case, Known, KnownFault, Strike, sweep

KNOWN = Known("it ends", "it ended")


def _life(says: dict[int, str], calls: int = 3) -> object:
    """Open a file some times; what is said where the n-th of them is refused."""

    def live(strike: Strike) -> None:
        disk = CrashDisk()
        strike.arm(disk.faults)
        for _ in range(calls):
            try:
                disk.open(disk.root / "file", create=True)
            except OSError:
                assert strike.number not in says, says[strike.number]

    return live


def _sweep(says: dict[int, str], known: Known | None = None, calls: int = 3) -> None:
    case = Case(NO_DESCRIPTOR, "file", known)
    sweep(case, [_life(says, calls)], whole=True)  # type: ignore[list-item]


def test_each_call_is_refused_in_turn_with_each_error() -> None:
    with pytest.raises(AssertionError, match="9 of 9 calls") as caught:
        _sweep({1: "a", 2: "b", 3: "c"})
    assert str(caught.value).count("EMFILE") == 3
    _sweep({4: "there is no such call"})


def test_a_known_fault_is_told_apart_from_all_others() -> None:
    with pytest.raises(KnownFault):
        _sweep({2: "it ended"}, KNOWN)
    with pytest.raises(AssertionError, match="3 of 9 calls") as caught:
        _sweep({1: "it ended", 2: "a message is lost"}, KNOWN)
    assert not isinstance(caught.value, KnownFault)
    _sweep({}, KNOWN)


def test_a_sweep_without_calls_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="no such call"):
        _sweep({}, calls=0)


def test_what_never_ends_is_ended_by_its_calls() -> None:
    def step() -> None:
        pass

    with pytest.raises(AssertionError, match="no end"), call_limit(1000):
        while True:
            step()
    with call_limit(1000):
        step()
