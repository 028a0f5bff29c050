"""A bound on the calls that a piece of code makes: what would never end fails, and says where."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def call_limit(count: int) -> Generator[None]:
    """Raise an `AssertionError` at the call that is one too many; this thread's calls count.

    A loop that never gives way makes no turn of the event loop, so no count of turns sees it.
    """
    left = count

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        if event not in ("call", "c_call"):
            return
        left -= 1
        if left < 0:
            sys.setprofile(before)
            code = frame.f_code
            raise AssertionError(f"{count} calls, and no end: in {code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(before)
