"""Which histories are known to make which consumers pass over acknowledged messages.

A position is in the consumer's memory or file, and says nothing about the log that it belongs to.
Who mends one of these takes it away here.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Return(Enum):
    """How a consumer comes back to its broker."""

    LIVES_ON = auto()
    """It has waited, its positions in its memory."""
    ASKED_BEFORE = auto()
    """The same, and another client asked about the queue before."""
    STARTED_AGAIN = auto()
    """It was stopped before, and is a new one: its positions are where it keeps them."""


OLD_POSITION: Final = "a position of the log's life before passes over what came in its place"
UNBOUND_FILE: Final = "the file of a broadcasting consumer is bound to no life of the log"

_SHORTER: Final = {
    *("power_cut", "restore", "promotion", "empty_start"),
    *("truncate", "truncate_after_a_kill", "salvage"),
}


def passes_over(history: str, kind: str, returns: Return) -> str | None:
    """Return why a consumer is known to pass over messages; None: it has to see all of them."""
    if history not in _SHORTER:
        return None
    if returns is Return.STARTED_AGAIN:
        return UNBOUND_FILE if kind == "broadcasting" else None
    if kind == "pop":
        return None  # its positions are the broker's
    if kind == "ordered" and history == "empty_start":
        return None  # its lock is refused first, and it asks where it stands
    return OLD_POSITION
