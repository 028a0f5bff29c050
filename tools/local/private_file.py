"""Files that their owner alone can read: what they hold may be secret."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final, TextIO

MODE: Final = 0o600


def private_file(path: Path) -> TextIO:
    """Return a file to write anew; one that was there becomes private, a device stays as it is.

    Raises:
        OSError: it cannot be opened.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
    file = os.fdopen(number, "w", encoding="utf-8")
    if stat.S_ISREG(os.fstat(number).st_mode):
        os.fchmod(number, MODE)
    return file


@contextlib.contextmanager
def replaced_file(path: Path) -> Generator[TextIO]:
    """Write a private file beside, which takes the place of `path` when all is written.

    After an error, and when nothing was written, what was there stays. What is no plain file, as a
    device, is written at once.

    Raises:
        OSError: it cannot be written there.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with private_file(path) as file:
            yield file
        return
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # private, too
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            yield file
            is_empty = not file.tell()
        if is_empty:
            Path(name).unlink()
        else:
            Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
