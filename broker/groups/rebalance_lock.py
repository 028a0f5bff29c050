"""Queue locks of ordered consumption: which client of a group may consume which queue.

A lock lasts 60 s; its owner renews it every 20 s by asking again and trusts it for 30 s. It is a
courtesy among the clients of a group: a pull does not look at it. In memory only: after a restart
the first client that asks gets the queue, and one that still trusts its old lock asks within 20 s.
So two may hold one queue for that long, as with RocketMQ. Loop thread.

A client that loses its connection keeps its locks until they run out, because it may well go on
with what it has pulled; one that leaves the group by a request (35) gives them up at once.

Unlike RocketMQ: that last rule (there the next owner waits for up to 60 s where the client did not
unlock by itself), a lock that ran out is forgotten, and the number of locks is bounded.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/rebalance/RebalanceLockManager.java
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock

log = logging.getLogger(__name__)

LOCK_MAX_LIVE_S: Final = 60.0
LOCKS_MAX: Final = 200_000
"""Locks held at a time, over all groups; past it no client gets a new one."""


Queue = tuple[str, int]  # (topic, queue id)


class LockEntry(NamedTuple):
    """The client that holds a queue, and since when on the monotonic clock."""

    client_id: str
    renewed_s: float


class RebalanceLockManager:
    """The locks of all groups."""

    def __init__(self, clock: Clock, max_live_s: float = LOCK_MAX_LIVE_S) -> None:
        self._clock = clock
        self._max_live_s = max_live_s
        self._table: dict[str, dict[Queue, LockEntry]] = {}  # by group; no table is empty
        self._count = 0  # Invariant: of the entries in all tables

    def __len__(self) -> int:
        """Return how many locks are remembered."""
        return self._count

    def try_lock(self, group: str, topic: str, queue_id: int, client_id: str) -> bool:
        """Lock a queue for a client, or renew its lock; False while another client holds it."""
        now_s = self._clock.monotonic()
        held = self._find(group, topic, queue_id)
        if held is None:
            if self._count >= LOCKS_MAX:
                log.warning(
                    "group %s: no lock for %s, the broker keeps %d already",
                    group,
                    client_id,
                    LOCKS_MAX,
                )
                return False
            self._count += 1
        elif held.client_id != client_id:
            if not self._is_expired(held, now_s):
                return False
            log.info(
                "group %s: %s takes %s queue %d over from %s, whose lock ran out",
                group,
                client_id,
                topic,
                queue_id,
                held.client_id,
            )
        self._table.setdefault(group, {})[topic, queue_id] = LockEntry(client_id, now_s)
        return True

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Free a queue if the client holds it."""
        held = self._find(group, topic, queue_id)
        if held is not None and held.client_id == client_id:
            self._remove(group, [(topic, queue_id)])

    def release(self, group: str, client_id: str) -> None:
        """Free all queues that the client holds: it has left the group."""
        entries = self._table.get(group, {})
        self._remove(group, [key for key, held in entries.items() if held.client_id == client_id])

    def expire(self) -> None:
        """Forget the locks that ran out."""
        now_s = self._clock.monotonic()
        for group, entries in list(self._table.items()):
            ended = [key for key, held in entries.items() if self._is_expired(held, now_s)]
            self._remove(group, ended)

    def _find(self, group: str, topic: str, queue_id: int) -> LockEntry | None:
        entries = self._table.get(group)
        return None if entries is None else entries.get((topic, queue_id))

    def _remove(self, group: str, keys: list[Queue]) -> None:
        if not keys:
            return
        entries = self._table[group]
        for key in keys:
            del entries[key]
        self._count -= len(keys)
        if not entries:
            del self._table[group]

    def _is_expired(self, held: LockEntry, now_s: float) -> bool:
        return now_s - held.renewed_s > self._max_live_s
