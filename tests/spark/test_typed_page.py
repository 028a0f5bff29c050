"""The page about typed archives: its example is run as it stands, and its schemas are read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from skylarkmq.spark.jobs import archive
from skylarkmq.spark.typed.column_types import UNITS, Struct, columns_of, parse
from skylarkmq.testing.threaded import SyncBroker
from tests.test_documents import BLOCK, JOB, NAME_SERVER, PROMISE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs/spark/typed.md").read_text("utf-8")
SCHEMA = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_example(
    spark: SparkSession,
    broker: SyncBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv_addr)
    broker.create_topic("orders", 1)
    send, read = BLOCK.findall(PAGE)
    (words,) = [words for job, words in JOB.findall(PAGE) if job == "archive"]
    run(send, broker, tmp_path)
    Path("orders.json").write_text(SCHEMA.findall(PAGE)[0])
    job(words, tmp_path)
    run(read, broker, tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [text.strip() for text in PROMISE.findall(send + read)]


@pytest.mark.spark
def test_what_spark_says_of_a_body_is_a_type(spark: SparkSession) -> None:
    ((query, answer),) = re.findall(r"^    (SELECT .+?)  -- (.+)$", PAGE, re.MULTILINE)
    assert spark.sql(query).first() == (answer,)
    assert isinstance(parse(answer), Struct)


def run(program: str, broker: SyncBroker, folder: Path) -> None:
    program = program.replace(NAME_SERVER, broker.namesrv_addr).replace("/data", str(folder))
    exec(compile(program, "docs/spark/typed.md", "exec"), {})


def job(words: str, folder: Path) -> None:
    done = CliRunner().invoke(archive.main, shlex.split(words.replace("/data", str(folder))))
    assert done.exit_code == 0, done.output


def test_the_types_of_json_are_types() -> None:
    """Those of the page's table, with their letters filled in."""
    table = PAGE.partition("### Types of JSON")[2].partition("###")[0]
    cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    kinds = re.findall(r"`([^`]+)`", " ".join(cells))
    assert len(kinds) > 15
    filled = {f"c{at}": kind.replace("P,S", "9,2").replace("T", "int").replace(",...", "")
              for at, kind in enumerate(kinds)}  # fmt: skip
    assert len(columns_of(filled).fields) == len(kinds)
    assert all(f"timestamp({unit})" in kinds for unit in UNITS)
