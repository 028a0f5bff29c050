"""Processes that take all the processor time they get, so that tests meet a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Ends with the process that has started it, however that ends.
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy_processes(count: int, program: str = SPIN) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run so many of them until the block ends.

    Each has a session of its own: Linux shares the processors between sessions first, and beside
    many busy processes of one session a broker under test would be as quick as ever.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", program]
            started.append(subprocess.Popen(command, start_new_session=True))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
