"""What the state machine of a replica does with the log here, and with the broker on it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from skylarkmq.broker.base.waiting import result_of, synced
from skylarkmq.broker.controller import EXIT_STORE_FAILED
from skylarkmq.broker.replica_lives import Lives, Stage
from skylarkmq.broker.replica_role import ReplicaRole
from skylarkmq.broker.replication.failover.replica_driver import LogPlaces, ReplicaDriver
from skylarkmq.broker.replication.failover.replica_events import Tick
from skylarkmq.broker.replication.failover.replica_links import ReplicaLinks
from skylarkmq.broker.replication.failover.terms import Lineage, TermStart
from skylarkmq.common.errors import StoreError
from skylarkmq.common.refusal import refusal
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.errors import StoreFullError

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
RETRY_S: Final = 0.5


class BrokerHome:
    """The `ReplicaHome` of a broker. Loop thread.

    Attributes:
        shown: set when more of the log is confirmed, or this replica leads no more.
    """

    driver: ReplicaDriver
    links: ReplicaLinks
    role: ReplicaRole

    def __init__(self, lives: Lives, on_end: Callable[[int], None]) -> None:
        """Make it; `driver`, `links` and `role` are set before the driver starts.

        Args:
            on_end: told the exit code when the process cannot go on.
        """
        self.shown = asyncio.Event()
        self._lives = lives
        self._on_end = on_end

    def places(self) -> LogPlaces:
        return self._lives.places

    def lineage(self) -> Lineage:
        return self._lives.terms.rows

    async def cut_back(self, offset: int, lineage: Lineage, *, anew: bool) -> Lineage:
        self.forget_part()
        found = self.places()
        has_log = found.end > found.begin
        if self._lives.stage is Stage.FOLLOWING:
            if not anew and offset == found.end:
                await self._synced()
                await self._granted(partial(self._keep, lineage), self._goes_on)
                return self.lineage()
            await self._lives.begin_next()
        if anew and has_log:
            await self._lives.begin_anew()
        is_cut = await self._granted(partial(self._cut, offset, anew=anew), self._goes_on)
        if is_cut and await self._granted(partial(self._keep, lineage), self._goes_on):
            await self._follow()
        return self.lineage()

    async def _cut(self, offset: int, *, anew: bool) -> None:
        if not anew:
            self._lives.cut(offset)

    async def _keep(self, lineage: Lineage) -> None:
        await asyncio.to_thread(self._lives.terms.keep, lineage)

    def _goes_on(self) -> bool:
        return not self._lives.is_stopping

    async def _granted(
        self,
        attempt: Callable[[], Awaitable[None]],
        is_wanted: Callable[[], bool],
        limit_s: float = math.inf,
    ) -> bool:
        """Do something as soon as the machine has what it takes.

        Returns False when it is no longer wanted before.

        Raises:
            StoreError, OSError: it has failed for good, or is refused for `limit_s`.
        """
        clock, told = self._lives.now.peer_clock, False
        until_s = clock.monotonic() + limit_s
        while True:
            try:
                await attempt()
                return True
            except (StoreFullError, OSError) as error:
                is_final = isinstance(error, OSError) and refusal(error) is None
                if is_final or clock.monotonic() >= until_s:
                    raise
                if not told:
                    told = True
                    log.error("this replica stores nothing and waits for its machine: %s", error)
            await sleep(clock, RETRY_S)
            if not is_wanted():
                return False

    async def _follow(self) -> None:
        """From opened to following: the log is the master's up to its end."""
        parts = self._lives.now.parts
        parts.load_tables()
        parts.metadata.fold()
        parts.metadata.follow()
        parts.groups.follows = True
        await self._serve()
        parts.metadata.finish_removals()
        self._lives.stage = Stage.FOLLOWING
        self._stored(self._lives.store.commit_log.stored_offset)
        self.role.tell()

    async def _serve(self) -> None:
        await self._lives.now.serve()
        if self._lives.now.router is not None:
            self._lives.now.router.guard = self._look_at_time

    def _look_at_time(self) -> None:
        """Before requests are handled: after a standstill another replica may lead by now."""
        driver, now_s = self.driver, self._lives.now.peer_clock.monotonic()
        if now_s - driver.ticked_s > driver.rules.lease_s / 10:
            driver.ticked_s = now_s
            driver.hear(Tick())

    def _stored(self, _: int) -> None:
        """Have the driver look at the log whenever more of it is stored."""
        self._lives.store.writer.on_stored = self._stored
        self.driver.log_moved()

    async def keep_rows(self, rows: Lineage) -> None:
        for row in rows:
            await asyncio.to_thread(self._lives.terms.append, row)

    def append(self, offset: int, data: bytes) -> None:
        if self._lives.terms.is_behind:
            raise StoreError("the row of its term is not on the disk")
        self._lives.store.take_records(offset, data)

    def forget_part(self) -> None:
        if self._lives.stage is not Stage.CLOSED:
            self._lives.store.received.forget()

    async def freeze(self) -> None:
        self.forget_part()
        if self._lives.stage is Stage.FOLLOWING:  # else recovery has synced it
            await self._synced()

    async def _synced(self) -> None:
        """Return when all that was taken is on the disk.

        Raises:
            StoreError: the disk has failed, and who knows what is on it.
        """
        try:
            await result_of(synced(self._lives.store))
        except Exception as error:
            raise StoreError(f"the store has failed: {error}") from error

    async def begin_term(self, row: TermStart) -> Lineage:
        # Another replica may lead where this one cannot for so long.
        begin, limit_s = partial(self._lives.terms.append, row), self.driver.rules.lease_s
        attempt = partial(asyncio.to_thread, begin)
        await self._granted(attempt, lambda: self._may_begin(row.term), limit_s)
        return self.lineage()

    async def lead(self, term: int) -> None:
        life, parts = self._lives.now, self._lives.now.parts
        if self._lives.stage is Stage.OPENED:
            parts.load_tables()
            parts.metadata.fold()
            await self._serve()
            self._stored(self._lives.store.commit_log.stored_offset)
        if parts.store.commit_log.mapped_files.last is None:
            try:
                parts.store.commit_log.open_first()
            except StoreFullError as error:
                log.warning("leading without room for messages: %s", error)
        self._lives.stage = Stage.LEADING
        self.role.tell()
        end = parts.store.commit_log.wrote_offset
        while self._may_begin(term):
            try:
                await parts.metadata.start_as_master(term, life.store_host)
                break
            except StoreError as error:
                if parts.metadata.failure is not None or self._lives.now.failed:
                    raise
                log.warning("this replica does not lead yet: %s; trying again", error)
            await sleep(life.peer_clock, RETRY_S)
        # Services of a master read some things once, at their start, such as the ends of
        # transactions: what the log held when this began must be shown by then.
        while self._may_begin(term) and parts.store.writer.published_offset < end:
            self.shown.clear()
            await self.shown.wait()
        await parts.deduplication.lead()
        if not self._may_begin(term):
            return
        parts.groups.follows = False
        parts.earlier.begin()
        parts.start_master_services()
        self._lives.serves = True
        log.info("this replica leads %s in term %d", self._lives.config.broker_name, term)
        self.role.tell()

    def _may_begin(self, term: int) -> bool:
        """Whether this replica still leads that term, and does not stop."""
        return self.driver.state.term == term and not self._lives.is_stopping

    def stop_leading(self, why: str) -> None:
        if self._lives.stage is Stage.CLOSED:
            return
        self._lives.serves = False
        self.shown.set()
        self._lives.now.parts.metadata.stop_as_master()
        self._lives.store.give_up_waiting()
        self.role.tell()

    async def stopped_leading(self) -> None:
        if not self._lives.is_stopping and self._lives.stage is Stage.LEADING:
            await self._lives.begin_next()

    def halt(self, why: str) -> None:
        self.role.halted = why
        log.critical("this replica stands still: %s", why)
        self.role.tell()

    def fail(self, error: BaseException) -> None:
        log.critical("this replica cannot go on: %s", error, exc_info=error)
        self._on_end(EXIT_STORE_FAILED if self._lives.now.failed else EXIT_FAILED)

    def looked(self) -> None:
        shown = self.driver.state.shown
        if shown is not None and self._lives.stage in (Stage.FOLLOWING, Stage.LEADING):
            self._lives.store.confirm(shown)
            self.shown.set()
        self.links.confirmed = self.driver.state.confirmed
        self.role.tell()
