"""How much work a call does, in lines of Python: a measure that is the same on each machine.

    with counted_lines() as work:
        connection.data_received(data)
    assert work.lines < LINES_A_BYTE * len(data)

Lines that compiled code takes the place of are not seen, and neither is what one line copies.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Work:
    """What was done.

    Attributes:
        lines: of Python that ran, loops counted each time.
    """

    def __init__(self) -> None:
        self.lines = 0


@contextmanager
def counted_lines() -> Generator[Work]:
    """Count the lines that this thread runs within the block."""
    work = Work()

    def within(_frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            work.lines += 1
        return within

    before = sys.gettrace()
    sys.settrace(within)
    try:
        yield work
    finally:
        sys.settrace(before)
