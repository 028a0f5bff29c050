# pyright: reportUnknownMemberType=false
"""Two sides that should hold the same messages: which are missing, extra, twice or different.

Both are grouped by topic, broker, queue and queue offset once; what does not agree is folded into
runs of neighbouring offsets, so a lost hour is one line, not a million. Spark does all of it; the
driver gets the runs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from skylarkmq.spark.jobs.summary import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
RUNS_MAX: Final = 10_000
"""Runs that are listed; the counts are of all."""
COLUMNS: Final = (
    "kind",
    "topic",
    "broker",
    "queue",
    "from_offset",
    "to_offset",
    "messages",
    "what",
)


class Run(NamedTuple):
    """Neighbouring offsets [start, end) with the same fault."""

    kind: str
    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    what: str
    """What differs; else empty."""

    @property
    def messages(self) -> int:
        """How many."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Kinds:
    """How the job names what it finds."""

    left_only: str = "missing"
    right_only: str = "extra"
    twice: str = "duplicate"
    differs: str = "differing"


def differences(
    left: DataFrame, right: DataFrame, facts: Sequence[str], kinds: Kinds | None = None
) -> DataFrame:
    """Return a row for each place where the sides do not agree: PLACE, kind, what.

    Args:
        left, right: have PLACE and `facts`; a fact that is null agrees with everything. What is
            twice counts on the right alone: the left side says what there is.
    """
    from pyspark.sql import functions as F

    kinds = kinds or Kinds()
    sides = [
        side.select(*PLACE, *facts, F.lit(left_count).alias("l"), F.lit(right_count).alias("r"))
        for side, left_count, right_count in ((left, 1, 0), (right, 0, 1))
    ]
    found = sides[0].unionAll(sides[1])
    grouped = found.groupBy(*PLACE).agg(
        F.sum("l").alias("l"),
        F.sum("r").alias("r"),
        *(F.min(fact).alias(f"low_{fact}") for fact in facts),
        *(F.max(fact).alias(f"high_{fact}") for fact in facts),
    )
    unequal: list[Column] = [
        F.when(F.col(f"low_{fact}") != F.col(f"high_{fact}"), F.lit(fact)) for fact in facts
    ]
    kind = (
        F.when(F.col("r") == 0, kinds.left_only)
        .when(F.col("l") == 0, F.when(F.col("r") > 1, kinds.twice).otherwise(kinds.right_only))
        .when(F.col("r") > 1, kinds.twice)
        .when(F.col("what") != "", kinds.differs)
    )
    named = grouped.withColumn("what", F.concat_ws(", ", *unequal)).withColumn("kind", kind)
    return named.where("kind IS NOT NULL").select(*PLACE, "kind", "what")


def runs(found: DataFrame) -> list[Run]:
    """Return the differences as runs, by kind and place; at most RUNS_MAX + 1. Runs Spark jobs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    same = ("kind", "topic", "brokerName", "queueId", "what")
    order = Window.partitionBy(*same).orderBy("queueOffset")
    island = F.col("queueOffset") - F.row_number().over(order)
    folded = (
        found.withColumn("island", island)
        .groupBy(*same, "island")
        .agg(F.min("queueOffset").alias("start"), F.max("queueOffset").alias("last"))
        .orderBy("kind", "topic", "brokerName", "queueId", "start")
    )
    rows = folded.select(*same[:4], "start", F.col("last") + 1, "what").limit(RUNS_MAX + 1)
    return [Run(*row) for row in rows.collect()]


def table(found: Sequence[Run]) -> Table:
    """Return runs for a summary."""
    rows = [(*run[:6], run.messages, run.what) for run in found]
    return Table("differences", COLUMNS, rows)


def counts(found: Sequence[Run]) -> dict[str, int]:
    """Return the number of messages of each kind."""
    counter: Counter[str] = Counter()
    for run in found:
        counter[run.kind] += run.messages
    return dict(sorted(counter.items()))
