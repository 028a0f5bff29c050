"""Deleting topics: everything that the broker has of one goes, and stays away.

    1  loop   no longer in the topic table nor in the routes of our own name server; offsets of
              all groups and filters of those without a member are forgotten; held pulls are
              answered
    2  store  its queues are removed (`store/queue/topic_removal.py`)
    3  disk   `topics.json` and `consumerOffset.json` are written
    4  store  the topic may be made again

The request is answered after step 4; until then the topic cannot be made. The next start finishes a
deletion that a crash has cut short after the store's first write. One that a full disk refuses is
answered with the reason, and tried again every RETRY_S until it is done.

Where other replicas follow this broker, step 1 is made known to them first, and step 2 follows when
all that count have it: else a successor that never heard of it would go on with the topic, and this
broker would follow it without the queues. From step 2 on they remove their queues, too, each at the
same place of its log. A successor that finds step 1 without step 2 goes on with it.

Unlike RocketMQ, which answers at once, keeps the offsets of the groups, so that consumers of a
topic made again begin after its end, and removes all queues of topics that it does not know.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(deleteTopic)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import is_system_topic
from skylarkmq.store.message_store import MessageStore, StoreState

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0


class DeletionJournal(Protocol):
    """Makes deletions known to the replicas that follow this broker. Loop thread."""

    async def begun(self, topic: str) -> None:
        """Return when it is known that the topic is deleted, and its queues are to go."""

    def removed(self, topic: str, end_offset: int) -> None:
        """Write that its queues are gone, up to a place of the log; now, as the log's next record.

        Called in the turn in which they left the store's table.
        """


class TopicDeletion:
    """Deletes topics. Loop thread, but for `load`.

    Attributes:
        journal: where other replicas follow this broker.
        begun: the topics that are gone for clients and whose queues are still to go; only there.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        holding: PullRequestHoldService,
        clock: Clock,
    ) -> None:
        self._store = store
        self._clock = clock
        self._topics = topics
        self._offsets = offsets
        self._holding = holding
        self.journal: DeletionJournal | None = None
        self.begun: set[str] = set()
        self._under_way: dict[str, asyncio.Task[BaseException | None]] = {}
        self._again: dict[str, asyncio.Future[BaseException | None]] = {}

    def load(self) -> None:
        """Forget the topics that the store was removing at the last stop; the tables are loaded."""
        for topic in self._store.removal.topics.unfinished:
            log.warning("finishing the deletion of topic %s", topic)
            self._forget(topic)

    def start(self) -> None:
        """Finish those deletions."""
        for topic in self._store.removal.topics.unfinished:
            self._finish(topic, None)

    def unknown_topics(self) -> list[str]:
        """Return the topics that have messages in the store and no settings, sorted."""
        known, going = self._topics.table, self._topics.deleting
        stored = {topic for topic, _ in self._store.queues.queues}
        return sorted(
            topic
            for topic in stored
            if topic not in known and topic not in going and not is_system_topic(topic)
        )

    def refusal(self, topic: str) -> str | None:
        """Return why a topic cannot be deleted now, None when it can."""
        return self._store.removal.refusal(topic)

    def delete(self, topic: str) -> asyncio.Task[BaseException | None]:
        """Delete a topic, or what is left in the store of one that is not known.

        It is gone for clients when this returns; the task ends when nothing of it is left. Its
        result is what kept the disk from that; then it is tried again, and may be repeated.
        """
        if topic in self._under_way:
            return self._under_way[topic]
        if self.journal is not None:
            self._forget(topic)
            self._holding.wake_topic(topic)
            self.begun.add(topic)
            return self._begin(topic, self._removed_with_replicas(topic, self.journal))
        return self.remove_queues(topic)

    def remove_queues(self, topic: str) -> asyncio.Task[BaseException | None]:
        """Delete a topic, as `delete`, and ask no one: a master has done so, or there is no other.

        The topic may have been made again already, if that is said afterwards.
        """
        self.begun.discard(topic)
        removed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        if topic in self._under_way:  # made again and deleted again, said afterwards
            self._forget(topic)
            if self._store.remove_topic(topic, removed.set_result):
                self._again[topic] = removed
            return self._under_way[topic]
        # The store writes first: if there is a crash after that, the next start goes on.
        is_removing = self._store.remove_topic(topic, removed.set_result)
        self._forget(topic)
        self._holding.wake_topic(topic)
        return self._finish(topic, removed if is_removing else None)

    def _forget(self, topic: str) -> None:
        self._topics.deleting.add(topic)
        self._topics.delete(topic)
        self._offsets.remove_topic(topic)

    async def _removed_with_replicas(
        self, topic: str, journal: DeletionJournal
    ) -> BaseException | None:
        try:
            await journal.begun(topic)
        except Exception as error:
            log.error(
                "topic %s is gone, but not for the other replicas, trying again in %d s: %s",
                topic,
                RETRY_S,
                error,
            )
            del self._under_way[topic]
            self._clock.call_at(self._clock.monotonic() + RETRY_S, self._try_again, topic)
            return error
        removed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        end_offset = self._store.commit_log.wrote_offset
        is_removing = self._store.remove_topic(topic, removed.set_result)
        self.begun.discard(topic)
        journal.removed(topic, end_offset)
        return await self._finished(topic, removed if is_removing else None)

    def _try_again(self, topic: str) -> None:
        if topic in self._under_way or self._store.state is not StoreState.RUNNING:
            return
        if topic in self.begun and self.journal is not None:
            self.delete(topic)
        elif topic in self._store.queues.held:
            removed: asyncio.Future[BaseException | None]
            removed = asyncio.get_running_loop().create_future()
            self._store.removal.resume(topic, removed.set_result)
            self._finish(topic, removed)

    def _finish(
        self, topic: str, removed: asyncio.Future[BaseException | None] | None
    ) -> asyncio.Task[BaseException | None]:
        return self._begin(topic, self._finished(topic, removed))

    def _begin(
        self, topic: str, work: Coroutine[Any, Any, BaseException | None]
    ) -> asyncio.Task[BaseException | None]:
        finishing = asyncio.get_running_loop().create_task(work)
        self._under_way[topic] = finishing
        return finishing

    async def _finished(
        self, topic: str, removed: asyncio.Future[BaseException | None] | None
    ) -> BaseException | None:
        release = self._store.removal.release
        try:
            while True:
                if removed is not None and (error := await removed) is not None:
                    raise error
                await self._topics.durable()
                await self._offsets.durable()
                if topic not in self._again:
                    await result_of(lambda done: release(topic, lambda error: done(None, error)))
                removed = self._again.pop(topic, None)
                if removed is None:
                    break
        except Exception as error:
            log.error(
                "topic %s is gone, but the disk does not know, trying again in %d s: %s",
                topic,
                RETRY_S,
                error,
            )
            self._clock.call_at(self._clock.monotonic() + RETRY_S, self._try_again, topic)
            return error
        finally:
            del self._under_way[topic]
        self._topics.deleting.discard(topic)
        log.info("topic %s is deleted", topic)
        return None
