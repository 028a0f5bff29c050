"""The message of a queue that a reader has read last: is it still there?

A log that became shorter (a power cut, an older backup, an empty disk), a topic made anew, another
cluster: they give the offsets that a reader has passed to other messages. A broker of ours protects
the members of groups (`broker/groups/earlier_lives.py`). Who keeps a position of its own looks by
itself, at brokers of every make:

    queues by hand, PeekReader   on each new connection to the broker, before it reads on
    broadcasting                 at the start, with what its file says beside the offset

If another message is there, it goes on at the first one that was stored after the one that it has
read: those are of the new life of the log. If that message has expired, or if the broker refuses to
tell, nothing can be compared, and it goes on where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from skylarkmq.client.config import OFFSET_TIMEOUT_S
from skylarkmq.client.consumer.offset_search import first_since
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import BrokerError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_pull import PullRequest, PullResult, PullStatus, pull
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.record import QUEUE_OFFSET, RecordParts, message_of
from skylarkmq.remoting.connection import Connection

log = logging.getLogger(__name__)


class ReadMessage(NamedTuple):
    """A message that was read: its queue offset, and which one it was."""

    offset: int
    fingerprint: Fingerprint

    @classmethod
    def of(cls, record: RecordParts) -> ReadMessage:
        """Return what is noted of a record."""
        return cls(record[QUEUE_OFFSET], Fingerprint.of(message_of(record)))


async def look(
    services: Services, address: str, group: str, queue: MessageQueue, offset: int
) -> tuple[ReadMessage | None, PullResult | None]:
    """Return the message at a queue offset, None without one, and the broker's answer.

    Without an answer the broker refuses to tell.

    Args:
        group: in whose name; a pull of a member tells our broker where it stands, and may be
            answered with where to go on.

    Raises:
        RocketMQError: no answer, or one that may be another one later.
    """
    everything = Subscription(queue.topic, None, 0).data
    wish = PullRequest(group, queue, offset, 1, subscription=everything)
    try:
        answer = await pull(services.remoting, address, wish, OFFSET_TIMEOUT_S)
    except BrokerError as error:
        if error.retryable:
            raise
        return None, None
    found = next((each for each in answer.records if each[QUEUE_OFFSET] == offset), None)
    return None if found is None else ReadMessage.of(found), answer


async def new_life(
    services: Services,
    address: str,
    group: str,
    queue: MessageQueue,
    read: ReadMessage,
    *,
    of_master: bool,
) -> int | None:
    """Return where messages begin that were stored after one that was read.

    None: that one is still there, or nobody can tell.

    Args:
        of_master: the address is the master's; a slave may only lag.

    Raises:
        RocketMQError: the broker cannot be asked.
    """
    there, answer = await look(services, address, group, queue, read.offset)
    if answer is None:
        return None
    since_ms: int | None = read.fingerprint.store_timestamp + 1
    if there is not None:
        since_ms = read.fingerprint.new_since(there.fingerprint)
    else:
        moved_back = answer.status is PullStatus.OFFSET_MOVED and answer.next_offset <= read.offset
        if not of_master or not (moved_back or answer.max_offset <= read.offset):
            return None
    return (
        None if since_ms is None else await first_since(services, address, group, queue, since_ms)
    )


class LastRead:
    """What one reader has read last of one queue, compared on each new connection. Loop thread."""

    def __init__(self, services: Services, group: str, queue: MessageQueue) -> None:
        self._services = services
        self._group = group
        self._queue = queue
        self._read: ReadMessage | None = None
        self._compared_on: dict[str, Connection] = {}

    def took(self, records: Sequence[RecordParts]) -> None:
        """Note what came."""
        if records:
            self._read = ReadMessage.of(records[-1])

    async def place(self, address: str, offset: int, *, of_master: bool) -> tuple[int, bool]:
        """Return where to pull on, `offset` at most, and whether a new life of the log begins.

        Of the same life it may be a little before `offset`, where nothing came that was wanted.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        services, group, queue, read = self._services, self._group, self._queue, self._read
        connection = await services.remoting.connection(address)
        if self._compared_on.get(address) is connection:
            return offset, False
        place, is_new = offset, False
        if read is not None:
            begin = await new_life(services, address, group, queue, read, of_master=of_master)
            is_new = begin is not None and begin < offset
            place = min(offset, read.offset + 1 if begin is None else begin)
        elif offset > 0:
            self._read, _ = await look(services, address, group, queue, offset - 1)
        self._compared_on[address] = connection
        if is_new:
            log.warning(
                "%s has other messages than those that were read up to %d: its log became "
                "shorter, or its topic was made anew; going on at %d", queue, offset, place,
            )  # fmt: skip
        return place, is_new
