"""Which address leads each broker name, and what happens when another one does.

Brokers' memory of this client went with the old master. So it counts as a connection that was made
again. The connection to the old master ends STRAY_S later, unless a route still names that address:
what waits there for an answer goes to the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.client.wire.route import RouteTable, TopicRoute
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.remoting.client import RemotingClient

log = logging.getLogger(__name__)

STRAY_S: Final = 1.0
"""How long a master that was replaced may still answer what it was asked before."""


class Masters:
    """The masters that one client knows. Loop thread."""

    def __init__(
        self,
        remoting: RemotingClient,
        routes: RouteTable,
        clock: Clock,
        changed: Callable[[str], None],
    ) -> None:
        """Take what is told the address of another master."""
        self._remoting = remoting
        self._routes = routes
        self._clock = clock
        self._changed = changed
        self._masters: dict[str, str] = {}  # by broker name: the address of the last one known
        self._strays: dict[str, TimerHandle] = {}
        self._stopped = False

    def stop(self) -> None:
        """Leave the connections as they are."""
        self._stopped = True
        for timer in self._strays.values():
            timer.cancel()

    def look_at(self, route: TopicRoute) -> None:
        """Compare a route with what is known."""
        for name, addresses in route.brokers.items():
            master = addresses.get(MASTER_ID)
            before = self._masters.get(name)
            if master is not None and master != before:
                self._masters[name] = master
                if before is not None:
                    self._replaced(name, before, master)

    def _replaced(self, name: str, before: str, now: str) -> None:
        log.info("the master of %s is %s now, it was %s", name, now, before)
        self._changed(now)
        if before not in self._strays and not self._stopped:
            when_s = self._clock.monotonic() + STRAY_S
            self._strays[before] = self._clock.call_at(when_s, self._leave, before)

    def _leave(self, address: str) -> None:
        """End the connection to a broker that no route names any more."""
        del self._strays[address]
        named = {each for broker in self._routes.brokers().values() for each in broker.values()}
        connection = self._remoting.ready(address)
        if connection is not None and address not in named:
            connection.give_up("another broker has its place")
