"""Which topics have a deduplication window, as their attributes say; the windows are the store's.

    start, or the beginning of leading   windows are made from the topics' queues and the log
    a topic gets a window later          it begins without a key, and knows what comes from then on
    a topic is deleted                   its window goes
    following another broker             no windows: nothing is sent here

Retry topics and the broker's own have none, whatever their attributes say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
)
from skylarkmq.protocol.topic_attributes import (
    DeduplicationWindow,
    WrongAttributeError,
    deduplication_of,
)
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
"""How often keys are forgotten whose time is over, in topics that nobody sends to."""
_NEVER: Final = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)


class DeduplicationService:
    """Keeps the store's windows as the topics want them. Loop thread, but for `load`."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, topics: TopicConfigManager, clock: Clock
    ) -> None:
        self._config = config
        self._store = store
        self._windows = store.deduplication
        self._topics = topics
        self._clock = clock
        self._timer = IntervalTimer(clock, SWEEP_S, self._sweep)
        self._works = False
        topics.add_change_listener(self._changed)
        topics.add_deletion_listener(self._deleted)

    def load(self) -> None:
        """Make the windows of a broker that leads from the start. Blocks; before it serves."""
        for _ in self._rebuild():
            pass

    async def lead(self) -> None:
        """Make the windows of a replica that begins to lead, before sends are taken.

        All of its log is shown.
        """
        for _ in self._rebuild():
            await asyncio.sleep(0)

    def start(self) -> None:
        """Forget keys in time from now on."""
        self._timer.start()

    def stop(self) -> None:
        """Do so no more."""
        self._timer.stop()

    def refusal(self, topic: TopicConfig) -> str | None:
        """Return why a topic cannot have the window that it wants; None when it can."""
        try:
            size = size_of(topic)
        except WrongAttributeError as error:
            return str(error)
        if size is None:
            return None
        others = sum(
            window.size.keys
            for name, window in self._windows.windows.items()
            if name != topic.topic_name
        )
        limit = self._config.max_deduplication_keys
        if others + size.keys > limit:
            return (
                f"no room for {size.keys} unique keys of topic {topic.topic_name}: the windows of "
                f"other topics have {others}, maxDeduplicationKeys={limit}"
            )
        return None

    def _rebuild(self) -> Iterator[None]:
        self._windows.windows.clear()
        queue_ids: dict[str, list[int]] = {}
        for name, queue_id in self._store.queues.queues:
            queue_ids.setdefault(name, []).append(queue_id)
        total, started = 0, self._clock.monotonic()
        for topic in list(self._topics.table.values()):
            size = _size_or_none(topic)
            if size is None:
                continue
            name, now_ms = topic.topic_name, self._clock.now_ms()
            yield from self._windows.rebuild(name, size, queue_ids.get(name, ()), now_ms)
            total += self._windows.windows[name].count
        self._works = True
        for topic in self._topics.table.values():
            self._changed(topic)  # it may have changed meanwhile
        windows = self._windows.windows
        if windows:
            took_s = self._clock.monotonic() - started
            log.info(
                "deduplication: %d unique keys of %d topics are known (%.2f s)",
                total,
                len(windows),
                took_s,
            )
        wanted, limit = (
            sum(window.size.keys for window in windows.values()),
            self._config.max_deduplication_keys,
        )
        if wanted > limit:
            log.warning(
                "the deduplication windows of %d topics may take %d keys, more than "
                "maxDeduplicationKeys=%d: raise it, or make windows smaller",
                len(windows),
                wanted,
                limit,
            )

    def _changed(self, topic: TopicConfig) -> None:
        if self._works:
            self._windows.want(topic.topic_name, _size_or_none(topic))

    def _deleted(self, topic: str) -> None:
        self._windows.want(topic, None)

    def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        for window in self._windows.windows.values():
            window.expire(now_ms)


def size_of(topic: TopicConfig) -> DeduplicationWindow | None:
    """Return how many unique keys a topic wants to be known; None: it has no window.

    Raises:
        WrongAttributeError: its attributes are no window.
    """
    wanted = deduplication_of(topic.attributes_map)
    if wanted is None:
        return None
    if topic.topic_name.startswith(_NEVER) or is_system_topic(topic.topic_name):
        raise WrongAttributeError(
            f"topic {topic.topic_name} cannot have a deduplication window: retries, dead letters "
            "and the broker's own messages are copies"
        )
    return wanted


def _size_or_none(topic: TopicConfig) -> DeduplicationWindow | None:
    try:
        return size_of(topic)
    except WrongAttributeError as error:
        log.error("topic %s has no deduplication window: %s", shown(topic.topic_name), error)
        return None
