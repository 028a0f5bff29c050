"""Files that their owner alone can read: what they hold may be secret."""

from __future__ import annotations

import os
import stat
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
