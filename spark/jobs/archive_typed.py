"""What --schema adds to the job `archive`: the bodies of one topic as columns of its table.

    FILE --> TopicSchema --> the table's columns value and quarantine; tasks fill them

Nothing is guessed: only a schema file makes columns, and they stay as they were made. Driver
process.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
import pyarrow as pa

from skylarkmq.spark.archive.delta_log import ConflictError
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import TRIES, ArchiveTable
from skylarkmq.spark.jobs.common import UsageError
from skylarkmq.spark.jobs.reporting import Table
from skylarkmq.spark.typed import topic_schema
from skylarkmq.spark.typed.column_types import TypedSchemaError
from skylarkmq.spark.typed.decoding import VALUE, BodyDecoder
from skylarkmq.spark.typed.rows import columns_of_bodies
from skylarkmq.spark.typed.topic_schema import TopicSchema

REASON_COLUMNS: Final = ("reason", "messages")
_REFUSED: Final = {
    "--sample": "write the columns into the --schema file yourself; Spark's schema_of_json says "
    "what the types of a body are",
    "--new-columns": "archive into another table by the new schema, or read the field from the "
    "column body",
}
"""Options that there are no more, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table that takes what a schema says."""

    schema: TopicSchema
    notes: tuple[str, ...]
    """What was changed."""


def prepare(
    table: ArchiveTable, schema: TopicSchema, topic: str, *, dry_run: bool = False
) -> Prepared:
    """Give the table the two columns if it lacks them; with `dry_run` only tell.

    Raises:
        UsageError: the table has other topics, or columns by another schema.
        ArchiveError: others came first time and again.
    """
    others = sorted(set(table.state.topics()) - {topic})
    if others:
        raise UsageError(
            f"the table has topic {others[0]} too, and with --schema a table has one topic: "
            "archive into another table"
        )
    columns = columns_of_bodies(schema)
    for _ in range(TRIES):
        there = value_type(table)
        if there is not None:
            _refuse_others(there, columns[0].type)
            return Prepared(schema, ())
        if not dry_run:
            try:
                table.log.add_columns(pa.schema(columns))
            except ConflictError:
                table.reload()
                continue
        return Prepared(schema, ("The table gets the columns value and quarantine.",))
    raise ArchiveError(f"others have changed {table.location} first, {TRIES} times in a row")


def load(path: str) -> TopicSchema:
    """Return the schema of a file. Raises UsageError: it is none, or no columns follow from it."""
    with _usage():
        found = topic_schema.load(path)
        BodyDecoder(found)  # before a table is made
    return found


@contextmanager
def _usage() -> Generator[None]:
    """What is wrong with a schema is wrong with the command line."""
    try:
        yield
    except TypedSchemaError as error:
        raise UsageError(str(error)) from error


def value_type(table: ArchiveTable) -> pa.DataType | None:
    """Return the type of the table's column `value`, None where it has none."""
    there = table.log.columns()
    kind: pa.DataType | None = there.field(VALUE).type if VALUE in there.names else None
    return kind


def _refuse_others(table: pa.DataType, schema: pa.DataType) -> None:
    """Raise UsageError: the schema's columns are not those of the table."""
    if table == schema:
        return
    there, here = _types(table), _types(schema)
    names = dict.fromkeys((*there, *here))
    lines = [
        f"{VALUE}.{name} is {there.get(name, 'missing')} in the table and "
        f"{here.get(name, 'missing')} in the schema"
        for name in names
        if there.get(name) != here.get(name)
    ] or [f"the table has the columns in the order {', '.join(there)}"]
    raise UsageError(
        f"{'; '.join(lines)}: the columns stay as they were made. Keep a field that bodies no "
        "longer have, read a new one from the column body, or archive into another table"
    )


def _types(kind: pa.DataType) -> dict[str, pa.DataType]:
    fields: Any = kind
    return {each.name: each.type for each in fields}


def quarantine_tables(reasons: Counter[str]) -> list[Table]:
    """Return a table of the reasons why bodies were not decoded, none when all were."""
    rows = [(reason, count) for reason, count in reasons.most_common()]
    return [Table("quarantine", REASON_COLUMNS, rows)] if rows else []


def refused_options() -> list[click.Option]:
    """Return the options that the command line still knows, to say what to do instead."""
    return [
        click.Option(
            [name],
            is_flag=False,
            flag_value="",
            hidden=True,
            expose_value=False,
            is_eager=True,
            callback=_refuse,
        )
        for name in _REFUSED
    ]


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        name = parameter.opts[0]
        raise click.UsageError(f"there is no option {name}: {_REFUSED[name]}", context)
