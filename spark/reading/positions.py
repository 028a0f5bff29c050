"""Where a read starts and ends in each queue, as options say it and as offsets.

    earliest, latest, group              one word for all queues
    {"T":{"broker-a":{"0":23,"1":-1}}}   exact: every queue is named; -2 earliest, -1 latest
    1700000000000, 2026-01-31T08:00Z     a time: the first message stored then or later

An offset is the NEXT one to read, an end is exclusive, for times as well: an ending time is the
first instant that is not read any more.

Driver process. Imports no pyspark. Source: the shapes follow Spark's Kafka source,
apache/spark@v4.3.0 connector/kafka-0-10-sql/.../ConsumerStrategy.scala, KafkaSourceProvider.scala
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from skylarkmq.client.clock import ceil_ms
from skylarkmq.client.errors import NotFound
from skylarkmq.spark.offsets import (
    OffsetFormatError,
    QueueKey,
    QueueOffsets,
    describe,
    flatten_queues,
)
from skylarkmq.spark.option_reading import Option, OptionError, OptionReader

if TYPE_CHECKING:
    from skylarkmq.spark.cluster import BlockingClient

EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1
SHOWN_MAX: Final = 5
"""Queues that an error names; of more it tells the number."""
_OFFSETS_EXAMPLE: Final = '{"T":{"broker-a":{"0":23,"1":-1}}}'

INSTANT: Final = "ms since 1970, or ISO 8601 with a zone"
_STARTS: Final = f"`earliest`, `latest`, `group`, `{_OFFSETS_EXAMPLE}`"
_ENDS: Final = f"`latest`, `{_OFFSETS_EXAMPLE}`"
POSITION_OPTIONS: Final = (
    Option(
        "startingOffsets",
        "-2 is the earliest, -1 the latest",
        _STARTS,
        "latest; earliest in a batch",
    ),
    Option("startingTimestamp", "starts at the first message stored then or later", INSTANT),
    Option(
        "startingOffsetsByTimestampStrategy",
        "what to do where no message is as young as the time",
        "`error`, `latest`",
        "error",
    ),
    Option("endingOffsets", "the first offsets not read", _ENDS, "latest", "batch"),
    Option("endingTimestamp", "the first instant not read", INSTANT, only="batch"),
)

Kind = Literal["earliest", "latest", "group", "time", "offsets"]
Missing = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Position:
    """One side of a read, before brokers were asked. Picklable."""

    kind: Kind
    time_ms: int = 0
    """Of kind `time`."""
    by_queue: tuple[tuple[QueueKey, int], ...] = ()
    """Of kind `offsets`: an offset or a mark."""
    missing: Missing = "latest"
    """What to do where no message is as young as the time asked for."""
    option: str = ""
    """The option that says so, for errors."""

    @property
    def moves(self) -> bool:
        """True when it may be another place when it is resolved again: an end, in some queue."""
        if self.kind == "time":
            return self.missing == "latest"
        marked = self.kind == "offsets" and any(at == LATEST_MARK for _, at in self.by_queue)
        return self.kind == "latest" or marked


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


def read_starting(options: OptionReader, *, streaming: bool) -> Position:
    """Return where the options let a read start.

    Raises:
        OptionError: two of them at once, or a value that cannot be a start.
    """
    chosen = options.at_most_one("startingOffsets", "startingTimestamp")
    if chosen != "startingTimestamp":
        options.refuse(("startingOffsetsByTimestampStrategy",), "goes with startingTimestamp")
    if chosen is None:
        return LATEST if streaming else EARLIEST
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    missing: Missing = "latest" if strategy == "latest" else "error"
    if chosen == "startingTimestamp":
        return Position("time", _instant(options, chosen), (), missing, chosen)
    position = _offsets(options, chosen, ("earliest", "latest", "group"))
    marks = [offset for _, offset in position.by_queue]
    if not streaming and (position.kind == "latest" or LATEST_MARK in marks):
        raise OptionError(
            f"option {chosen}: a batch cannot start at the latest offset, it would read nothing: "
            "use earliest, a number or startingTimestamp",
            chosen,
        )
    return position


def read_ending(options: OptionReader) -> Position:
    """Return where the options let a batch end.

    Raises:
        OptionError: two of them at once, or a value that cannot be an end.
    """
    chosen = options.at_most_one("endingOffsets", "endingTimestamp")
    if chosen is None:
        return LATEST
    if chosen == "endingTimestamp":
        return Position("time", _instant(options, chosen), option=chosen)
    position = _offsets(options, chosen, ("latest",))
    if EARLIEST_MARK in [offset for _, offset in position.by_queue]:
        raise OptionError(
            f"option {chosen}: -2 (earliest) is no place to end: use -1 for latest", chosen
        )
    return position


def resolve(
    position: Position, queues: Sequence[QueueKey], brokers: BlockingClient, group: str
) -> QueueOffsets:
    """Return the offset of each queue; asks brokers, and blocks meanwhile.

    A queue for which the group has committed nothing starts at its earliest message.

    Raises:
        OptionError: the option names queues that are not read, or leaves some out; no message is
            as young as a starting time (with strategy error).
        RocketMQError: a broker did not answer.
    """
    resolvers: dict[Kind, Callable[[], Mapping[QueueKey, int]]] = {
        "earliest": lambda: brokers.min_offsets(queues),
        "latest": lambda: brokers.max_offsets(queues),
        "group": lambda: _committed(brokers, group, queues),
        "time": lambda: _at_time(position, queues, brokers),
        "offsets": lambda: _exact(position, _complete(position, queues), brokers),
    }
    return QueueOffsets(resolvers[position.kind]())


def instant_ms(text: str) -> int:
    """Return milliseconds since the epoch: a number of them, or an ISO 8601 time with its zone.

    A fraction of a millisecond counts as the next millisecond.

    Raises:
        ValueError: it is neither; the text says what is wrong.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "milliseconds since 1970 or an ISO 8601 time such as 2026-01-31T08:00:00Z"
        ) from None
    if when.tzinfo is None:
        raise ValueError("a time with its zone: append Z for UTC, or an offset such as +02:00")
    return ceil_ms(when)


