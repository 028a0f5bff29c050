"""A message as a consumer gets it, with its acknowledgement."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Final, Protocol

from skylarkmq.client.config import MIB
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt, MessageQueue

INFLATED_SIZE_MAX: Final = 16 * MIB
"""A compressed body that opens to more is refused: four times RocketMQ's largest message."""
DEAD_LETTER_LEVEL: Final = -1


class Returner(Protocol):
    """Hands messages back to the broker for another try."""

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Let the group get the message again after `delay_level`; -1 makes it a dead letter.

        Raises:
            RocketMQError: no broker took it.
        """
        ...


class ReceivedMessage:
    """One message of one queue. Made by the consumer; not to be made or changed by users."""

    __slots__ = ("_body", "_message", "_process_queue", "_returner", "queue_offset", "topic")

    def __init__(
        self,
        message: MessageExt,
        process_queue: ProcessQueue[ReceivedMessage],
        returner: Returner,
    ) -> None:
        self.queue_offset = message.queue_offset
        """Its number in the queue."""
        # A retried message lies in the group's retry topic; its own topic stands in a property.
        self.topic = message.properties.get(names.RETRY_TOPIC, message.topic)
        """The topic it was sent to, also when it comes from the group's retry topic."""
        self._message = message
        self._process_queue = process_queue
        self._returner = returner
        self._body: bytes | None = None

    # What it is

    @property
    def body(self) -> bytes:
        """The body, decompressed if need be.

        Raises:
            skylarkmq.protocol.errors.ProtocolError: it cannot be opened, opens to more than
                16 MiB, or the library for its format is not installed.
        """
        if self._body is None:
            message = self._message
            if message.sys_flag & MessageSysFlag.COMPRESSED_FLAG:
                self._body = decompress(message.body, message.sys_flag, INFLATED_SIZE_MAX)
            else:
                self._body = message.body
        return self._body

    @property
    def tags(self) -> str | None:
        """Its tag."""
        return self._message.tags

    @property
    def keys(self) -> str:
        """Its index keys, parted by blanks."""
        return self._message.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the user's and RocketMQ's."""
        return self._message.properties

    @property
    def msg_id(self) -> str:
        """The id that its producer gave; the same on every retry."""
        return self._message.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: its address and the place in its log."""
        return self._message.offset_msg_id

    @property
    def sharding_key(self) -> str | None:
        """The key that chose its queue, if it travelled along."""
        return self._message.properties.get(names.SHARDING_KEY)

    @property
    def flag(self) -> int:
        """The user's flag."""
        return self._message.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits."""
        return self._message.sys_flag

    # Where and when

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; of the retry topic when it is a retry."""
        return self._process_queue.queue

    @property
    def commit_log_offset(self) -> int:
        """The byte place in the broker's log."""
        return self._message.physical_offset

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the producer's clock; UTC."""
        return datetime.fromtimestamp(self._message.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When this copy was stored, by the broker's clock; UTC."""
        return datetime.fromtimestamp(self._message.store_timestamp / 1000, UTC)

    @property
    def born_host(self) -> HostAddress:
        """Who sent it."""
        return self._message.born_host

    @property
    def store_host(self) -> HostAddress:
        """Which broker stored it."""
        return self._message.store_host

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._message.reconsume_times

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body, masked with 0x7FFFFFFF."""
        return self._message.body_crc

    @property
    def size(self) -> int:
        """Bytes of the stored record."""
        return self._message.store_size

    # What becomes of it

    async def ack(self) -> None:
        """It is done. The group's offset moves on once all before it are done as well.

        Nothing happens when it was done before or its queue is not this consumer's any more.
        """
        self._process_queue.done(self.queue_offset)

    async def nack(self, delay_level: int = 0) -> None:
        """Let the group get it again, after a delay; beyond `max_reconsume` it is a dead letter.

        Args:
            delay_level: 1 to 18; 0 lets the delay grow with each try (10 s, 30 s, 1 m, ... 2 h).

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
        """
        if self._process_queue.holds(self.queue_offset):
            await self._returner.send_back(self, delay_level)
            self._process_queue.done(self.queue_offset)

    async def dead_letter(self) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
        """
        await self.nack(DEAD_LETTER_LEVEL)

    def process(self, *, requeue: bool = True) -> AbstractAsyncContextManager[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through.

        Args:
            requeue: false makes a failed message a dead letter at once.
        """
        return _processing(self, requeue)

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.msg_id} of {self.topic}, queue {self.queue.broker_name}/"
            f"{self.queue.queue_id} offset {self.queue_offset}, try {self.reconsume_times + 1}>"
        )

    @property
    def stored(self) -> MessageExt:
        """The record as pulled; for the consumer's own use."""
        return self._message

    @property
    def process_queue(self) -> ProcessQueue[ReceivedMessage]:
        """Where it waits for its ack; for the consumer's own use."""
        return self._process_queue


@asynccontextmanager
async def _processing(message: ReceivedMessage, requeue: bool) -> AsyncGenerator[ReceivedMessage]:
    try:
        yield message
    except Exception:
        await message.nack(0 if requeue else DEAD_LETTER_LEVEL)
        raise
    await message.ack()
