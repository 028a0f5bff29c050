"""Consumers that live on while their log becomes shorter.

A consumer's position is in its memory, or in its file, and goes on to count in the next life of the
log: after a power cut under ASYNC_FLUSH, an older backup, a slave that became the master, an empty
start. There, new messages have got the offsets that it has passed. RocketMQ's clients do not ask
again after a reconnect, so their group would never see those messages.

So a broker notes where each queue ends when its life begins: at its start, or when it becomes the
master. Until it knows a client in a queue, an offset above that end may be one of an earlier life:

    a pull      is answered PULL_OFFSET_MOVED with what the group has committed, which is of this
                life; once, so that no client pulls in a circle
    a commit    is refused

A client is known in a queue by a pull at or below that end, or at or below what it was told when it
asked where its group stands (14) or the queue begins and ends (29, 30, 31; administrators ask 202,
208, 317 and 321, and then give a group its place). The question of one member says nothing of
another. A connection whose heartbeat has not come yet is
nobody's: it is asked to wait for it (24), and long after the beginning it may read what its group
has come to.

Who brings a subscription with each pull, commits nothing with it and is no push or lite consumer
has positions of its own: tools, pull consumers, Spark. Those are let through, and may commit. Ours
look at the message that they have read last (`client/consumer/last_read.py`).

What is known stays for the life, also when a client comes again; with KNOWN_MAX places everybody
counts as known until the next start. Loop thread. Unlike RocketMQ, which lets such messages pass.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.consumer_manager import BROADCASTING, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import PullSysFlag
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

KNOWN_MAX: Final = 200_000
"""Places of clients in queues."""
ANY: Final = 1 << 63
ASKED_MAX: Final = 16_384
"""Questions of one connection that are remembered."""
SETTLED_S: Final = 300.0
"""After this whoever lived on has sent a heartbeat, but for a few."""
PASSIVELY: Final = "CONSUME_PASSIVELY"
"""The consume type of a push consumer."""

QueueKey = tuple[str, int]
Asked = tuple[str, str, int]  # a group, empty for all; and a queue


class EarlierLives:
    """Tells offsets of an earlier life of the log from those of this one.

    Attributes:
        changes: counts when those who were let through are to be looked at again.
    """

    def __init__(
        self,
        store: MessageStore,
        consumers: ConsumerManager,
        offsets: ConsumerOffsetManager,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        """Make one that lets everybody through, until `begin`."""
        self._store = store
        self._consumers = consumers
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self.changes = 0
        self._ends: Mapping[QueueKey, int] | None = None  # None: everybody is known
        self._since_s = 0.0
        # (group, client id) -> queue -> False: it was told to go elsewhere, and has not yet.
        self._known: dict[tuple[str, str], dict[QueueKey, bool]] = {}
        self._count = 0
        self._asked: dict[Connection, dict[Asked, int]] = {}  # up to where it was told

    def begin(self) -> None:
        """Begin a life where the log ends now; nobody is known."""
        queues = self._store.queues.queues
        self._ends = {key: queue.max_offset for key, queue in queues.items() if queue.max_offset}
        self._since_s = self._clock.monotonic()
        self._known.clear()
        self._asked.clear()
        self._count = 0
        self.changes += 1

    def forget_topic(self, topic: str) -> None:
        """Begin anew with a topic that was deleted: the next one of its name starts at 0."""
        if self._ends is None:
            return
        self._ends = {key: end for key, end in self._ends.items() if key[0] != topic}
        for places in self._known.values():
            for key in [key for key in places if key[0] == topic]:
                del places[key]
                self._count -= 1

    # Words that make known

    def told(
        self, connection: Connection, topic: str, queue_id: int, offset: int, group: str = ""
    ) -> None:
        """Note that a client was told an offset of a queue, of a group or of the queue itself."""
        if self._ends is None or self._store.follows:
            return
        if offset > self._ends.get((topic, queue_id), 0):
            self._let(connection, (group, topic, queue_id), offset)

    def _let(self, connection: Connection, question: Asked, offset: int = ANY) -> None:
        asked = self._asked.get(connection)
        if asked is None:
            asked = self._asked[connection] = {}
            connection.add_close_listener(self._closed)
        if len(asked) < ASKED_MAX or question in asked:
            asked[question] = max(offset, asked.get(question, 0))

    def _closed(self, connection: Connection) -> None:
        self._asked.pop(connection, None)

    def _was_told(self, connection: Connection, group: str, key: QueueKey) -> int:
        asked = self._asked.get(connection, _NOTHING)
        return max(asked.get((group, *key), 0), asked.get(("", *key), 0))

    # Pulls and commits

    def place_of(self, connection: Connection, header: PullMessageRequestHeader) -> int | None:
        """Return where a pull has to go on; None: where it wants to.

        Raises:
            RemoteProtocolError: SUBSCRIPTION_NOT_EXIST; nobody knows whose pull this is.
        """
        if self._ends is None or self._store.follows:
            return None
        group, offset = header.consumer_group, header.queue_offset
        key = header.topic, header.queue_id
        client = self._consumers.clients(group).get(connection)
        if client is not None:
            places = self._known.get((group, client.client_id))
            if places is not None and key in places:
                places[key] = True
                return None
        info = self._consumers.group(group)
        if (
            header.sys_flag & PullSysFlag.FLAG_SUBSCRIPTION
            and not header.sys_flag & _OF_CONSUMERS
            and (client is None or info is None or info.consume_type != PASSIVELY)
        ):
            self._let(connection, (group, *key))
            return None
        end = self._ends.get(key, 0)
        is_fine = offset <= end or offset <= self._was_told(connection, group, key)
        is_shared = info is not None and info.message_model != BROADCASTING
        if client is None:
            if not is_fine and not (is_shared and self._was_handed_out(group, key, offset)):
                raise RemoteProtocolError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    "the consumer's group info not exist: no heartbeat of this client has arrived "
                    "yet, and its offset may be one of an earlier life of the log",
                )
            self._let(connection, (group, *key))
            return None
        committed = self._offsets.query(group, *key) if is_shared else -1
        target = end if committed < 0 else committed
        is_known = is_fine or offset <= target
        self._note((group, client.client_id), key, is_known=is_known)
        if is_known:
            return None
        return max(target, self._store.min_offset(*key))

    def may_commit(self, connection: Connection, group: str, key: QueueKey, offset: int) -> bool:
        """Return whether an offset that a group is to go on at is one of this life."""
        if self._ends is None or self._store.follows:
            return True
        if offset <= max(self._ends.get(key, 0), self._offsets.query(group, *key)):
            return True
        if offset <= self._was_told(connection, group, key):
            return True
        client = self._consumers.clients(group).get(connection)
        return client is not None and self._known.get((group, client.client_id), {}).get(key, False)

    def _was_handed_out(self, group: str, key: QueueKey, offset: int) -> bool:
        if self._clock.monotonic() - self._since_s < SETTLED_S:
            return False
        topic, queue_id = key
        return offset <= self._stats.pulled.get((topic, group), {}).get(queue_id, 0)

    def _note(self, who: tuple[str, str], key: QueueKey, *, is_known: bool) -> None:
        self._known.setdefault(who, {})[key] = is_known
        self._count += 1
        if self._count >= KNOWN_MAX:
            log.warning(
                "%d places of consumers are known: from now on, until the next start, an offset "
                "above the end that a queue had at this start is taken from every consumer",
                self._count,
            )
            self._ends = None
            self._known.clear()
            self._asked.clear()


_NOTHING: Final[Mapping[Asked, int]] = {}
_OF_CONSUMERS: Final = PullSysFlag.FLAG_COMMIT_OFFSET | PullSysFlag.FLAG_LITE_PULL_MESSAGE
