"""Departure delays of carriers by day, from wherever the flights lie, and their plot and table.

    source     Arrow reads the package's own file
    stream     Spark aggregates the bodies of messages while it reads the topic
    archive    Spark aggregates the bodies of archived messages

All three give sums and counts of whole minutes, so that equal means equal. A mean is made of them
at the very end.
"""

from __future__ import annotations

import datetime
import importlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from skylarkmq.common.extras import how_to_install

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

BODY_FIELDS: Final = "row int, carrier string, year int, month int, day int, dep_delay int"
ROLLING_DAYS: Final = 14
SHOWN_CARRIERS: Final = 6  # lines that a reader can still tell apart


class Cell(NamedTuple):
    """One carrier on one day."""

    flights: int
    departed: int  # those with a departure time; a cancelled flight has none
    delay_sum: int  # minutes late, summed over those; early ones count below zero


Figures = dict[tuple[str, datetime.date], Cell]


# From the source


def from_source(path: Path, limit: int | None = None) -> Figures:
    """Aggregate the rows of `flights.csv.zip` with Arrow alone, the first `limit` if given."""
    from pyarrow import compute, csv

    options = csv.ConvertOptions(
        include_columns=["carrier", "year", "month", "day", "dep_delay"], null_values=["NA", ""]
    )
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = csv.read_csv(raw, convert_options=options)
    return aggregate(rows if limit is None else rows.slice(0, limit), compute)


def aggregate(rows: pa.Table, compute: Any) -> Figures:
    """The figures of a table with the columns carrier, year, month, day and dep_delay."""
    every = compute.CountOptions(mode="all")
    found = rows.group_by(["carrier", "year", "month", "day"]).aggregate(
        [("carrier", "count", every), ("dep_delay", "count"), ("dep_delay", "sum")]
    )
    return {
        (row["carrier"], datetime.date(row["year"], row["month"], row["day"])): Cell(
            row["carrier_count"], row["dep_delay_count"], row["dep_delay_sum"] or 0
        )
        for row in found.to_pylist()
    }


# From Spark


def by_carrier_and_day(messages: DataFrame) -> DataFrame:
    """Aggregate messages, of a stream or of a table, by what their bodies say."""
    from pyspark.sql import functions as f

    flight = messages.select(
        f.from_json(f.col("body").cast("string"), BODY_FIELDS).alias("flight")
    ).select("flight.*")
    day = f.make_date("year", "month", "day").alias("day")
    return flight.groupBy("carrier", day).agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_sum"),
    )


def from_rows(rows: Sequence[Row]) -> Figures:
    """The figures of what `by_carrier_and_day` gave."""
    return {
        (row["carrier"], row["day"]): Cell(row["flights"], row["departed"], row["delay_sum"])
        for row in rows
    }


# Compared and shown


def differences(source: Figures, other: Figures, name: str) -> list[str]:
    """What differs, cell by cell; empty when all is equal."""
    wrong: list[str] = []
    for key in sorted(source.keys() | other.keys(), key=str):
        if source.get(key) != other.get(key):
            wrong.append(f"{key[0]} on {key[1]}: source {source.get(key)}, {name} {other.get(key)}")
    return wrong


@dataclass(frozen=True)
class Carrier:
    """The year of one carrier."""

    name: str
    flights: int
    departed: int
    delay_sum: int

    @property
    def mean(self) -> float | None:
        """Minutes late on average; None when nothing departed."""
        return self.delay_sum / self.departed if self.departed else None


def by_carrier(figures: Figures) -> dict[str, Carrier]:
    """The figures of whole carriers, those with most flights first."""
    cells: dict[str, list[Cell]] = {}
    for (carrier, _), cell in figures.items():
        cells.setdefault(carrier, []).append(cell)
    years = [
        Carrier(name, *(sum(column) for column in zip(*days, strict=True)))
        for name, days in cells.items()
    ]
    years.sort(key=lambda year: (-year.flights, year.name))
    return {year.name: year for year in years}


def table(sides: Mapping[str, Figures]) -> list[list[str]]:
    """A row a carrier: what the first side counts, each side's mean, the number of equal days."""
    first, *others = sides.values()
    years = {name: by_carrier(figures) for name, figures in sides.items()}
    lines: list[list[str]] = []
    for carrier, year in by_carrier(first).items():
        keys = [key for key in first if key[0] == carrier]
        equal = sum(all(other.get(key) == first[key] for other in others) for key in keys)
        means = [_shown(years[name].get(carrier)) for name in sides]
        lines.append([carrier, f"{year.flights:,}", *means, f"{equal} of {len(keys)}"])
    return lines


def _shown(year: Carrier | None) -> str:
    return "-" if year is None or year.mean is None else f"{year.mean:.4f}"


def rolling_mean(figures: Figures, carrier: str) -> list[tuple[datetime.date, float]]:
    """A carrier's mean delay over the last ROLLING_DAYS days, for each of its days."""
    days = sorted((day, cell) for (name, day), cell in figures.items() if name == carrier)
    found: list[tuple[datetime.date, float]] = []
    for index, (day, _) in enumerate(days):
        window = [cell for _, cell in days[max(0, index + 1 - ROLLING_DAYS) : index + 1]]
        departed = sum(cell.departed for cell in window)
        if departed:
            found.append((day, sum(cell.delay_sum for cell in window) / departed))
    return found


def plot(figures: Figures, path: Path, title: str) -> None:
    """Draw the busiest carriers' delays over the days into a PNG file.

    Raises:
        click.ClickException: matplotlib is not there, with the cure.
    """
    try:
        dates: Any = importlib.import_module("matplotlib.dates")
        figures_of: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise click.ClickException(f"no matplotlib: {how_to_install('demo')}") from error
    figure = figures_of.Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.8", linewidth=0.8)
    for year in list(by_carrier(figures).values())[:SHOWN_CARRIERS]:
        line = rolling_mean(figures, year.name)
        label = f"{year.name}, {year.flights:,} flights, mean {year.mean or 0:.1f}"
        axes.plot([day for day, _ in line], [mean for _, mean in line], label=label, linewidth=1.4)
    axes.set_title(title)
    axes.set_ylabel(f"mean departure delay of {ROLLING_DAYS} days, minutes")
    axes.xaxis.set_major_formatter(dates.DateFormatter("%b"))
    axes.xaxis.set_major_locator(dates.MonthLocator())
    axes.margins(x=0.01)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
