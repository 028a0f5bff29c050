"""Which columns of a row make which part of a message; checked in the driver, before any row.

    column          type                     message
    body            binary or string         required; text becomes UTF-8
    topic           string                   required without option `topic`, which goes before it
    keys            string or array<string>  index keys, separated by blanks
    tags            string                   its tag
    properties      map<string,string>       properties; see `rows`
    queueId         a whole number           the queue it goes to; with brokerName that broker's
    brokerName      string                   only together with queueId
    shardingKey     string                   all of one key go to one queue, as Java's hash says
    delayTimeLevel  a whole number           above 0: delivered after that level's delay
    priority        a whole number           0 or more, in a topic of type PRIORITY; picks the queue
    msgId           string                   the unique key, instead of a computed one
    flag            int                      the application's own number

A null is an absent part. Other columns of our sources are passed over, so a row that was read can
be sent again; any column beside these is refused, because it may be one of these spelt wrong. The
columns of `idempotencyColumns` may have any name, and one may be what Spark's window() gives;
queueId and brokerName among them say where the row is from, and not where it goes.

Pure; imports no pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skylarkmq.spark.option_reading import OptionError, nearest
from skylarkmq.spark.schema import COLUMNS, LOG_COLUMNS, SchemaError, names

_WHOLE: Final = ("int", "smallint", "tinyint", "bigint")
_TEXT: Final = ("string",)
SINK_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": _TEXT,
    "keys": ("string", "array<string>"),
    "tags": _TEXT,
    "properties": ("map<string,string>",),
    "queueId": _WHOLE,
    "brokerName": _TEXT,
    "shardingKey": _TEXT,
    "delayTimeLevel": _WHOLE,
    "priority": _WHOLE,
    "msgId": _TEXT,
    "flag": _WHOLE,
}
PASSED_OVER: Final = (
    frozenset({*names(COLUMNS), *names(LOG_COLUMNS), "date", "hour"}) - SINK_TYPES.keys()
)
"""Columns of the sources and of archives that say where a message was, not what it is."""
IDENTITY_TYPES: Final = (*_WHOLE, "string", "binary", "boolean", "date", "timestamp")
_IDENTITY_MORE: Final = re.compile(
    r"decimal\(\d+,\d+\)|timestamp_ntz|struct<start:(timestamp(?:_ntz)?),end:\1>"
)
_SIZED_TEXT: Final = re.compile(r"(var)?char\(\d+\)|string collate \w+")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Where in a row the parts of a message are; None is a part that no column has. Picklable."""

    body: int
    topic: int | None = None
    keys: int | None = None
    tags: int | None = None
    properties: int | None = None
    queue_id: int | None = None
    broker_name: int | None = None
    sharding_key: int | None = None
    delay_level: int | None = None
    priority: int | None = None
    msg_id: int | None = None
    flag: int | None = None
    identity: tuple[int, ...] = ()
    """Columns whose values make the unique key; then `msg_id` is None."""


def plan_rows(
    fields: Iterable[tuple[str, str]], *, has_topic: bool, identity: Sequence[str] = ()
) -> RowPlan:
    """Return the plan for rows of these columns.

    Args:
        fields: name and type as `DataType.simpleString()` gives it, in the rows' order.
        has_topic: option `topic` is given, so the column is not looked at.
        identity: names in option `idempotencyColumns`.

    Raises:
        SchemaError: a column is missing, unknown, comes twice, or has a wrong type.
        OptionError: `idempotencyColumns` names what is no column, or no value of identity.
    """
    listed = [(name, _plain(kind)) for name, kind in fields]
    found = _identity(listed, identity)
    _check_names([name for name, _ in listed], identity)
    places: dict[str, int] = {}
    for place, (name, kind) in enumerate(listed):
        wanted = SINK_TYPES.get(name)
        if wanted is None:
            continue
        if kind not in wanted:
            raise SchemaError(
                f"column {name} is {kind}, but a message's {name} is {' or '.join(wanted)}",
                hint=f"Select {name} as a cast of it, for instance "
                f"CAST({name} AS {wanted[0].upper()})",
            )
        places[name] = place
    if "body" not in places:
        raise SchemaError(
            "the rows to send have no column body",
            hint="Name what is to be sent, for instance to_json(struct(*)) AS body",
        )
    if "queueId" in identity:
        del places["queueId"]
    if has_topic:
        places.pop("topic", None)
    elif "topic" not in places:
        raise SchemaError(
            "the rows to send have no column topic, and option topic is not given",
            hint='Give one of them, for instance .option("topic", "orders")',
        )
    return RowPlan(
        body=places["body"],
        topic=places.get("topic"),
        keys=places.get("keys"),
        tags=places.get("tags"),
        properties=places.get("properties"),
        queue_id=places.get("queueId"),
        broker_name=places.get("brokerName") if "queueId" in places else None,
        sharding_key=places.get("shardingKey"),
        delay_level=places.get("delayTimeLevel"),
        priority=places.get("priority"),
        msg_id=None if found else places.get("msgId"),
        flag=places.get("flag"),
        identity=found,
    )


def _check_names(given: Sequence[str], identity: Sequence[str]) -> None:
    for place, name in enumerate(given):
        if name in given[:place]:
            raise SchemaError(f"two columns are named {name}", hint="Rename or drop one of them")
        if name in SINK_TYPES or name in PASSED_OVER or name in identity:
            continue
        near = nearest(name, SINK_TYPES)
        raise SchemaError(
            f"column {name[:64]!a} is no part of a message"
            + (f": did you mean {near}?" if near else ""),
            hint=f"Drop it, or put it into body or properties. Known are {', '.join(SINK_TYPES)}",
        )


def _identity(listed: Sequence[tuple[str, str]], identity: Sequence[str]) -> tuple[int, ...]:
    places = {name: place for place, (name, _) in enumerate(listed)}
    option = "idempotencyColumns"
    for name in identity:
        if name not in places:
            near = nearest(name, places)
            hint = f"did you mean {near}?" if near else f"the rows have {', '.join(places)}"
            raise OptionError(f"option {option} names {name}, which is no column: {hint}", option)
        kind = listed[places[name]][1]
        if kind not in IDENTITY_TYPES and not _IDENTITY_MORE.fullmatch(kind):
            raise OptionError(
                f"option {option}: column {name} is {kind}, which has no one spelling; allowed "
                f"are {', '.join(IDENTITY_TYPES)}, decimal and window",
                option,
            )
    return tuple(places[name] for name in identity)


def _plain(kind: str) -> str:
    text = kind.lower()
    if _SIZED_TEXT.fullmatch(text):
        return "string"
    return text.replace(" ", "")
