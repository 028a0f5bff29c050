"""The states of a delivery, and the table of the moves between them.

    released       nobody has it: it waits in place for a receive, or rests for a moment before
    acquired       a client has it, until it settles it or its time is over
    acknowledged   its client is done with it; of an ordered group it stays so until all before it
                   are done, and comes again with one before it that does
    moving         it is being copied to a topic of retries, or to the dead letters
    archived       it is done without an acknowledgement: its copy is on the disk, nobody wants it,
                   or an administrator's change has ended it

As the records of Kafka's share groups. A move that the table does not have is a bug of ours.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class DeliveryState(IntEnum):
    """Where a delivery is; an int, because its hash is quick."""

    RELEASED = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    MOVING = 3
    ARCHIVED = 4


# A member of an enumeration costs more to look up than a name.
RELEASED: Final = DeliveryState.RELEASED
ACQUIRED: Final = DeliveryState.ACQUIRED
ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
MOVING: Final = DeliveryState.MOVING
ARCHIVED: Final = DeliveryState.ARCHIVED

ALLOWED: Final[dict[DeliveryState, frozenset[DeliveryState]]] = {
    RELEASED: frozenset({ACQUIRED, MOVING, ARCHIVED}),
    # Again acquired: the attempt of an ordered group asks a second time.
    ACQUIRED: frozenset({ACQUIRED, ACKNOWLEDGED, RELEASED, MOVING, ARCHIVED}),
    ACKNOWLEDGED: frozenset({ACQUIRED, RELEASED, ARCHIVED}),
    # Acquired: the dead letter that a client asked for could not be stored.
    MOVING: frozenset({ACQUIRED, RELEASED, ARCHIVED}),
    ARCHIVED: frozenset(),
}
