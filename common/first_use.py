"""Modules that are loaded when they are first used, because a plain start needs none of them.

    if TYPE_CHECKING:
        import difflib
    else:
        difflib = on_first_use("difflib")

The broker starts sooner and stays smaller: `tests/broker/test_start.py` says which modules it must
not load, and loads each module that is named here, so that an error in one is found. Loading takes
the thread that comes first some milliseconds. Not for what every message needs: each use looks the
module up.
"""

from __future__ import annotations

import importlib
from typing import Any, Final


class OnFirstUse:
    """Stands for a module; a use of anything in it loads it."""

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def on_first_use(name: str) -> OnFirstUse:
    """Return what stands for a module, by its full name."""
    return OnFirstUse(name)
