"""Keeps groups that are far behind from overloading the disk, where the site wants that.

With `disableConsumeIfConsumerReadSlowly`, every 3 minutes the groups whose last pull of a queue in
that time was more than `consumerFallbehindThreshold` bytes behind the end of the commit log lose
their `consumeEnable`. It stays off until an administrator turns it on again (code 200). Loop
thread.

Unlike RocketMQ: what was pulled before the last look does not count, so a group that was turned on
again has 3 minutes to catch up, and one that reads no more is left alone; and the change is on the
disk. Without `diskFallRecorded` nothing is noted, as there.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (protectBroker),
store/.../DefaultMessageStore.java (getMessage)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 180.0
NOTES_MAX: Final = 200_000
"""Queues of groups that are noted between two looks."""


class SlowConsumerService:
    """Notes how far behind groups are, and turns off those that are too far.

    Attributes:
        enabled: whether pulls are to be noted at all.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        groups: SubscriptionGroupManager,
        clock: Clock,
    ) -> None:
        self.enabled = (
            config.disable_consume_if_consumer_read_slowly and config.store.disk_fall_recorded
        )
        self._threshold = config.consumer_fallbehind_threshold
        self._store = store
        self._groups = groups
        self._notes: dict[tuple[str, str, int], int] = {}  # (group, topic, queue id) -> bytes
        self._timer = IntervalTimer(clock, SCAN_INTERVAL_S, self.scan)

    def start(self) -> None:
        """Look from now on, if the configuration asks for it."""
        if self.enabled:
            self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()

    def note(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note a pull that handed out messages before `next_offset` of a queue."""
        key = group, topic, queue_id
        if key not in self._notes and len(self._notes) >= NOTES_MAX:
            return
        units = self._store.queue_units(topic, queue_id, next_offset - 1, 1)
        if units:
            self._notes[key] = self._store.commit_log.max_offset - units[0].commit_offset

    def scan(self) -> None:
        """Turn off the groups that were too far behind since the last look."""
        notes, self._notes = self._notes, {}
        for (group, topic, queue_id), behind in notes.items():
            if behind > self._threshold and self._groups.disable_consume(group):
                log.warning(
                    "group %s is %d bytes behind in queue %d of %s, consumerFallbehindThreshold "
                    "is %d: it may not consume until its consumeEnable is set again",
                    group,
                    behind,
                    queue_id,
                    topic,
                    self._threshold,
                )
