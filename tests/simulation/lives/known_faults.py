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
TABLE_ABOVE: Final = "offline tools leave a group's positions above the ends of the queues"
UNBOUND_FILE: Final = "the file of a broadcasting consumer is bound to no life of the log"

_SHORTER: Final = {
    *("power_cut", "restore", "promotion", "empty_start"),
    *("truncate", "truncate_after_a_kill", "salvage"),
}
_TOOLS: Final = {"truncate", "salvage"}  # after a clean stop, or leaving a store that looks so


def passes_over(history: str, kind: str, returns: Return) -> str | None:
    """Return why a consumer is known to pass over messages; None: it has to see all of them."""
    if history not in _SHORTER:
        return None
    if returns is Return.STARTED_AGAIN:
        if kind == "broadcasting":
            return UNBOUND_FILE
        return TABLE_ABOVE if history in _TOOLS else None
    if kind == "pop":  # its positions are the broker's
        return TABLE_ABOVE if history in _TOOLS else None
    if kind == "ordered" and history == "empty_start":
        return None  # its lock is refused first, and it asks where it stands
    return OLD_POSITION


GOES_NOT_WITH_ITS_TOPIC: Final = "late messages of a deleted topic come in the next one of its name"
DELAY_OFFSETS_ABOVE: Final = "offline tools leave delay offsets above the ends of their queues"
CHECKPOINT_AHEAD: Final = "a checkpoint of timers that knows more than the queue has is believed"
COPY_CUT: Final = "a timed message counts as delivered, though the cut took its copy"
_CUTS: Final = {*_TOOLS, "truncate_after_a_kill"}


def late_one_never_comes(history: str, kind: str) -> str | None:
    """Return why a late message that is sent afterwards is known not to come."""
    if kind == "delayed":
        return DELAY_OFFSETS_ABOVE if history in _CUTS else None
    return CHECKPOINT_AHEAD if history == "truncate_after_a_kill" else None


def cut_copy_does_not_come_again(history: str, kind: str) -> str | None:
    """Return why a late message is known not to come again whose copy in its topic is gone."""
    if kind == "delayed":
        return DELAY_OFFSETS_ABOVE if history in _CUTS else None
    return COPY_CUT if history in _CUTS - {"salvage"} else None
