"""Messages and dead letters, blocking."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Self

from skylarkmq.client.admin.dead_letters import DeadLetterReplay as AsyncReplay
from skylarkmq.client.admin.dead_letters import ReplayOutcome, Target
from skylarkmq.client.admin.scan import MessageScan as AsyncScan
from skylarkmq.client.admin.scan import ScanProgress
from skylarkmq.client.admin.stored_message import StoredMessage
from skylarkmq.client.admin.traces import MessageTrace
from skylarkmq.client.observe.trace import TRACE_TOPIC
from skylarkmq.client.sync.admin_part import AdminPart
from skylarkmq.client.sync.portal import Portal
from skylarkmq.protocol.message import MessageQueue


class MessageScan:
    """An iterator of a topic's messages; see `skylarkmq.client.admin.scan.MessageScan`."""

    def __init__(self, portal: Portal, scan: AsyncScan) -> None:
        self._portal = portal
        self._scan = scan

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        try:
            return self._portal.run(self._scan.__anext__, self._scan.take_back)
        except StopAsyncIteration:
            raise StopIteration from None

    def skip_queue(self) -> None:
        """Leave out the rest of the queue that the last message was of."""
        self._portal.call(self._scan.skip_queue)

    @property
    def progress(self) -> ScanProgress:
        """How far it is."""
        return self._portal.call(lambda: self._scan.progress)


class DeadLetterReplay:
    """An iterator of outcomes; each step replays one dead letter."""

    def __init__(self, portal: Portal, replay: AsyncReplay) -> None:
        self._portal = portal
        self._replay = replay

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReplayOutcome:
        try:
            return self._portal.run(self._replay.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def progress(self) -> ScanProgress:
        """How far it is; a letter without outcome counts as not done."""
        return self._portal.call(lambda: self._replay.progress)


class MessageAdmin(AdminPart):
    """The part of Admin for messages; see `skylarkmq.client.Admin`."""

    def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        msg_id: str | None = None,
        start: datetime | None = None,
        stop: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Return messages of a topic by key, id or time, the oldest first, `limit` at most."""
        return self._inner.run(
            lambda it: it.query(topic, key=key, msg_id=msg_id, start=start, stop=stop, limit=limit)
        )

    def message(self, offset_msg_id: str) -> StoredMessage | None:
        """Return the message at a place, which an offset id names; None when it is gone."""
        return self._inner.run(lambda it: it.message(offset_msg_id))

    def scan(
        self,
        topic: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a topic, queue after queue: `for message in admin.scan(...)`."""
        scan = self._inner.call(lambda it: it.scan(topic, start=start, stop=stop, after=after))
        return MessageScan(self._inner.portal, scan)

    def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a group's dead letters: `for letter in admin.dead_letters(...)`."""
        scan = self._inner.call(
            lambda it: it.dead_letters(group, start=start, stop=stop, after=after)
        )
        return MessageScan(self._inner.portal, scan)

    def replay_dead_letters(
        self,
        group: str,
        *,
        to: Target = "group",
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> DeadLetterReplay:
        """Send dead letters again: `for outcome in admin.replay_dead_letters(...)`."""
        replay = self._inner.call(
            lambda it: it.replay_dead_letters(
                group, to=to, start=start, stop=stop, after=after, dry_run=dry_run
            )
        )
        return DeadLetterReplay(self._inner.portal, replay)

    def trace(self, msg_id: str, *, topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return what clients told of the message with this `msg_id`."""
        return self._inner.run(lambda it: it.trace(msg_id, topic=topic))
