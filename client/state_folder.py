"""Where the SDK keeps what must be found again by the next run, whatever its working folder is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote


def state_folder(kind: str) -> Path:
    """Return the user's folder for such state: `~/.local/state/skylarkmq/KIND` on Linux."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return base / "skylarkmq" / kind


def file_name(name: str) -> str:
    """Return a name that every file system takes and that leads out of no folder."""
    return quote(name, safe="").replace(".", "%2E")
