"""Durable writes of small files that are replaced as a whole, on the tables thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.worker import Worker

Text = Callable[[], bytes]
"""Makes a file's text from what was taken of the table on the loop. Tables thread."""
Written = Callable[[BaseException | None], None]


class TableWriter:
    """Replaces files, one after the other in the order of the calls. Loop thread."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        on_failure: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Take the disk and the thread.

        Args:
            on_failure: called before `done` when the disk failed, but not when the machine refused
                something: the store lies on the same disk and must not go on either.
        """
        self._files = files
        self._worker = worker
        self._on_failure = on_failure

    def write(self, path: Path, text: Text, done: Written) -> None:
        """Replace a file; the old one stays as its `.bak`.

        Args:
            done: called on the loop with None when the file is on the disk, else with the error;
                the old file is intact then.
        """

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None and self._on_failure is not None and refusal(error) is None:
                self._on_failure(error)
            done(error)

        self._worker.submit(lambda: self._files.replace(path, text(), backup=True), finished)
