"""Administration of a stop that clients do not see: 30004, for `Admin` of the SDK.

The same as the page `/drainz` (`broker/pages/drain_page.py`). A start is answered when name servers
that can be reached know it, or after TOLD_LIMIT_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.drain import DrainBrokerRequestHeader, DrainBrokerResponseHeader
from skylarkmq.remoting.waiting import sleep

if TYPE_CHECKING:
    import skylarkmq.broker.draining.draining as draining
else:  # by the first drain
    draining = on_first_use("skylarkmq.broker.draining.draining")

log = logging.getLogger(__name__)

TOLD_LIMIT_S: Final = 2.0
LOOK_EVERY_S: Final = 0.05
REFRESH_S_MAX: Final = 3600


class AdminDrainProcessor(Processor):
    """Begins and undoes a drain, and tells how it stands. Loop thread."""

    def __init__(
        self, context: Context, find: Callable[[], draining.Draining | None], clock: Clock
    ) -> None:
        """Take what is administered.

        Args:
            find: None, as long as the broker has not started.
            clock: by which peers wait.
        """
        super().__init__(context)
        self._find = find
        self._peer_clock = clock

    @handles(RequestCode.DRAIN_BROKER, DrainBrokerRequestHeader)
    async def drain(self, call: Call[DrainBrokerRequestHeader]) -> Answer:
        """Do what is asked, and answer how it stands (30004)."""
        header, drain = call.header, self._find()
        if drain is None:
            raise refused("the broker has not started yet: try again", ResponseCode.SYSTEM_BUSY)
        if header.action == "start":
            log.warning("%s drains this broker", call.remote_address)
            drain.start(_order(header))
            await self._told(drain)
        elif header.action == "undo":
            await drain.undo()
        elif header.action != "status":
            raise refused(f"action={shown(header.action)}: it is start, undo or status")
        state = drain.state
        return Answer(
            header=DrainBrokerResponseHeader(
                state=state.phase.value,
                moved=state.moved,
                stays=state.stay_count,
                why=state.why or None,
                waits_for="; ".join(state.waits_for) or None,
            )
        )

    async def _told(self, drain: draining.Draining) -> None:
        limit_s = self._peer_clock.monotonic() + TOLD_LIMIT_S
        while not drain.is_told and self._peer_clock.monotonic() < limit_s:
            await sleep(self._peer_clock, LOOK_EVERY_S)


def _order(header: DrainBrokerRequestHeader) -> draining.DrainOrder:
    refresh_s = draining.REFRESH_S if header.refresh is None else header.refresh
    if not 0 <= refresh_s <= REFRESH_S_MAX:
        raise refused(f"refresh={refresh_s}: seconds, from 0 to {REFRESH_S_MAX}")
    names = (header.leaving or "").split(",")
    return draining.DrainOrder(float(refresh_s), frozenset(name for name in names if name))
