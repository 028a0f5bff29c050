"""`skylarkmq` as a program calls it, without a process for each command."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Generator
from typing import Any

from tests.tools.command import Said, say


class Shell:
    """Runs commands."""

    def __call__(self, *words: str, code: int = 0, stdin: str | bytes = "") -> Said:
        """Run a command and check its exit code."""
        said = self.any(*words, stdin=stdin)
        assert said.code == code, said
        return said

    def any(self, *words: str, stdin: str | bytes = "") -> Said:
        """Run a command, whatever its exit code is."""
        return say(words, stdin)

    def send(self, topic: str, body: str, *options: str) -> Any:
        """Send a message and return the send's result."""
        return self("send", topic, body, *options).json


@contextlib.contextmanager
def beside(work: Coroutine[Any, Any, None]) -> Generator[None]:
    """Do something in a loop of its own while a command runs; it is cancelled in the end."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
