"""Deleting topics: everything that the broker has of one goes, and stays away.

    1  loop   no longer in the topic table nor in the routes of our own name server; offsets of
              all groups and filters of those without a member are forgotten; held pulls are
              answered
    2  store  its queues are removed (`store/queue/topic_removal.py`)
    3  disk   `topics.json` and `consumerOffset.json` are written
    4  store  the topic may be made again

Who asked is answered behind step 4; until then the topic can not be made. A deletion that a crash
has cut short behind the store's first write is finished by the next start.

Unlike RocketMQ, which answers at once, keeps the offsets of the groups, so that consumers of a
topic made anew begin behind its end, and removes all queues of topics that it does not know.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(deleteTopic)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

Deleted = Callable[[BaseException | None], None]


class TopicDeletion:
    """Deletes topics. Loop thread, but for `load`."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        filters: ConsumerFilterManager,
        holding: PullRequestHoldService,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._filters = filters
        self._holding = holding
        self._waiting: dict[str, list[Deleted]] = {}

    def load(self) -> None:
        """Forget the topics that the store was removing at the last stop; the tables are loaded."""
        for topic in self._store.removal.topics.unfinished:
            log.warning("finishing the deletion of topic %s", topic)
            self._forget(topic)

    def start(self) -> None:
        """Finish those deletions."""
        for topic in self._store.removal.topics.unfinished:
            self._waiting[topic] = []
            self._removed(topic, None)

    def refusal(self, topic: str) -> str | None:
        """Why a topic can not be deleted now, None when it can."""
        return self._store.removal.refusal(topic)

    def delete(self, topic: str, done: Deleted) -> None:
        """Delete a topic, or what is left in the store of one that is not known.

        Args:
            done: called on the loop when nothing of it is left, or with what kept the disk from
                that: the topic is gone for clients then, and the call may be repeated.
        """
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[topic] = [done]
        # The store's write first, which makes that a crash behind it finishes the deletion.
        is_removing = self._store.removal.remove(topic, partial(self._removed, topic))
        self._forget(topic)
        self._filters.forget_topic(topic)
        self._holding.wake_topic(topic)
        if not is_removing:
            self._removed(topic, None)

    def _forget(self, topic: str) -> None:
        self._topics.deleting.add(topic)
        self._topics.delete(topic)
        self._offsets.remove_topic(topic)

    def _removed(self, topic: str, error: BaseException | None) -> None:
        if error is None:
            self._topics.persisted(partial(self._topics_written, topic))
        else:
            self._end(topic, error)

    def _topics_written(self, topic: str, error: BaseException | None) -> None:
        if error is None:
            self._offsets.persisted(partial(self._offsets_written, topic))
        else:
            self._end(topic, error)

    def _offsets_written(self, topic: str, error: BaseException | None) -> None:
        if error is None:
            self._store.removal.release(topic, partial(self._end, topic))
        else:
            self._end(topic, error)

    def _end(self, topic: str, error: BaseException | None) -> None:
        if error is None:
            self._topics.deleting.discard(topic)
            log.info("topic %s is deleted", topic)
        else:
            log.error("topic %s is gone, but the disk does not know: %s", topic, error)
        for done in self._waiting.pop(topic):
            done(error)
