"""Options of the sink beside those of settings.py, read in the driver and pickled to the tasks.

`SINK_OPTIONS` has them all; docs/reference/spark-options.md is made of it. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from skylarkmq.client.config import MIB
from skylarkmq.client.errors import NotSupported
from skylarkmq.client.producer.outgoing import KINDS, require_compression
from skylarkmq.client.send_result import SendStatus
from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.protocol.flags import (
    NOT_ALLOWED_SEND_TOPICS,
    validate_producer_group,
    validate_topic,
)
from skylarkmq.protocol.frame import MAX_FRAME_SIZE
from skylarkmq.spark.option_reading import (
    Option,
    OptionError,
    OptionReader,
    choice,
    listing,
    number,
    options_of,
    size,
    special,
    string,
    words,
)
from skylarkmq.spark.settings import CONNECTION_OPTIONS, HINTS, ConnectionSettings

DEFAULT_GROUP: Final = "spark-skylarkmq"
NO_COMPRESSION: Final = "none"
AUTO: Final = "auto"
EXACTLY_ONCE: Final = "exactlyOnce"
AT_LEAST_ONCE: Final = "atLeastOnce"
FRAME_RESERVE: Final = 256 * 1024
"""What a frame needs beside a body of the largest size."""
_HINTS: Final = {
    **HINTS,
    "subscribe": "the sink's option is topic",
    "consumergroup": "the sink has a producerGroup",
    "startingoffsets": "it belongs to the source: a sink only sends",
    "endingoffsets": "it belongs to the source: a sink only sends",
    "path": "a topic has no path: use .save() without one, and option topic",
    "truncate": "nothing is taken out of a topic",
    "transactional": "option delivery says how often a message may be stored",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a task needs to know to send; picklable, and without secrets in its text."""

    connection: ConnectionSettings
    topic: str | None = special("topic", None, "where all rows go; before column topic", "a topic")
    producer_group: str = special(
        "producerGroup", DEFAULT_GROUP, "the sender's name at brokers", "a group", DEFAULT_GROUP
    )
    delivery: str = choice(
        "delivery",
        AUTO,
        (AUTO, EXACTLY_ONCE, AT_LEAST_ONCE),
        "`exactlyOnce` is refused where brokers cannot promise it; `auto` takes what they can",
    )
    topic_brokers: tuple[str, ...] = listing(
        "topicBrokers", "names of the brokers that messages go to; all are waited for"
    )
    identity: tuple[str, ...] = listing("idempotencyColumns", "columns that make the message id")
    write_name: str = string("writeName", "", "tells writes of one foreachBatch apart")
    accepted: frozenset[SendStatus] = special(
        "acceptStatus",
        frozenset({SendStatus.SEND_OK}),
        "answers that count as sent beside SEND_OK; after others a message is sent again",
        words(status.value for status in SendStatus),
    )
    max_message_size: int = size(
        "maxMessageSize", 4 * MIB, "a body before compression", high=MAX_FRAME_SIZE - FRAME_RESERVE
    )
    batch_size: int = special(
        "sendBatchBytes",
        128 * 1024,
        "messages of a queue go together up to this size; 0: each alone",
        "bytes, up to maxMessageSize",
        "128 KiB",
    )
    batch_count: int = number("sendBatchRows", 256, "and up to this number", 1, 65_536)
    requests_max: int = number("sendsInFlight", 8, "requests of a task under way at once", 1, 1024)
    unacknowledged_size: int = size("sendBytesInFlight", 8 * MIB, "their bytes; a larger one alone")
    compression: CompressionKind | None = special(
        "compression", None, "of bodies; such go alone", words((NO_COMPRESSION, *KINDS)), "none"
    )
    compress_over: int = size("compressOver", 4096, "the smallest body that is compressed")

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read the options of a write.

        Raises:
            OptionError: unknown, wrong or contradicting options.
        """
        known = (each.name for each in (*CONNECTION_OPTIONS, *SINK_OPTIONS))
        options = OptionReader(given, known, hints=_HINTS)
        values = options.values(cls)
        connection = ConnectionSettings.from_options(given)
        if options.given("sendTimeoutMs"):
            timeout_s = options.milliseconds("sendTimeoutMs", 3000, low=1) / 1000
            connection = replace(connection, request_timeout_s=timeout_s)
        return cls(
            connection=connection,
            topic=_topic(options),
            producer_group=_group(options),
            accepted=_accepted(options),
            batch_size=options.size(
                "sendBatchBytes", 128 * 1024, low=0, high=values["max_message_size"]
            ),
            compression=_compression(options),
            **values,
        )


_TIMEOUT: Final = Option(
    "sendTimeoutMs", "one request, before it is sent again", "ms, or with a unit", "pullTimeoutMs"
)
SINK_OPTIONS: Final = options_of(SinkOptions, _TIMEOUT)


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
