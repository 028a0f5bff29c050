"""The sweep "at every call in turn": a small life for each n, whose n-th call of a kind fails.

    def life(strike: Strike) -> None:
        rig = ...
        strike.arm(rig.files.faults)     # from here on calls are counted
        ... use it, heal it, and check what it owes ...

    @AMOUNTS
    @cases(Case(NO_DESCRIPTOR, "commitlog"), Case(PART, "checkpoint", KNOWN))
    def test_the_nth_call_fails(case: Case, whole: bool) -> None:
        sweep(case, [life], whole=whole)

A kind of fault and a part of the path make one test, so that each fault that is known has its name
and each sound combination is a test that passes. A known fault has a sign: whatever else goes wrong
is no part of it, and fails the test.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Generic, NamedTuple, TypeVar

import pytest

from skylarkmq.common.errors import StoreError
from tests.support.crash_faults import Faults

CALLS_MAX = 2000
SAMPLE = (1, 2, 3, 4, 6, 9, 13, 20)
"""Calls that fail where not all do."""

NO_RESOURCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Kind(NamedTuple):
    """A way in which a call fails."""

    name: str
    op: str
    errors: tuple[int, ...]
    short: int | None = None
    times: int = 1


NO_DESCRIPTOR = Kind("no_descriptor", "open", NO_RESOURCE)
NO_MAPPING = Kind("no_mapping", "map", NO_RESOURCE)  # `mmap` takes a descriptor of its own
PART = Kind("part_then_no_room", "pwrite", (errno.ENOSPC, errno.EDQUOT), short=3)
PART_ALONE = Kind("part_alone", "pwrite", (errno.ENOSPC,), short=3, times=0)  # room came meanwhile
NO_ROOM = Kind("no_room", "pwrite", (errno.ENOSPC, errno.EDQUOT))
NO_BLOCKS = Kind("no_blocks", "allocate", (errno.ENOSPC, errno.EDQUOT))
SYNC_FAILS = Kind("sync_fails", "datasync", (errno.EIO,))
WRITE_FAILS = Kind("write_fails", "pwrite", (errno.EIO,))
SLOW_SYNC = Kind("slow_sync", "datasync", (0,))
SLOW_NAMES = Kind("slow_names", "sync_folder", (0,))
SLOW_WRITE = Kind("slow_write", "pwrite", (0,))
SLOW_BLOCKS = Kind("slow_blocks", "allocate", (0,))
READ_FAILS = Kind("read_fails", "pread", (errno.EIO,))
PART_THEN_FAILS = Kind("part_then_fails", "pwrite", (errno.EIO,), short=3)


class Known(NamedTuple):
    """A fault of the product that a sweep shows each time."""

    reason: str
    sign: str  # a pattern, in what each promise that is not kept says


class Case(NamedTuple):
    """What a sweep is about."""

    kind: Kind
    path: str  # a part of it
    known: Known | None = None

    def __str__(self) -> str:
        return f"{self.path or 'any'}-{self.kind.name}"


class KnownFault(AssertionError):
    """The known fault was seen, and nothing else."""


class Strike:
    """One fault, at the n-th call."""

    def __init__(self, case: Case, number: int, error: int) -> None:
        self.number = number
        self._kind, self._path, _ = case
        self._error = error
        self._faults: Faults | None = None
        self._before = 0

    def arm(self, faults: Faults) -> None:
        """Count from here on."""
        self._faults, self._before = faults, len(faults.hit)
        faults.add(
            self._kind.op, at=self.number, times=self._kind.times, error=self._error,
            path=self._path, short=self._kind.short,
        )  # fmt: skip

    def slow_down(self, faults: Faults, meanwhile: Callable[[], object]) -> None:
        """Let the call take long instead; see `Faults.slow_down`."""
        self._faults, self._before = faults, len(faults.hit)
        faults.slow_down(self._kind.op, at=self.number, path=self._path, meanwhile=meanwhile)

    @property
    def has_hit(self) -> bool:
        """Whether there was such a call."""
        return self._faults is not None and len(self._faults.hit) > self._before

    @property
    def is_final(self) -> bool:
        """Whether it hit, and the disk has failed: nothing may be written any more."""
        return self.has_hit and self._error == errno.EIO

    def __str__(self) -> str:
        hit = self._faults.hit[self._before :] if self._faults is not None else []
        calls = ", ".join(f"{op} of {path.name}" for op, path in hit)
        return f"call {self.number} ({calls}), {errno.errorcode.get(self._error, 'slow')}"


L = TypeVar("L")


class Sweep(Generic[L]):
    """The strikes of one test, and what was seen."""

    def __init__(self, case: Case, lives: Sequence[L], numbers: Sequence[int] | None) -> None:
        self._case = case
        self._numbers = numbers  # of calls; None for all of them
        self._lives = lives
        self._seen = 0
        self._failures: list[str] = []

    def strikes(self) -> Iterator[tuple[Strike, L]]:
        """Give each strike and the life that it meets, until one finds no call.

        All of them: each call, with each error, in each life. Else errors and lives take turns.
        """
        errors = self._case.kind.errors
        if self._numbers is not None:
            for turn, number in enumerate(self._numbers):
                strike = Strike(self._case, number, errors[turn % len(errors)])
                yield strike, self._lives[turn % len(self._lives)]
                self._seen += strike.has_hit
            return
        for life in self._lives:
            for error in errors:
                for number in count(1):
                    assert number < CALLS_MAX, "the calls never end"
                    strike = Strike(self._case, number, error)
                    yield strike, life
                    if not strike.has_hit:
                        break
                    self._seen += 1

    def failed(self, strike: Strike, error: Exception) -> None:
        """Note a promise that was not kept."""
        first = (str(error).splitlines() or [""])[0]
        self._failures.append(f"{strike}: {type(error).__name__}: {first}")

    def check(self) -> None:
        """Raise what went wrong."""
        known = self._case.known
        others = [
            failure for failure in self._failures
            if known is None or not re.search(known.sign, failure)
        ]  # fmt: skip
        text = "\n".join(others or self._failures)
        assert not others, f"{len(others)} of {self._seen} calls:\n{text}"
        if self._failures:
            raise KnownFault(f"{len(self._failures)} of {self._seen} calls:\n{text}")
        assert self._seen, "there was no such call"


# What a promise that is not kept looks like: an assertion, or an error that nobody should see.
BROKEN = (AssertionError, OSError, RuntimeError, StoreError)


def sweep(
    case: Case, lives: Sequence[Callable[[Strike], None]], *, whole: bool,
    sample: Sequence[int] = SAMPLE,
) -> None:  # fmt: skip
    """Live once for each call, in turn; raise all that went wrong."""
    found = Sweep(case, lives, None if whole else sample)
    for strike, life in found.strikes():
        try:
            life(strike)
        except BROKEN as error:
            found.failed(strike, error)
    found.check()


async def sweep_async(
    case: Case, lives: Sequence[Callable[[Strike], Awaitable[None]]], *, whole: bool,
    sample: Sequence[int] = SAMPLE,
) -> None:  # fmt: skip
    """Do as `sweep`, with a loop."""
    found = Sweep(case, lives, None if whole else sample)
    for strike, life in found.strikes():
        try:
            await life(strike)
        except BROKEN as error:
            found.failed(strike, error)
    found.check()


def cases(*given: Case) -> pytest.MarkDecorator:
    """Run a test with each of them as `case`."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=str(case),
                marks=[pytest.mark.xfail(strict=True, reason=case.known.reason, raises=KnownFault)]
                if case.known
                else [],
            )
            for case in given
        ],
    )


AMOUNTS = pytest.mark.parametrize(
    "whole",
    [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.fault)],
)
