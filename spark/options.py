"""Options of the source beside those of settings.py, read in the driver and pickled to the tasks.

`SOURCE_OPTIONS` has them all; docs/reference/spark-options.md is made of it. Imports no pyspark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from skylarkmq.client.consumer.subscription import ALL, Selector, Sql92, Subscription, Tag
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, validate_group, validate_topic
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.protocol.sql92.parser import parse
from skylarkmq.spark.offsets import INT32_MAX, QueueKey
from skylarkmq.spark.option_reading import (
    KIB,
    MIB,
    TRUE_FALSE,
    Option,
    OptionError,
    OptionReader,
    choice,
    flag,
    listing,
    number,
    options_of,
    seconds,
    size,
    special,
    words,
)
from skylarkmq.spark.reading.positions import (
    POSITION_OPTIONS,
    Position,
    read_ending,
    read_starting,
)
from skylarkmq.spark.settings import CONNECTION_OPTIONS, HINTS, ConnectionSettings
from skylarkmq.spark.writing.sink_options import SINK_OPTIONS

OnCorruption = Literal["fail", "skip", "raw"]
ON_CORRUPTION: Final[tuple[OnCorruption, ...]] = ("fail", "skip", "raw")
DEFAULT_GROUP_PREFIX: Final = "spark-skylarkmq"
_ASSIGN_EXAMPLE: Final = '{"T":{"broker-a":[0,1]}}'
_HINTS: Final = {
    **HINTS,
    "kafka.bootstrap.servers": "the addresses of name servers go into nameServer",
    "kafka.group.id": "it is called consumerGroup here",
    "includeheaders": "the column properties always holds them",
    "path": "load() takes no path here: the topic goes into option topic",
    "paths": "load() takes no path here: the topic goes into option topic",
    "group": "it is called consumerGroup",
    "tag": "tags go into subExpression, as in 'A || B'",
    "tags": "tags go into subExpression, as in 'A || B'",
    "startingoffsetsbytimestamp": "use startingTimestamp, or offsets of each queue",
    "endingoffsetsbytimestamp": "use endingTimestamp, or offsets of each queue",
    "filter": "see subExpression and expressionType",
    "filterpushdown": "what is read is narrowed by assign, startingOffsets, endingOffsets, "
    "startingTimestamp, endingTimestamp, subExpression and keys",
    **{each.name.lower(): "it belongs to the sink: a source only reads" for each in SINK_OPTIONS},
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
    expression: str = special("subExpression", ALL, "which messages", "see expressionType", ALL)
    sql92: bool = special(
        "expressionType",
        False,
        "what subExpression is: tags as in `A || B`, or SQL92 over properties; brokers select",
        words(("TAG", "SQL92")),
        "TAG",
    )
    fail_on_data_loss: bool = flag("failOnDataLoss", True, "whether lost messages end the query")
    on_corruption: OnCorruption = choice(
        "onCorruption", "fail", ON_CORRUPTION, "a body that cannot be read: raw gives it as stored"
    )
    pull_count: int = number("pullBatchSize", 1024, "messages of one pull", 1, 4096)
    pull_bytes: int = size(
        "pullMaxBytes",
        MIB,
        "bytes of one pull; above 256 KiB SkylarkMQ gives more than RocketMQ's 32 messages",
        KIB,
        16 * MIB,
    )
    pulls_in_flight: int = number("pullsInFlight", 8, "pulls of a task under way at once", 1, 64)
    batch_rows: int = number("arrowBatchRows", 2048, "rows of one Arrow batch", 1, 1_000_000)
    batch_bytes: int = size("arrowBatchBytes", 4 * MIB, "its bytes", KIB, 1024 * MIB)

    @property
    def filters(self) -> bool:
        """True when brokers leave messages out."""
        return self.sql92 or self.tags is not None

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags wanted, to be compared as text: brokers compare hashes. None: all."""
        return frozenset(Tag(self.expression).tags) or None if not self.sql92 else None

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what pulls of the topic carry; None: everything.

        Brokers cannot select by tag where delayed messages wait: a due time stands for the tag.
        """
        if topic == RMQ_SYS_SCHEDULE_TOPIC and not self.sql92:
            return None
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
    max_offsets_per_trigger: int | None = number(
        "maxOffsetsPerTrigger", None, "messages of a batch, divided by backlog", 1, only="stream"
    )
    min_offsets_per_trigger: int | None = number(
        "minOffsetsPerTrigger", None, "messages that a batch waits for", 1, only="stream"
    )
    max_trigger_delay_s: float = seconds(
        "maxTriggerDelay", 900_000, "how long it waits for them at most", only="stream"
    )
    min_partitions: int | None = number(
        "minPartitions", None, "tasks at least: long ranges are cut", 1, INT32_MAX
    )
    max_partitions: int | None = number(
        "maxPartitions",
        None,
        "tasks at most; without it ranges share a task up to pullBatchSize messages",
        1,
        INT32_MAX,
    )
    max_records_per_partition: int | None = number(
        "maxRecordsPerPartition", None, "messages of one task at most; not with maxPartitions", 1
    )
    commit_offsets: bool = special(
        "commitOffsets",
        False,
        "whether a stream writes the group's offsets back to the brokers",
        TRUE_FALSE,
        "true with consumerGroup",
    )
    metadata_refresh_s: float = seconds(
        "metadataRefreshMs", 30_000, "how long a list of queues is good", low=100
    )
    offset_cache_s: float = seconds("offsetCacheMs", 100, "how long the ends of queues are good")
    keys: tuple[str, ...] = listing(
        "keys", "messages with one of these keys, as the brokers' key indexes know", only="batch"
    )

    @property
    def connection(self) -> ConnectionSettings:
        """Whom to reach and how."""
        return self.reading.connection

    @property
    def together(self) -> int:
        """How many messages of several ranges one task takes."""
        return min(self.reading.pull_count, self.max_records_per_partition or INT32_MAX)

    @classmethod
    def from_options(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Return the options of a read; no broker is asked yet.

        Raises:
            OptionError: unknown, missing, contradicting or wrong options; the text names them.
        """
        options = OptionReader(given, KNOWN, hints=_HINTS)
        others, why = (
            ("batch", "is for batches (spark.read): a stream has no end")
            if streaming
            else ("stream", "is for streams (spark.readStream)")
        )
        options.refuse([each.name for each in SOURCE_OPTIONS if each.only == others], why)
        values = options.values(cls)
        low, high = values["min_offsets_per_trigger"], values["max_offsets_per_trigger"]
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
        blank = [key for key in values["keys"] if re.search(r"\s", key)]
        if blank:
            raise OptionError(
                f"option keys: {blank[0][:80]!r} holds a blank, which separates keys", "keys"
            )
        _check_partitions(options, values["min_partitions"], values["max_partitions"])
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
            commit_offsets=options.flag("commitOffsets", options.given("consumerGroup")),
            **values,
        )


