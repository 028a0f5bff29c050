"""Pop consumption for whoever speaks a protocol: receive, acknowledge, change the invisible time.

    receive   what is there is handed out at once; else it waits, first come first served, and is
              woken in the turn after the one that publishes something, also a retry
    done      acknowledged, or moved to another topic: in memory at once, answered when it is as
              durable in the journal as the flush mode makes it
    expire    within SLOT_MS of its time a message leaves for a topic of retries (`moves.py`) with
              one more attempt, or for the dead letters; where order counts it comes again in place

The group's offset is the first message that is not done (`deliveries.py`). Where somebody else
changes that in the table of offsets, an administrator for one, the change wins: nothing is in
flight then, and handles from before say nothing any more. A message that was never handed over is
given back: it comes again in place after a second, not counted.

Only a master does this. What is in flight is not replicated: after a failover it comes again.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java,
AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java
"""

from __future__ import annotations

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.pop.admin_changes import AdminChanges
from skylarkmq.broker.pop.arrivals import Arrivals
from skylarkmq.broker.pop.handles import PLUS_RETRY, RETRY
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.journal import PopJournal
from skylarkmq.broker.pop.journal_check import verified
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.receiving import Receiver
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.restoring import LiveState, StoredQueues, restore
from skylarkmq.broker.pop.settlement import Settlement
from skylarkmq.broker.pop.states import MOVING, RELEASED
from skylarkmq.broker.pop.timeouts import VisibilityTimeouts
from skylarkmq.broker.requests.processor import Context
from skylarkmq.common.clock import Clock
from skylarkmq.store.pop.journal_records import UNKNOWN, PopState


class PopService:
    """The life of pop consumption: made, loaded, started, stopped and closed. Loop thread.

    Attributes:
        receiver: hands out messages.
        settlement: takes what becomes of them.
        moves: copies what leaves for retries or dead letters.
        in_flight: what is not done.
    """

    def __init__(
        self, context: Context, journal: PopJournal, peer_clock: Clock, stats: BrokerStats
    ) -> None:
        """Make it; nothing is handed out before `start`.

        Args:
            peer_clock: what waiting clients are measured by.
        """
        self._store = context.store
        self._offsets = context.offsets
        self._journal = journal
        self._timeouts = VisibilityTimeouts(context.clock)
        self.registry = PopRegistry(context)
        self._arrivals = Arrivals(context.store, self.registry)
        self.in_flight = InFlight(context, journal, self._timeouts, self._arrivals, stats)
        retries = PLUS_RETRY if context.config.enable_retry_topic_v2 else RETRY
        self.moves = Moves(context, self.registry, self.in_flight, retries)
        self.receiver = Receiver(
            context, peer_clock, self.registry, self.in_flight, self.moves, stats
        )
        self.settlement = Settlement(self.registry, self.in_flight, self.moves)
        self._changes = AdminChanges(context, self.registry, self.in_flight, self.moves)
        self._has_begun = False
        self._loaded: PopState | None = None

    def load(self) -> None:
        """Read what was in flight at the last stop; the store and the tables are loaded. Blocks.

        Raises:
            CorruptFileError: the journal was written by a later release.
            OSError: the disk failed.
        """
        store = self._store
        if store.follows:
            self._journal.discard()  # its log may have been cut, and have grown anew
            return
        recovery = store.recovery
        self._loaded = verified(
            self._journal.load(),
            StoredQueues(store, self._offsets),
            store.commit_log.max_offset,
            is_store_clean=recovery is not None and recovery.clean,
        )

    def start(self) -> None:
        """Hand out from now on, also after `stop`. This is a master, its store has started.

        The first time it blocks for a write of the journal, if something was in flight.

        Raises:
            OSError: the disk refused that.
        """
        self.in_flight.is_open = True
        self.receiver.start()
        self.moves.start()
        self._timeouts.start(self.settlement.expired)
        loaded, self._loaded = self._loaded, None
        if not self._has_begun:
            self._has_begun = True
            kept = restore(loaded or PopState(), self.registry, self.in_flight)
            self._journal.begin(kept, LiveState(self.registry, self.in_flight, self._store))
        if self.registry.groups:
            self._arrivals.listen()
        for queue in self.registry.queues():
            for delivery in queue.in_flight.values():
                if delivery.state is not MOVING or delivery.copy_physical != UNKNOWN:
                    continue  # else the copy was not stored
                if delivery.to_dead_letters and not self.registry.has_topic(delivery.topic):
                    self.moves.add(delivery)  # no receive would ask for it
                else:
                    delivery.move_to(RELEASED)
                    self._timeouts.set(delivery, self._timeouts.now_ms())
            self._arrivals.relist(queue)

    async def stop(self) -> None:
        """Hand out nothing more: answer receives that wait, and end copies under way.

        What is in flight stays known, for `start`.
        """
        self.in_flight.is_open = False
        self.receiver.end_polls()
        self._timeouts.stop()
        await self.moves.stop()

    async def close(self) -> None:
        """End the journal, after `stop`. The store still writes, the offsets are written after."""
        await self._journal.stop()
