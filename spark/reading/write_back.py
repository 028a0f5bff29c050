"""The group's offsets, written back to brokers so that their lag metrics tell the truth.

Spark's checkpoint says where a query stands; what brokers hold of the group is a copy for people
and their monitoring. So the write-back never fails a query, never delays it, and writes at most
once a second. Every offset is the NEXT one to read, as brokers keep it for every group.

    the broker has none, or less    written
    the broker has more             left: a query that begins again does not undo what was done
    ... and other than what this    written: somebody has moved the group in between, which moves
        object wrote last           no query; the copy is put right

Driver process: the query's thread hands offsets in, a thread of this object writes them over a
client of its own, beginning with the first offsets.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../offset/ConsumerOffsetManager.java (a broker
takes any value, lower ones too)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from skylarkmq.client.errors import BrokerError, RocketMQError
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
NOT_KNOWN: Final = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
THREAD_NAME: Final = "skylarkmq-write-back"
Failed = dict[MessageQueue, RocketMQError]


def may_write(wanted: int, current: int | None, last_written: int | None) -> bool:
    """Return whether the broker's offset `current` may become `wanted`."""
    if current is None or current < wanted:
        return True
    return current > wanted and last_written is not None and last_written != current


class GroupOffsets:
    """Writes a group's offsets, best effort; one thread."""

    def __init__(self, brokers: BlockingClient, group: str) -> None:
        self._brokers = brokers
        self._group = group
        self._written: dict[MessageQueue, int] = {}
        self._told: set[str] = set()

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the brokers have these, as far as the rules and the brokers allow; never raises
        RocketMQError."""
        due = {queue: at for queue, at in offsets.items() if self._written.get(queue) != at}
        if not due:
            return
        failed: Failed = {}
        current = self._brokers.committed_offsets(self._group, due, failed)
        chosen = {
            queue: due[queue]
            for queue, at in current.items()
            if may_write(due[queue], at, self._written.get(queue))
        }
        if chosen:
            self._brokers.commit_offsets(self._group, chosen, failed)
        for queue, at in current.items():
            if queue in chosen or at == due[queue]:
                self._written[queue] = due[queue]
        for queue, error in failed.items():
            self._written.pop(queue, None)
            self._failed(queue, due[queue], error)

    def _failed(self, queue: MessageQueue, at: int, error: RocketMQError) -> None:
        """Say so, once for each text, unless the broker only had to get to know group or client."""
        if isinstance(error, BrokerError) and error.code in NOT_KNOWN:
            try:  # by a pull, not by a commit: brokers may create the group, and see who reads
                self._brokers.pull(queue, at, 1, 1, group=self._group)
                self._brokers.commit_offsets(self._group, {queue: at})
            except RocketMQError as second:
                error = second
            else:
                self._written[queue] = at
                return
        text = str(error)
        level = logging.DEBUG if text in self._told else logging.WARNING
        self._told.add(text)
        log.log(level, "offset of group %s not written back, the query goes on: %s",
                self._group, text)  # fmt: skip


class OffsetWriteBack:
    """Writes in a thread of its own; any thread may call."""

    def __init__(
        self,
        settings: ConnectionSettings,
        group: str,
        interval_s: float = INTERVAL_S,
        brokers: BlockingClient | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            interval_s: between two writes.
            brokers: in place of a client made of `settings`; closed at the end of the thread.
        """
        self._settings = settings
        self._group = group
        self._interval_s = interval_s
        self._brokers = brokers
        # Guards all below; the thread waits on it.
        self._changed = threading.Condition()
        self._wanted: dict[MessageQueue, int] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the group's NEXT offsets be these, soon; returns at once, the newest win."""
        with self._changed:
            self._wanted.update(offsets)
            self._closing = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float = 3.0) -> None:
        """Write what is left at once, then end the thread; wait for that, `timeout_s` at most."""
        with self._changed:
            thread = self._thread
            self._closing = True
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        """The thread."""
        brokers = self._brokers or BlockingClient(self._settings)
        offsets = GroupOffsets(brokers, self._group)
        try:
            while (wanted := self._next()) is not None:
                offsets.write(wanted)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, self._interval_s)
        except Exception:
            log.exception("offsets of group %s are not written back any more", self._group)
            with self._changed:
                self._thread = None
        finally:
            brokers.close()

    def _next(self) -> dict[MessageQueue, int] | None:
        """Return what is to be written, waiting for it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._wanted) or self._closing)
            if not self._wanted:
                self._thread = None
                return None
            wanted, self._wanted = self._wanted, {}
            return wanted