SUBJECTS: Final = (
    Option("topic", "the topics to read; exactly one of these four is needed", "a list"),
    Option("subscribe", "another name of topic", "a list"),
    Option("subscribePattern", "matches whole names of topics", "a Python regular expression"),
    Option("assign", "the queues to read", f"JSON such as `{_ASSIGN_EXAMPLE}`"),
)
SOURCE_OPTIONS: Final = options_of(
    *SUBJECTS,
    *POSITION_OPTIONS,
    Option("consumerGroup", "the name under which brokers know the reader"),
    Option("groupIdPrefix", "else it begins so, and ends in a hash", default=DEFAULT_GROUP_PREFIX),
    ReadSettings,
    SourceOptions,
)
KNOWN: Final = tuple(each.name for each in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS))


def _check_partitions(options: OptionReader, low: int | None, high: int | None) -> None:
    """Refuse options of which only some could be kept."""
    if high is None:
        return
    options.refuse(
        ("maxRecordsPerPartition",),
        "bounds the size of a task and maxPartitions their number: no batch may be too large for "
        "both",
    )
    if low is not None and low > high:
        raise OptionError(
            f"options minPartitions={low} and maxPartitions={high} contradict: no number of tasks "
            "is as large as the one and as small as the other",
            "minPartitions",
        )


def _subject(options: OptionReader) -> Subject:
    name = options.exactly_one(*(each.name for each in SUBJECTS))
    if name == "subscribePattern":
        try:
            return Subject(pattern=re.compile(options.text(name)).pattern)
        except re.error as error:
            raise options.wrong(name, f"a Python regular expression ({error})") from error
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
            for queue_id in numbers:
                if type(queue_id) is not int or not 0 <= queue_id <= INT32_MAX:
                    raise _wrong_assign(f"{queue_id!r:.40} is no queue number")
                queues.append(QueueKey(topic, broker, queue_id))
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
        **options.values(ReadSettings),
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
            [],  # part of the names that queries have given to their groups
            connection.namespace,
            sorted(subject.topics),
            subject.pattern,
            sorted(map(list, subject.queues)),
            expression,
        ]
    )
    return f"{prefix}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
