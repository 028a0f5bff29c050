"""Durable writes of small tables: a group commit, one write frees all who wait for that table.

A change of a topic or group is acknowledged when its JSON file is on the disk. While one write is
under way further changes only queue their waiters; the next write carries them all.

Runs on the loop thread; making the text and the disk work run on the tables worker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skylarkmq.common.files import Files, is_no_space
from skylarkmq.common.worker import Worker

Text = Callable[[], bytes]
"""Makes the text of a table from what was taken of it on the loop. Tables thread."""
Written = Callable[[BaseException | None], None]


class TableWriter:
    """Writes whole tables, each to its file, in the order of their first write."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        on_failure: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Take the disk and the thread.

        Args:
            on_failure: called before the waiters when the disk failed, not when it was full: the
                store lies on the same disk and must not go on either.
        """
        self._files = files
        self._worker = worker
        self._on_failure = on_failure
        # Invariant: a path is a key while a write of it is under way or wanted.
        self._waiting: dict[Path, tuple[Text, list[Written]]] = {}
        self._writing: set[Path] = set()

    def write(self, path: Path, text: Text, done: Written) -> None:
        """Write a table; of what comes while a write is under way the newest text is written.

        Args:
            done: called on the loop with None when the file holds at least the state of this
                call, or with the error that kept it from the disk (the old file is then intact).
        """
        _, waiters = self._waiting.get(path, (text, []))
        waiters.append(done)
        self._waiting[path] = text, waiters
        if path not in self._writing:
            self._start(path)

    @property
    def idle(self) -> bool:
        """Whether no write is under way."""
        return not self._writing

    def _start(self, path: Path) -> None:
        text, waiters = self._waiting.pop(path)
        self._writing.add(path)

        def job() -> None:
            self._files.replace(path, text(), backup=True)

        def finished(_: None, error: BaseException | None) -> None:
            self._writing.discard(path)
            if error is not None and self._on_failure is not None and not is_no_space(error):
                self._on_failure(error)
            if path in self._waiting:
                self._start(path)
            for waiter in waiters:
                waiter(error)

        self._worker.submit(job, finished)
