"""The program of the Spark pages is run as it stands, in the Spark session of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylarkmq.testing.threaded import SyncBroker
from tests.test_documents import NAME_SERVER, PROMISE, SNIPPETS, SPARK_MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_program(
    spark: SparkSession,
    broker: SyncBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = [block for block in SNIPPETS.values() if SPARK_MARK in block]
    program = block.replace(NAME_SERVER, broker.namesrv_addr)
    program = program.replace('"paid.', f'"{tmp_path}/paid.')  # else where the JVM was started
    exec(compile(program, "docs/spark/index.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [text.strip() for text in PROMISE.findall(block)]
