"""Clients that fell silent: every 10 s their memberships and queue locks are ended.

A client sends a heartbeat each 30 s; after 120 s without one it is taken for gone. Connections that
carry nothing at all are the server's matter.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ClientHousekeepingService.java
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer

log = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 10.0
CHANNEL_EXPIRED_MS: Final = 120_000


class ClientHousekeepingService:
    """Scans the clients between `start` and `stop`. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        consumers: ConsumerManager,
        producers: ProducerManager,
        locks: RebalanceLockManager,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._timer = IntervalTimer(clock, SCAN_INTERVAL_S, self.scan)

    def start(self) -> None:
        """Begin to scan."""
        self._timer.start()

    def stop(self) -> None:
        """End the scans."""
        self._timer.stop()

    def scan(self) -> None:
        """End what ran out; close the connections of clients that belong to nothing any more."""
        silent = self._consumers.expire(CHANNEL_EXPIRED_MS)
        silent |= self._producers.expire(CHANNEL_EXPIRED_MS)
        for connection in silent:
            if self._consumers.groups_of(connection) or self._producers.groups_of(connection):
                continue
            log.info("closing %s: no heartbeat for 120 s", connection.remote_address)
            connection.close("idle_timeout")
        self._locks.expire()
