"""Options of the sink beside those of the connection; read in the driver, pickled to the tasks.

    topic               where all rows go; goes before a column `topic`
    producerGroup       the name under which brokers know the sender, default `spark-skylarkmq`
    idempotencyColumns  columns whose values make the unique key, parted by commas
    writeName           tells a write inside foreachBatch from the others of the same batch
    acceptStatus        FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE: which of these
                        answers count as sent; without it the message is sent again
    maxMessageSize      largest body before compression, 4 MiB; the broker has a limit of its own
    sendBatchBytes      messages of a queue go together up to this size, 128 KiB; 0: each alone
    sendBatchRows       and up to this number, 256
    sendsInFlight       requests under way per task, 8
    sendBytesInFlight   and their bytes, 8 MiB
    sendTimeoutMs       one request, 3000; then it is sent again, for `retryTimeoutMs` in all
    compression         none, zlib, lz4 or zstd: of bodies from `compressOver` on; such go alone
    compressOver        4096 bytes

Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from skylarkmq.client.config import MIB
from skylarkmq.client.errors import NotSupported
from skylarkmq.client.producer.outgoing import KINDS, require_compression
from skylarkmq.client.producer.send_result import SendStatus
from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.protocol.flags import (
    NOT_ALLOWED_SEND_TOPICS,
    validate_producer_group,
    validate_topic,
)
from skylarkmq.protocol.frame import MAX_FRAME_SIZE
from skylarkmq.spark.option_reading import OptionError, OptionReader
from skylarkmq.spark.settings import CONNECTION_OPTIONS, ConnectionSettings

DEFAULT_GROUP: Final = "spark-skylarkmq"
NO_COMPRESSION: Final = "none"
FRAME_RESERVE: Final = 256 * 1024
"""What a frame needs beside a body of the largest size."""
SINK_OPTIONS: Final = (
    "topic",
    "producerGroup",
    "idempotencyColumns",
    "writeName",
    "acceptStatus",
    "maxMessageSize",
    "sendBatchBytes",
    "sendBatchRows",
    "sendsInFlight",
    "sendBytesInFlight",
    "sendTimeoutMs",
    "compression",
    "compressOver",
)
_HINTS: Final = {
    "subscribe": "the sink's option is topic",
    "consumergroup": "the sink has a producerGroup",
    "startingoffsets": "it belongs to the source: a sink only sends",
    "endingoffsets": "it belongs to the source: a sink only sends",
    "path": "a topic has no path: use .save() without one, and option topic",
    "truncate": "nothing is taken out of a topic",
    "transactional": "a sink sends at least once; unique keys tell copies apart",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a task needs to know to send; picklable, and without secrets in its text."""

    connection: ConnectionSettings
    topic: str | None = None
    producer_group: str = DEFAULT_GROUP
    identity: tuple[str, ...] = ()
    write_name: str = ""
    accepted: frozenset[SendStatus] = frozenset({SendStatus.SEND_OK})
    max_message_size: int = 4 * MIB
    batch_size: int = 128 * 1024
    """Bytes; 0 sends each message alone."""
    batch_count: int = 256
    requests_max: int = 8
    unacknowledged_size: int = 8 * MIB
    """Bytes under way at once; one larger request goes alone."""
    compression: CompressionKind | None = None
    compress_over: int = 4096

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read the options of a write.

        Raises:
            OptionError: unknown, wrong or contradicting options.
        """
        options = OptionReader(given, (*CONNECTION_OPTIONS, *SINK_OPTIONS), hints=_HINTS)
        largest = MAX_FRAME_SIZE - FRAME_RESERVE
        max_message_size = options.size("maxMessageSize", 4 * MIB, high=largest)
        connection = ConnectionSettings.from_options(given)
        if options.given("sendTimeoutMs"):
            timeout_s = options.milliseconds("sendTimeoutMs", 3000, low=1) / 1000
            connection = replace(connection, request_timeout_s=timeout_s)
        return cls(
            connection=connection,
            topic=_topic(options),
            producer_group=_group(options),
            identity=options.listing("idempotencyColumns"),
            write_name=options.text("writeName", ""),
            accepted=_accepted(options),
            max_message_size=max_message_size,
            batch_size=options.size("sendBatchBytes", 128 * 1024, low=0, high=max_message_size),
            batch_count=options.number("sendBatchRows", 256, low=1, high=65_536),
            requests_max=options.number("sendsInFlight", 8, low=1, high=1024),
            unacknowledged_size=options.size("sendBytesInFlight", 8 * MIB),
            compression=_compression(options),
            compress_over=options.size("compressOver", 4096),
        )


def check_topic(topic: str) -> str | None:
    """Return why nothing can be sent to `topic`, None when it can."""
    if topic in NOT_ALLOWED_SEND_TOPICS:
        return f"topic {topic} belongs to the broker itself"
    return validate_topic(topic)


def _topic(options: OptionReader) -> str | None:
    if not options.given("topic"):
        return None
    topic = options.text("topic")
    if "," in topic:
        raise OptionError(
            f"option topic names one topic, not {topic[:80]!r}: several go by a column topic",
            "topic",
        )
    if (why := check_topic(topic)) is not None:
        raise OptionError(f"option topic: {why}", "topic")
    return topic


def _group(options: OptionReader) -> str:
    group = options.text("producerGroup", DEFAULT_GROUP)
    if (why := validate_producer_group(group)) is not None:
        raise OptionError(f"option producerGroup: {why}", "producerGroup")
    return group


def _accepted(options: OptionReader) -> frozenset[SendStatus]:
    known = {status.value: status for status in SendStatus}
    found = {SendStatus.SEND_OK}
    for name in options.listing("acceptStatus"):
        if name.upper() not in known:
            raise options.wrong("acceptStatus", f"a list of {', '.join(known)}")
        found.add(known[name.upper()])
    return frozenset(found)


def _compression(options: OptionReader) -> CompressionKind | None:
    name = options.choice("compression", (NO_COMPRESSION, *KINDS), NO_COMPRESSION)
    if name == NO_COMPRESSION:
        if options.given("compressOver"):
            raise OptionError(
                "option compressOver needs option compression, which says how", "compressOver"
            )
        return None
    try:
        require_compression(name)
    except NotSupported as error:
        raise OptionError(f"option compression: {error}", "compression") from error
    return KINDS[name]
