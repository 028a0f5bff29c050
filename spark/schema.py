"""The columns of a message: their names, their SQL types for Spark, their Arrow types for batches.

    column     DDL                  Arrow
    text       string               utf8
    number     int, bigint          int32, int64
    body       binary               binary (32-bit offsets; Spark refuses large_binary)
    time       timestamp            timestamp("us", tz="UTC")
    properties map<string,string>   map<utf8, utf8>, keys never null
    flag       boolean              bool

Every column is nullable: Spark compares a reader's Arrow schema with its own, nullability
included, and a user's `.schema("body binary")` makes nullable columns too. Any subset of the
columns in any order is a projection: what is not asked for is not decoded.

Importing this loads neither pyspark nor pyarrow.
Source: apache/spark@v4.3.0 python/pyspark/sql/worker/plan_data_source_read.py (schema check),
python/pyspark/sql/pandas/types.py (to_arrow_type)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from skylarkmq.client.errors import RocketMQError

if TYPE_CHECKING:
    import pyarrow as pa


class SchemaError(RocketMQError, ValueError):
    """A schema handed to `.schema(...)` asks for what a record does not have."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name and its type in Spark's DDL."""

    name: str
    ddl: str

    @property
    def arrow(self) -> pa.DataType:
        """Its Arrow type. Loads pyarrow."""
        return _arrow_types()[self.ddl]


COLUMNS: Final[tuple[Column, ...]] = (
    Column("topic", "string"),
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("msgId", "string"),
    Column("offsetMsgId", "string"),
    Column("keys", "string"),
    Column("tags", "string"),
    Column("body", "binary"),
    Column("properties", "map<string,string>"),
    Column("bornTimestamp", "timestamp"),
    Column("storeTimestamp", "timestamp"),
    Column("bornHost", "string"),
    Column("storeHost", "string"),
    Column("reconsumeTimes", "int"),
    Column("flag", "int"),
    Column("sysFlag", "int"),
    Column("bodyCRC", "int"),
    Column("physicalOffset", "bigint"),
    Column("storeSize", "int"),
    Column("preparedTransactionOffset", "bigint"),
)
"""What a pulled message has."""

LOG_COLUMNS: Final[tuple[Column, ...]] = (
    *(column for column in COLUMNS if column.name != "brokerName"),
    Column("segment", "string"),
    Column("position", "bigint"),
    Column("crcOk", "boolean"),
    Column("recordKind", "string"),
)
"""What a record of a log file has: no broker's name, but its file, its byte place in it, whether
its body has the checksum it says, and message, prepared, commit or rollback."""


def names(columns: Sequence[Column] = COLUMNS) -> tuple[str, ...]:
    """Return the columns' names in order."""
    return tuple(column.name for column in columns)


def ddl(columns: Sequence[Column] = COLUMNS) -> str:
    """Return the columns as a schema that Spark reads."""
    return ", ".join(f"{column.name} {column.ddl}" for column in columns)


def select(chosen: Iterable[str], columns: Sequence[Column] = COLUMNS) -> tuple[Column, ...]:
    """Return the columns of these names, in the names' order.

    Raises:
        SchemaError: a name is none of `columns`.
    """
    known = {column.name: column for column in columns}
    found: list[Column] = []
    for name in chosen:
        column = known.get(name)
        if column is None:
            raise _unknown(name, columns)
        found.append(column)
    return tuple(found)


def arrow_schema(chosen: Iterable[str], columns: Sequence[Column] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the columns of these names, all nullable. Loads pyarrow.

    Raises:
        SchemaError: a name is none of `columns`.
    """
    import pyarrow as pa

    return pa.schema([(column.name, column.arrow) for column in select(chosen, columns)])


def projection(
    fields: Iterable[tuple[str, str]], columns: Sequence[Column] = COLUMNS
) -> tuple[str, ...]:
    """Return the names of the columns that a user's schema asks for, in its order.

    Args:
        fields: name and type as `DataType.simpleString()` gives it, for instance `bigint`.

    Raises:
        SchemaError: a column is not known, comes twice, has another type, or there is none.
    """
    known = {column.name: column for column in columns}
    chosen: list[str] = []
    for name, kind in fields:
        column = known.get(name)
        if column is None:
            raise _unknown(name, columns)
        if name in chosen:
            raise SchemaError(f"the schema names column {name} twice", hint="Name it once")
        if _plain(kind) != column.ddl:
            raise SchemaError(
                f"column {name} is {column.ddl}, but the schema asks for {kind}",
                hint=f"Ask for '{name} {column.ddl}' and cast it afterwards",
            )
        chosen.append(name)
    if not chosen:
        raise SchemaError("the schema has no column", hint=f"Known are {', '.join(known)}")
    return tuple(chosen)


class _Field(Protocol):
    """What is used of a `pyspark.sql.types.StructField`."""

    name: str
    nullable: bool
    dataType: Any


def struct_projection(
    fields: Iterable[_Field], columns: Sequence[Column] = COLUMNS
) -> tuple[str, ...]:
    """Return what `projection` does, of the fields of a Spark StructType.

    Raises:
        SchemaError: as `projection`, and for a column that may not be null.
    """
    listed = list(fields)
    chosen = projection([(field.name, field.dataType.simpleString()) for field in listed], columns)
    for field in listed:
        if not field.nullable or not getattr(field.dataType, "valueContainsNull", True):
            raise SchemaError(
                f"the schema declares column {field.name} NOT NULL",
                hint="Leave that out: the columns of this source are nullable",
            )
    return chosen


def _plain(kind: str) -> str:
    return kind.replace(" ", "").lower()


def _unknown(name: str, columns: Sequence[Column]) -> SchemaError:
    known = {column.name.lower(): column.name for column in columns}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"Did you mean {known[near[0]]}?" if near else f"Known are {', '.join(known.values())}"
    return SchemaError(f"there is no column {name[:64]!a}", hint=hint)


@cache
def _arrow_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
