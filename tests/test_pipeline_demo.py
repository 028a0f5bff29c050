"""The pipeline's demo: its arithmetic, and the whole of it on a few flights of our own."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from examples import pipeline_figures as figures
from examples.flights import Flights
from examples.pipeline import Outcome
from tests.spark.conftest import QUICK
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S

HEADER = "year,month,day,dep_time,dep_delay,carrier,flight,tailnum"
JANUARY = datetime.date(2013, 1, 1)


def write_flights(path: Path, rows: list[tuple[str, int, int | None]]) -> Path:
    """A file as the package's own: of each row the carrier, the day of January, the delay."""
    lines = [HEADER]
    for number, (carrier, day, delay) in enumerate(rows):
        shown = "NA" if delay is None else str(delay)
        lines.append(f"2013,1,{day},{'NA' if delay is None else 600},{shown},{carrier},{number},NA")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines) + "\n")
    return path


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["UA", "B6", "9E"]),
            st.integers(1, 31),
            st.none() | st.integers(-60, 1500),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_arrow_counts_as_one_would_by_hand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int | None]]
) -> None:
    path = write_flights(tmp_path_factory.mktemp("flights") / "flights.csv.zip", rows)
    flown, departed, late = Counter[object](), Counter[object](), Counter[object]()
    for carrier, day, delay in rows:
        key = (carrier, JANUARY.replace(day=day))
        flown[key] += 1
        departed[key] += delay is not None
        late[key] += delay or 0
    expected = {key: (flown[key], departed[key], late[key]) for key in flown}
    assert figures.from_source(path) == expected


def test_only_the_first_rows_of_a_source(tmp_path: Path) -> None:
    path = write_flights(tmp_path / "f.zip", [("UA", 1, 5), ("UA", 1, None), ("B6", 2, 7)])
    assert figures.from_source(path, 2) == {("UA", JANUARY): (2, 1, 5)}
    assert len(Flights.load(path, 2).rows) == 2


def test_what_differs_is_named() -> None:
    source = {("UA", JANUARY): figures.Cell(3, 2, 10), ("B6", JANUARY): figures.Cell(1, 0, 0)}
    assert figures.differences(source, dict(source), "stream") == []
    other = {("UA", JANUARY): figures.Cell(3, 2, 11), ("9E", JANUARY): figures.Cell(1, 1, 1)}
    told = figures.differences(source, other, "stream")
    assert [line.split(":")[0] for line in told] == [
        "9E on 2013-01-01", "B6 on 2013-01-01", "UA on 2013-01-01",
    ]  # fmt: skip
    assert "delay_sum=10" in told[2] and "stream Cell(flights=3" in told[2]


def test_table_has_a_mean_of_each_side_and_the_equal_days() -> None:
    second = datetime.date(2013, 1, 2)
    source = {
        ("UA", JANUARY): figures.Cell(3, 2, 10),
        ("UA", second): figures.Cell(1, 1, 2),
        ("B6", JANUARY): figures.Cell(1, 0, 0),
    }
    wrong = {**source, ("UA", second): figures.Cell(1, 1, 5)}
    lines = figures.table({"source": source, "stream": source, "archive": wrong})
    assert lines == [
        ["UA", "4", "4.0000", "4.0000", "5.0000", "1 of 2"],
        ["B6", "1", "-", "-", "-", "1 of 1"],
    ]


def test_rolling_mean_weighs_by_departures() -> None:
    day = datetime.timedelta(days=1)
    cells = {("UA", JANUARY + n * day): figures.Cell(9, n, 10 * n) for n in range(20)}
    assert figures.rolling_mean(cells, "UA") == [(JANUARY + n * day, 10.0) for n in range(1, 20)]


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="no matplotlib")
def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "new" / "delays.png"
    figures.plot({("UA", JANUARY): figures.Cell(3, 2, 10)}, path, "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_batches_are_an_eighth_but_not_tiny() -> None:
    assert Outcome(3).rows_a_batch == 700
    assert Outcome(80_000).rows_a_batch == 10_000


def test_bodies_have_the_fields_that_spark_reads(tmp_path: Path) -> None:
    path = write_flights(tmp_path / "f.zip", [("UA", 1, None)])
    body = json.loads(Flights.load(path).message(0).body)
    names = [field.split()[0] for field in figures.BODY_FIELDS.split(", ")]
    assert {name: body[name] for name in names} == {
        "row": 0, "carrier": "UA", "year": 2013, "month": 1, "day": 1, "dep_delay": None,
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_small_year(tmp_path: Path, kill: bool) -> None:
    """The whole demo in processes of its own; with `kill` its archive job is started again."""
    rows = [(["UA", "B6", "9E"][row % 3], row % 31 + 1, row % 100 - 30) for row in range(2000)]
    path = write_flights(tmp_path / "flights.csv.zip", [*rows, ("UA", 1, None)])
    command = [sys.executable, "-m", "examples.pipeline", "--flights", str(path)]
    command += ["--plot", str(tmp_path / "delays.png"), "--kill" if kill else "--no-kill"]
    for name, value in QUICK.items():
        command += ["--conf", f"{name}={str(value).lower()}"]
    env = {**os.environ, "PYTHONPATH": make_worker_path(tmp_path / "workers")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=JVM_LIMIT_S, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("killed -9 in a batch" in done.stderr) == kill
    assert done.stdout.rstrip().endswith("all equal")
    assert re.search(r"carriers and days compared +93$", done.stdout, re.MULTILINE)
    assert (tmp_path / "delays.png").is_file()
