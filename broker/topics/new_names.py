"""How many topics and groups one address may make by merely using them.

Whoever may send, pull or consume makes what it names, each with a line in a table, files and
series of metrics. An application does so a few times; a loop over random names would do nothing
else. Administrators' calls are not counted. Loop thread.

Unlike RocketMQ, which makes any number.
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.allowance import Allowance
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

BURST_S: Final = 10
"""So many seconds' worth may be made at once."""
ADDRESSES_MAX: Final = 4096
"""Addresses that are remembered; one more, and all begin anew."""


class NewNames:
    """Counts by address."""

    def __init__(self, clock: Clock, per_s: int) -> None:
        """Allow `per_s` new names a second; 0 allows any number."""
        self._clock = clock
        self._per_s = per_s
        self._allowances: dict[str, Allowance] = {}

    def check(self, remote_address: str, name: str) -> None:
        """Count a new name.

        Raises:
            RemoteProtocolError: SYSTEM_BUSY; the address has made too many.
        """
        if not self._per_s:
            return
        host = remote_address.rpartition(":")[0]
        allowance = self._allowances.get(host)
        if allowance is None:
            if len(self._allowances) >= ADDRESSES_MAX:
                self._allowances.clear()
            allowance = Allowance(self._clock, self._per_s * BURST_S, self._per_s)
            self._allowances[host] = allowance
        if not allowance.take():
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_BUSY,
                f"{name} is not made: {host} makes more than newNamesPerSecond={self._per_s} "
                "topics or groups by using them; try later, or create them beforehand",
            )
