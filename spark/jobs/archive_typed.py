"""What --schema adds to the job `archive`: the bodies of one topic as columns of its table.

    FILE and the table's columns --evolve--> columns added, TypedPlan
    tasks --> value, quarantine

Nothing is guessed: only a schema file makes columns. Driver process.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
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
from skylarkmq.spark.typed.column_types import TypedSchemaError, arrow_type
from skylarkmq.spark.typed.decoding import VALUE, BodyDecoder
from skylarkmq.spark.typed.evolution import evolve, type_name
from skylarkmq.spark.typed.rows import TypedPlan, columns
from skylarkmq.spark.typed.topic_schema import TopicSchema

REASON_COLUMNS: Final = ("reason", "messages")
_REFUSED: Final = {
    "--sample": "write the columns into the --schema file yourself; Spark's schema_of_json says "
    "what the types of a body are",
}
"""Options that there are no more, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table that takes what a schema says."""

    plan: TypedPlan
    notes: tuple[str, ...]
    """What was changed, and what it means for queries."""


def prepare(
    table: ArchiveTable,
    schema: TopicSchema,
    topic: str,
    *,
    new_columns: bool,
    dry_run: bool = False,
) -> Prepared:
    """Give the table the columns that it lacks; with `dry_run` only tell which.

    Raises:
        UsageError: the table has other topics, or a field does not fit its column, and
            `new_columns` is not set.
        ArchiveError: others came first time and again.
    """
    others = sorted(set(table.state.topics()) - {topic})
    if others:
        raise UsageError(
            f"the table has topic {others[0]} too, and with --schema a table has one topic: "
            "archive into another table"
        )
    with _usage():
        new = arrow_type(BodyDecoder(schema).columns)
    for _ in range(TRIES):
        there = value_type(table)
        if there is None:
            kind, notes = new, ["The table gets the columns value and quarantine."]
        else:
            with _usage():
                found = evolve(there, new, new_columns=new_columns)
            kind, notes = found.kind, [*_changes(found.added, found.missing, found.moved)]
        if not dry_run and (there is None or type_name(kind) != type_name(there)):
            try:
                table.log.add_columns(pa.schema(columns(kind)))
            except ConflictError:
                table.reload()
                continue
        return Prepared(TypedPlan(schema, kind), tuple(notes))
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


def _changes(
    added: tuple[str, ...], missing: tuple[str, ...], moved: tuple[tuple[str, str], ...]
) -> Iterator[str]:
    if added:
        yield f"New columns: {', '.join(added)}; older rows have null there."
    for before, after in moved:
        yield f"{before} no longer fits: from here on it is in {after}, and {before} is null."
    if missing:
        yield f"The schema has no {', '.join(missing)} (any more): null from here on."


def quarantine_tables(reasons: Counter[str]) -> list[Table]:
    """Return a table of the reasons why bodies were not decoded, none when all were."""
    rows = [(reason, count) for reason, count in reasons.most_common()]
    return [Table("quarantine", REASON_COLUMNS, rows)] if rows else []


def refused_options() -> list[click.Option]:
    """Return the options that the command line still knows, to say what to do instead."""
    return [
        click.Option([name], hidden=True, expose_value=False, is_eager=True, callback=_refuse)
        for name in _REFUSED
    ]


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        name = parameter.opts[0]
        raise click.UsageError(f"there is no option {name}: {_REFUSED[name]}", context)
