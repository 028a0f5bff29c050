"""Options of the source, read once in the driver and pickled to the tasks.

    topic (alias subscribe)   topics parted by commas        exactly one of these three
    subscribePattern          a Python regular expression, matched against whole topic names
    assign                    {"T":{"broker-a":[0,1]}}
    startingOffsets ...       see positions.py; default latest in a stream, earliest in a batch
    endingOffsets ...         likewise, of a batch alone; default latest
    failOnDataLoss            true
    onCorruption              a body whose checksum is wrong, or that is flagged as compressed and
                              is not: fail; skip leaves the message out; raw gives it as stored
    maxOffsetsPerTrigger      messages of one batch of a stream, shared out by backlog
    minOffsetsPerTrigger      wait for as many, but at most maxTriggerDelay (15m)
    minPartitions             tasks at least: long ranges are cut
    maxRecordsPerPartition    messages of one task at most
    consumerGroup             the name under which brokers know the reader; else made of
    groupIdPrefix             `spark-skylarkmq` and a hash of what is read from where
    commitOffsets             a stream writes the group's offsets back; true with consumerGroup
    subExpression             tags as in `A || B`, default *
    expressionType            TAG, or SQL92: the broker selects by subExpression's SQL92
    pullBatchSize, pullMaxBytes, pullsInFlight      1024, 1 MiB, 8: of each task; asked for more
                              than 256 KiB, SkylarkMQ gives more than RocketMQ's 32 messages
    arrowBatchRows, arrowBatchBytes                 2048, 4 MiB
    metadataRefreshMs, offsetCacheMs                30000, 100
    filterPushdown            false; a batch lets Spark's filters narrow what is read

Beside them those of settings.py. Imports no pyspark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from skylarkmq.client.consumer.subscription import ALL, Selector, Sql92, Subscription, Tag
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.protocol.sql92.parser import ExpressionError, parse
from skylarkmq.spark.offsets import INT32_MAX, QueueKey
from skylarkmq.spark.option_reading import OptionError, OptionReader
from skylarkmq.spark.reading.positions import Position, read_ending, read_starting
from skylarkmq.spark.settings import CONNECTION_OPTIONS, ConnectionSettings
from skylarkmq.spark.writing.sink_options import SINK_OPTIONS

OnCorruption = Literal["fail", "skip", "raw"]
ON_CORRUPTION: Final[tuple[OnCorruption, ...]] = ("fail", "skip", "raw")
STREAM_OPTIONS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_OPTIONS: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "filterPushdown",
)
SOURCE_OPTIONS: Final = (
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "onCorruption",
    "minPartitions",
    "maxRecordsPerPartition",
    "consumerGroup",
    "groupIdPrefix",
    "commitOffsets",
    "subExpression",
    "expressionType",
    "pullBatchSize",
    "pullMaxBytes",
    "pullsInFlight",
    "arrowBatchRows",
    "arrowBatchBytes",
    "metadataRefreshMs",
    "offsetCacheMs",
    *STREAM_OPTIONS,
    *BATCH_OPTIONS,
)
KNOWN: Final = (*SOURCE_OPTIONS, *CONNECTION_OPTIONS)
DEFAULT_GROUP_PREFIX: Final = "spark-skylarkmq"
_ASSIGN_EXAMPLE: Final = '{"T":{"broker-a":[0,1]}}'
_NARROWED_TAGS_MAX: Final = 64
"""Tags that a filter may name for brokers to select by them; they stand in every pull."""
_KIB: Final = 1024
_HINTS: Final = {
    "kafka.bootstrap.servers": "the addresses of name servers go into nameServer",
    "kafka.group.id": "it is called consumerGroup here",
    "includeheaders": "the column properties always holds them",
    "path": "load() takes no path here: the topic goes into option topic",
    "paths": "load() takes no path here: the topic goes into option topic",
    "group": "it is called consumerGroup",
    "tag": "tags go into subExpression, as in 'A || B'",
    "tags": "tags go into subExpression, as in 'A || B'",
    "filter": "see subExpression and expressionType",
    **{
        name.lower(): "it belongs to the sink: a source only reads"
        for name in SINK_OPTIONS
        if name not in KNOWN
    },
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is read: one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[QueueKey, ...] = ()

    def __str__(self) -> str:
        if self.pattern:
            return f"topics that match {self.pattern!r}"
        if self.queues:
            return f"{len(self.queues)} assigned queues"
        return f"topic {', '.join(self.topics)}"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to read a range. Picklable; shows no secret."""

    connection: ConnectionSettings
    group: str
    expression: str = ALL
    sql92: bool = False
    fail_on_data_loss: bool = True
    on_corruption: OnCorruption = "fail"
    pull_count: int = 1024
    pull_bytes: int = 1024 * _KIB
    pulls_in_flight: int = 8
    batch_rows: int = 2048
    batch_bytes: int = 4 * _KIB * _KIB

    @property
    def filters(self) -> bool:
        """Whether brokers leave messages out."""
        return self.sql92 or self.tags is not None

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags wanted, to be compared as text: brokers compare hashes. None: all."""
        return frozenset(Tag(self.expression).tags) or None if not self.sql92 else None

    def narrowed_to(self, tags: frozenset[str] | None) -> ReadSettings:
        """Return these settings with the broker selecting by those tags as well, if it can.

        What is wanted of them is compared as text nevertheless; None: no tags are named.
        """
        if tags is None or self.sql92:
            return self
        wanted = sorted(tags if self.tags is None else tags & self.tags)
        plain = all(re.fullmatch(r"[^\s|]+", tag) and tag != ALL for tag in wanted)
        if not 0 < len(wanted) <= _NARROWED_TAGS_MAX or not plain:
            return self
        return replace(self, expression=" || ".join(wanted))

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what pulls of the topic carry; None: everything."""
        selector: Selector = Sql92(self.expression) if self.sql92 else Tag(self.expression)
        if selector == Tag(ALL):
            return None
        return Subscription(topic, selector, 0).data


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All of a source's options, checked. Picklable, though for the driver; shows no secret."""

    subject: Subject
    reading: ReadSettings
    starting: Position
    ending: Position
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    commit_offsets: bool = False
    metadata_refresh_s: float = 30.0
    offset_cache_s: float = 0.1
    filter_pushdown: bool = False

    @property
    def connection(self) -> ConnectionSettings:
        """Whom to reach and how."""
        return self.reading.connection

    @classmethod
    def from_options(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Return the options of a read; nobody is asked yet.

        Raises:
            OptionError: unknown, missing, contradicting or wrong options; the text names them.
        """
        options = OptionReader(given, KNOWN, hints=_HINTS)
        if streaming:
            options.refuse(BATCH_OPTIONS, "is for batches (spark.read): a stream has no end")
        else:
            options.refuse(STREAM_OPTIONS, "is for streams (spark.readStream)")
        low = options.integer("minOffsetsPerTrigger", None, low=1)
        high = options.integer("maxOffsetsPerTrigger", None, low=1)
        if low is not None and high is not None and low > high:
            raise OptionError(
                f"options minOffsetsPerTrigger={low} and maxOffsetsPerTrigger={high} contradict: "
                "no batch can be as large as the one and as small as the other",
                "minOffsetsPerTrigger",
            )
        if not streaming and options.flag("commitOffsets", False):
            options.refuse(("commitOffsets",), "is for streams: a batch commits no offsets")
        if low is None:
            options.refuse(("maxTriggerDelay",), "goes with minOffsetsPerTrigger")
        connection = ConnectionSettings.from_options(given)
        subject = _subject(options)
        starting = read_starting(options, streaming=streaming)
        if starting.kind == "group":
            options.required("consumerGroup", "startingOffsets=group starts where it stands")
        return cls(
            subject=subject,
            reading=_reading(options, connection, subject),
            starting=starting,
            ending=read_ending(options),
            max_offsets_per_trigger=high,
            min_offsets_per_trigger=low,
            max_trigger_delay_s=options.milliseconds("maxTriggerDelay", 900_000) / 1000,
            min_partitions=options.integer("minPartitions", None, low=1, high=INT32_MAX),
            max_records_per_partition=options.integer("maxRecordsPerPartition", None, low=1),
            commit_offsets=options.flag("commitOffsets", options.given("consumerGroup")),
            metadata_refresh_s=options.milliseconds("metadataRefreshMs", 30_000, low=100) / 1000,
            offset_cache_s=options.milliseconds("offsetCacheMs", 100) / 1000,
            filter_pushdown=options.flag("filterPushdown", False),
        )


def _subject(options: OptionReader) -> Subject:
    name = options.exactly_one("topic", "subscribe", "subscribePattern", "assign")
    if name == "subscribePattern":
        pattern = options.pattern(name)
        return Subject(pattern=pattern.pattern if pattern is not None else "")
    if name == "assign":
        return Subject(queues=_assigned(options.json_object(name, _ASSIGN_EXAMPLE)))
    topics = options.listing(name)
    if not topics:
        raise options.wrong(name, "at least one topic")
    for topic in topics:
        _check_topic(name, topic)
    return Subject(topics=topics)


def _assigned(document: dict[str, Any]) -> tuple[QueueKey, ...]:
    queues: list[QueueKey] = []
    for topic, brokers in document.items():
        _check_topic("assign", topic)
        for broker, numbers in _object(brokers, f"topic {topic}").items():
            if not (_is_list(numbers) and numbers):
                raise _wrong_assign(f"broker {broker} of topic {topic} has a list of queue numbers")
            for number in numbers:
                if type(number) is not int or not 0 <= number <= INT32_MAX:
                    raise _wrong_assign(f"{number!r:.40} is no queue number")
                queues.append(QueueKey(topic, broker, number))
    if not queues:
        raise _wrong_assign("it names no queue")
    return tuple(sorted(set(queues)))


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise _wrong_assign(f"{where} has an object of brokers with their queues")
    return cast("dict[str, Any]", value)


def _wrong_assign(why: str) -> OptionError:
    return OptionError(f"option assign: {why}; it looks like {_ASSIGN_EXAMPLE}", "assign")


def _check_topic(option: str, topic: str) -> None:
    fault = validate_topic(topic)
    if fault is not None:
        raise OptionError(f"option {option}: {topic[:80]!a} is no topic: {fault}", option)


def _reading(
    options: OptionReader, connection: ConnectionSettings, subject: Subject
) -> ReadSettings:
    sql92 = options.choice("expressionType", ("TAG", "SQL92"), "TAG") == "SQL92"
    if sql92:
        options.required("subExpression", "expressionType=SQL92 selects by an expression")
    expression = options.text("subExpression", ALL)
    if sql92:
        _check_sql92(expression)
    if not sql92 and re.search(r"[=<>()']", expression):
        raise options.wrong(
            "subExpression", "tags as in 'A || B', or SQL92 together with expressionType=SQL92"
        )
    if not sql92 and not expression.replace("|", "").strip():
        raise options.wrong("subExpression", "at least one tag, or *")
    group = options.text("consumerGroup") or _group(
        options.text("groupIdPrefix", DEFAULT_GROUP_PREFIX), connection, subject, expression
    )
    fault = validate_group(group)
    if fault is not None:
        name = "consumerGroup" if options.given("consumerGroup") else "groupIdPrefix"
        raise OptionError(f"option {name}: {group[:80]!a} is no group: {fault}", name)
    return ReadSettings(
        connection=connection,
        group=group,
        expression=expression,
        sql92=sql92,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        on_corruption=options.choice("onCorruption", ON_CORRUPTION, "fail"),
        pull_count=options.number("pullBatchSize", 1024, low=1, high=4096),
        pull_bytes=options.size("pullMaxBytes", _KIB * _KIB, low=_KIB, high=16 * _KIB * _KIB),
        pulls_in_flight=options.number("pullsInFlight", 8, low=1, high=64),
        batch_rows=options.number("arrowBatchRows", 2048, low=1, high=1_000_000),
        batch_bytes=options.size(
            "arrowBatchBytes", 4 * _KIB * _KIB, low=_KIB, high=1024 * _KIB * _KIB
        ),
    )


def _check_sql92(expression: str) -> None:
    try:
        parse(expression)
    except ExpressionError as error:
        raise OptionError(
            f"option subExpression: {error}, in {expression!r:.200}", "subExpression"
        ) from error


def _group(prefix: str, connection: ConnectionSettings, subject: Subject, expression: str) -> str:
    """Name a group after what is read from where, so that a restarted query has the same one."""
    what = json.dumps(
        [
            sorted(connection.name_servers),
            sorted(map(list, connection.brokers)),
            connection.namespace,
            sorted(subject.topics),
            subject.pattern,
            sorted(map(list, subject.queues)),
            expression,
        ]
    )
    return f"{prefix}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
