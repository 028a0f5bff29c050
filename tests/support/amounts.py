"""How much a fault test does: all of it under `-m fault`, a fixed quarter in the usual suite."""

from __future__ import annotations

import pytest


def amount(config: pytest.Config, *, full: int, usual: int) -> int:
    """Return `full` when fault tests were asked for by name, else `usual`."""
    return full if "fault" in str(config.getoption("-m")) else usual
