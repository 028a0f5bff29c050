"""One life of a replica's broker after another, in one process: a store opens, serves and closes.

    opened      the store is loaded and its log stands still: another replica's may be longer
    following   the log is the master's; reads are answered as far as all in sync have it
    leading     everything is served

A life is a `BrokerController` from its opening to its stop. From following to leading it goes in
place. A replica that leads no more, or must cut its log while it is open, ends its life as a
broker that stops, and begins another one: so everything that was derived from the log is made from
what the log says now. Meanwhile `ReplicaDriver` and the links to other replicas stay, but while a
store is loaded or cut the loop stands still, and they with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from functools import partial

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.replication.failover.joining import set_aside
from skylarkmq.broker.replication.failover.replica_driver import LogPlaces
from skylarkmq.broker.replication.failover.replica_links import ReplicaLinks
from skylarkmq.broker.replication.failover.replica_status import Replicated
from skylarkmq.broker.replication.failover.terms import TermsFile
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.progress import Progress

log = logging.getLogger(__name__)

MakeLife = Callable[[BrokerConfig], BrokerController]


class Stage(Enum):
    """How far a life is."""

    CLOSED = "closed"
    OPENED = "opened"
    FOLLOWING = "following"
    LEADING = "leading"


class Lives:
    """The broker of a replica. Loop thread.

    Its size is one idea: one life after another, with what must go over from each to the next.

    Attributes:
        config: of the next life.
        now: the broker as it is now.
        number: of this life; the first one has 1.
        terms: the rows beside its log.
        recovered_end: of the log, when this life began.
        serves: what a master runs has started.
        is_stopping: the process stops, so nothing begins any more.
    """

    terms: TermsFile

    def __init__(
        self,
        config: BrokerConfig,
        make_life: MakeLife,
        files: Files,
        *,
        on_end: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Take the configuration; nothing is opened yet.

        Args:
            on_end: told the exit code of a life that ends the process.
            on_failure: told why the store has failed.
        """
        self.config = config
        self.now = make_life(config)
        self.number = 0
        self.stage = Stage.CLOSED
        self.recovered_end = 0
        self.serves = False
        self.is_stopping = False
        self._make_life = make_life
        self._files = files
        self._on_end = on_end
        self._on_failure = on_failure
        self._places = LogPlaces()  # of the last life, between two
        self._stats: BrokerStats | None = None  # of the last life
        self._replica: Replicated | None = None
        self._links: ReplicaLinks | None = None

    @property
    def store(self) -> MessageStore:
        """The store of this life."""
        return self.now.parts.store

    @property
    def places(self) -> LogPlaces:
        """Where the log begins and ends; between two lives, as it was."""
        if self.stage is Stage.CLOSED:
            return self._places
        found = self.store.commit_log
        return LogPlaces(found.min_offset, found.wrote_offset, found.stored_offset)

    async def begin(self, progress: Progress | None = None) -> None:
        """Open the store: another life of the broker, or the first one.

        Raises:
            As `BrokerController.open`.
        """
        if self.now.ended is not None or self.now.config is not self.config:
            since_ms = self.now.since_ms
            self.now = self._make_life(self.config)
            self.now.since_ms = since_ms
        life = self.now
        await life.open(progress)
        store = life.parts.store
        try:
            self.terms = TermsFile(self._files, store.paths.terms)
            self.terms.load(store.commit_log.wrote_offset)
        except BaseException:
            await life.abandon()
            raise
        assert life.ended is not None
        life.ended.add_done_callback(partial(self._ended, life))
        self.recovered_end = store.commit_log.wrote_offset
        store.failure_listeners.append(self._on_failure)
        self.serves = False
        self.number += 1
        self.stage = Stage.OPENED
        if self._links is not None:
            self._attach()

    def take_part(self, replica: Replicated, links: ReplicaLinks) -> None:
        """Let each life from this one on know the replica, and the links its log."""
        self._replica, self._links = replica, links
        self._attach()

    def _attach(self) -> None:
        assert self._links is not None
        parts = self.now.parts
        if self._stats is not None:  # they tell of this process
            parts.stats.forced_failovers = self._stats.forced_failovers
            parts.stats.messages_at_risk = self._stats.messages_at_risk
        self._stats = parts.stats
        parts.replica = self._replica
        self._links.attach(parts.store)

    def shut(self) -> None:
        """From here on the log is closed, and nobody may be told where it ends."""
        assert self._links is not None
        self._places, self.stage = self.places, Stage.CLOSED
        self._links.attach(None)

    async def end(self) -> None:
        """Stop this broker, for the next one.

        Raises:
            StoreError: the disk has failed.
        """
        self.shut()
        self.now.parts.metadata.stop_as_master()
        await asyncio.sleep(0)  # connections that it cut have let go of the log's files then
        await self.now.stop()
        if self.now.failed:
            raise StoreError(f"the store has failed: {self.store.failure}")

    async def begin_next(self) -> None:
        """End this life, and begin another one with what the disk has."""
        log.info("its broker stops and begins anew in this process, to follow")
        await self.end()
        await self.begin()

    async def begin_anew(self) -> None:
        """Put the store aside: its log is no part of the master's, or too old to go on with."""
        paths = self.store.paths
        await self.end()
        aside = await asyncio.to_thread(set_aside, paths.root, paths.commit_log, paths.replica)
        log.warning(
            "this replica's log does not go on in its master's: what it had is in %s, and it "
            "follows from the beginning; remove that folder when nothing in it is missed",
            aside,
        )
        await self.begin()

    def cut(self, offset: int) -> None:
        """Cut the log of a life that is opened back to an offset, if it is longer."""
        if offset < self.store.commit_log.wrote_offset:
            self.store.cut_back(offset)
            self.recovered_end = offset

    def _ended(self, life: BrokerController, ended: asyncio.Future[int]) -> None:
        if life is self.now and not ended.cancelled():
            self._on_end(ended.result())