def listed(queues: Iterable[QueueKey]) -> str:
    """Return some queues as an error names them, the first few by name."""
    ordered = sorted(queues)
    text = ", ".join(f"{topic}/{broker}/{number}" for topic, broker, number in ordered[:SHOWN_MAX])
    more = len(ordered) - SHOWN_MAX
    return f"{text} and {more} more" if more > 0 else text


def _offsets(options: OptionReader, name: str, words: tuple[str, ...]) -> Position:
    text = options.text(name)
    word = text.lower()
    if word in ("earliest", "latest", "group"):
        if word not in words:
            raise options.wrong(name, f"{', '.join(words)} or JSON such as {_OFFSETS_EXAMPLE}")
        kind: Kind = "earliest" if word == "earliest" else "group"
        return Position("latest" if word == "latest" else kind, option=name)
    if not text.startswith("{"):
        raise options.wrong(name, f"{', '.join(words)} or JSON such as {_OFFSETS_EXAMPLE}")
    document = options.json_object(name, _OFFSETS_EXAMPLE)
    return Position("offsets", 0, _pairs(name, document), option=name)


def _offset_or_mark(value: Any) -> int:
    if type(value) is not int or value < EARLIEST_MARK:
        raise ValueError(f"{value!r:.40} is no queue offset: 0 or more, -1 latest, -2 earliest")
    return value


def _instant(options: OptionReader, name: str) -> int:
    try:
        return instant_ms(options.text(name))
    except ValueError as error:
        raise options.wrong(name, str(error)) from error


def _pairs(name: str, document: dict[str, Any]) -> tuple[tuple[QueueKey, int], ...]:
    example = _OFFSETS_EXAMPLE
    pairs: list[tuple[QueueKey, int]] = []
    try:
        for key, value in flatten_queues(document):
            try:
                pairs.append((key, _offset_or_mark(value)))
            except ValueError as error:
                raise OptionError(f"option {name}: {describe(key)}: {error}", name) from error
    except OffsetFormatError as error:
        raise OptionError(f"option {name}: {error}; it looks like {example}", name) from error
    if not pairs:
        raise OptionError(f"option {name} names no queue; it looks like {example}", name)
    return tuple(sorted(pairs))


def _complete(position: Position, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
    given = dict(position.by_queue)
    unknown = given.keys() - set(queues)
    if unknown:
        raise OptionError(
            f"option {position.option} names queues that this read does not have: "
            f"{listed(unknown)}; it has {listed(queues)}",
            position.option,
        )
    left_out = set(queues) - given.keys()
    if left_out:
        raise OptionError(
            f"option {position.option} names each queue that is read, and leaves out "
            f"{listed(left_out)}: add them, with -1 for latest or -2 for earliest",
            position.option,
        )
    return given


def _exact(
    position: Position, wanted: dict[QueueKey, int], brokers: BlockingClient
) -> dict[QueueKey, int]:
    ends = brokers.max_offsets(wanted)
    found = {key: ends[key] if offset == LATEST_MARK else offset for key, offset in wanted.items()}
    earliest = [key for key, offset in wanted.items() if offset == EARLIEST_MARK]
    if earliest:
        found.update(brokers.min_offsets(earliest))
    too_far = [key for key, offset in found.items() if offset > ends[key]]
    if too_far and position.option == "startingOffsets":
        key = min(too_far)
        raise OptionError(
            f"option {position.option}: {describe(key)} ends at {ends[key]}, and {found[key]} is "
            "asked for: correct it, or use -1 for latest",
            position.option,
        )
    return found


def _at_time(
    position: Position, queues: Sequence[QueueKey], brokers: BlockingClient
) -> dict[QueueKey, int]:
    found = {key: brokers.offset_at(key, position.time_ms) for key in queues}
    if position.missing == "error":
        ends = brokers.max_offsets(queues)
        too_late = [key for key, offset in found.items() if offset >= ends[key]]
        if too_late:
            raise OptionError(
                f"option {position.option}: no message is stored at that time or later in "
                f"{listed(too_late)}: choose an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest",
                position.option,
            )
    return found


def _committed(
    brokers: BlockingClient, group: str, queues: Sequence[QueueKey]
) -> dict[QueueKey, int]:
    committed = brokers.committed_offsets(group, queues)
    found = {key: offset for key, offset in committed.items() if offset is not None}
    if not found:
        raise NotFound(
            f"consumer group {group} has committed no offset in {listed(queues)}",
            hint="See option consumerGroup, or start with startingOffsets=earliest",
        )
    fresh = [key for key in queues if key not in found]
    return found | (brokers.min_offsets(fresh) if fresh else {})
