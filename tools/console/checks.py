"""What `skylarkmq doctor` would say: its checks that are quick, done again and again.

That name servers and brokers answer is asked for each visit to the overview. The others ask every
topic and group, so a page shows what they found last.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from skylarkmq.client.admin import Admin
from skylarkmq.client.instance import Client
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console.history import sleep
from skylarkmq.tools.console.settings import Settings
from skylarkmq.tools.doctor.checks import Examination, not_looked_at
from skylarkmq.tools.doctor.findings import Finding

log = logging.getLogger(__name__)

LOOKS: Final = ("clocks", "disks", "topics", "groups")
"""The others dial each address, or make a connection of their own to each name server."""
SKEW_MAX_S: Final = 5.0
PAUSE_LOOKS: Final = 2
"""So many times the pause between two looks at lags."""
FIRST_S: Final = 3.0
"""How long the first page waits for them."""


class Checks:
    """What was found last. Loop thread."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.at: datetime | None = None
        """When; None: not yet."""
        self._first = asyncio.Event()

    async def first(self) -> None:
        """Wait a moment for the first ones to end."""
        try:
            await asyncio.wait_for(self._first.wait(), FIRST_S)
        except TimeoutError:
            return

    async def keep(self, client: Client, settings: Settings, clock: Clock) -> None:
        """Look again and again; the root of a task."""
        while True:
            try:
                self.found = await self._look(client, settings)
            except Exception as error:
                log.exception("the checks of doctor failed")
                self.found = [not_looked_at("doctor", f"{type(error).__name__}; see the log")]
            self.at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            self._first.set()
            await sleep(clock, PAUSE_LOOKS * settings.sample_s)

    async def _look(self, client: Client, settings: Settings) -> list[Finding]:
        async with Admin(client=client, timeout=settings.timeout, unanswered={}) as admin:
            look = Examination(Client, client, admin, SKEW_MAX_S, _unseen, asks_members=False)
            return await look.found(LOOKS)


def _unseen(what: str, done: int, total: int) -> None:
    """Tell nobody how far it is."""
