"""The programs of the Spark pages are run as they stand, in the Spark session of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.spark.jobs import archive
from skylarkmq.spark.jobs.archive import ArchiveOptions
from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import documented
from tests.test_documents import ARCHIVE, AVRO_PAGE, NAME_SERVER, PROMISE, SNIPPETS, SPARK_MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compared(broker: SyncBroker, topic: str, table: Path) -> None:
    """The archive of a topic that has got one more message since."""
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(10):
            producer.send(Message(topic, f"order {number}"))
        archive.run(
            ArchiveOptions((topic,), str(table)), JobSettings(name_server=broker.namesrv_addr)
        )
        producer.send(Message(topic, "late"))


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, block in SNIPPETS.items()
        if SPARK_MARK in block and not name.startswith(AVRO_PAGE)
    ],
)
def test_a_program(
    name: str,
    spark: SparkSession,
    broker: SyncBroker,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = SNIPPETS[name]
    if ARCHIVE in block and NAME_SERVER in block:
        compared(broker, topic, tmp_path / "archive")
        block = block.replace('"orders"', f'"{topic}"')
    elif ARCHIVE in block:
        documented(tmp_path / "archive")
    program = block.replace(NAME_SERVER, broker.namesrv_addr)
    program = program.replace('"paid.', f'"{tmp_path}/paid.')  # else where the JVM was started
    program = program.replace(ARCHIVE, str(tmp_path / "archive"))
    exec(compile(program, name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [text.strip() for text in PROMISE.findall(block)]
