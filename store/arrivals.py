"""Who hears of messages that have come: held pulls, deliveries, services of the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from skylarkmq.store.units import Units

log = logging.getLogger(__name__)
ArrivalListener = Callable[[str, int, int], None]  # (topic, queue id, max offset)


class Arrivals:
    """Tells listeners of messages that are shown. Loop thread."""

    def __init__(self) -> None:
        self._listeners: list[ArrivalListener] = []  # of every topic
        # topic -> its own and those of every topic
        self._listeners_of: dict[str, list[ArrivalListener]] = {}

    def add(self, listener: ArrivalListener, topic: str | None = None) -> None:
        """Call `listener` once for each publishing and queue that got messages.

        Args:
            topic: the only topic that it wants to hear of; None for all.
        """
        if topic is None:
            self._listeners.append(listener)
            for listeners in self._listeners_of.values():
                listeners.append(listener)
        else:
            self._listeners_of.setdefault(topic, list(self._listeners)).append(listener)

    def tell(self, shown: Iterable[Units]) -> None:
        """Call the listeners, which may store messages; one that raises harms only itself."""
        if not self._listeners and not self._listeners_of:
            return
        for queue in {queue for units in shown for queue in units.runs}:
            for listener in self._listeners_of.get(queue.topic, self._listeners):
                try:
                    listener(queue.topic, queue.queue_id, queue.max_offset)
                except Exception:
                    log.exception(
                        "a listener failed over messages of %s-%d, which are stored and shown",
                        queue.topic,
                        queue.queue_id,
                    )
