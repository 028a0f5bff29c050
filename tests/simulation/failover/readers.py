"""Consumers of the model: they live on through every promotion, their positions in their memory.

A reader asks whoever leads, or believes so. It takes what is shown behind its position; where less
is shown it goes back to that end, as PULL_OFFSET_MOVED tells clients. The checker of deliveries
knows what was acknowledged, and so which of it nobody read.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.simulation.failover.replica import Record, Replica
from tests.support.delivery_history import DeliveryHistory, Missed

LOG: Final = ("log", 0)
"""One queue, whose offsets are places in the log."""
EAGERNESS: Final = {"eager": 1.0, "slow": 0.05}
"""How often each reader asks, of all moments at which it could."""


class Readers:
    """All of one schedule. Their own random source leaves the schedule's course as it was."""

    def __init__(self, seed: int) -> None:
        self._history = DeliveryHistory()
        self._rng = Random(seed)
        self._positions = dict.fromkeys(EAGERNESS, 0)
        for name in EAGERNESS:
            self._history.joins(name, name)
        self.moved = 0
        """How often one was sent back."""

    def acknowledged(self, end: int, record: Record) -> None:
        """A client was told that its record is there."""
        self._history.acked(str(record), LOG, end - 1)

    def read(self, leaders: list[Replica], *, all_of_them: bool = False) -> None:
        """Some of them ask one of these."""
        for name, eagerness in EAGERNESS.items():
            if leaders and (all_of_them or self._rng.random() < eagerness):
                self._pull(name, self._rng.choice(leaders))

    def _pull(self, name: str, replica: Replica) -> None:
        machine = replica.machine
        if machine is None or replica.is_paused or machine.shown is None:
            return
        position, shown = self._positions[name], machine.shown
        if shown < position:
            self.moved += 1
        for record in replica.disk.log[position:shown]:
            self._history.sent(str(record))
            self._history.delivered(name, name, str(record))
        self._positions[name] = shown

    def missed(self) -> list[Missed]:
        """Return what was acknowledged and one of them did not read."""
        return self._history.missed()
