"""What only Spark itself can say of our columns and of the commit-log format. One JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.log.source import CommitLogReader
from skylarkmq.spark.schema import COLUMNS, LOG_COLUMNS, arrow_schema, ddl, names
from tests.spark.support.records import rows_in
from tests.store.test_golden_stores import FOLDER, STORES
from tests.support.archives import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def assert_arrow_schemas_are_those_that_spark_derives() -> None:
    """Spark refuses a batch whose names, order, types or nullability differ from its own."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for columns in (COLUMNS, LOG_COLUMNS, COLUMNS[::-1], LOG_COLUMNS[3:9]):
        struct = StructType.fromDDL(ddl(columns))
        assert isinstance(struct, StructType)
        derived = to_arrow_schema(struct, timezone="UTC")
        ours = arrow_schema(names(columns), columns)
        assert ours == derived
        assert [field.nullable for field in ours] == [field.nullable for field in derived]


def test_a_log_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    assert_arrow_schemas_are_those_that_spark_derives()
    unpack(FOLDER / STORES["clean"]["file"], tmp_path)
    store = next(path.parent for path in tmp_path.rglob("commitlog"))
    reader = CommitLogReader(LogOptions(str(store)), names(LOG_COLUMNS))
    expected = [
        row for part in reader.partitions() for batch in reader.read(part) for row in rows_in(batch)
    ]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        log = spark.read.format("skylarkmq-commitlog").option("maxBytesPerPartition", "32k")
        frame = log.load(str(store))
        assert frame.columns == list(names(LOG_COLUMNS))
        assert frame.rdd.getNumPartitions() > len({row["segment"] for row in expected})
        micros = "unix_micros(storeTimestamp) div 1000 as storeTimestamp"
        rows = frame.selectExpr(
            "physicalOffset", "topic", "body", "properties", "crcOk", "tags", micros
        ).collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    shown = ("physicalOffset", "topic", "body", "properties", "crcOk", "tags", "storeTimestamp")
    found = sorted((row.asDict() for row in rows), key=lambda row: row["physicalOffset"])
    assert found == [{name: row[name] for name in shown} for row in expected]

    chosen = log.schema("position bigint, segment string, body binary").load(str(store))
    counts = {row["segment"]: row["count"] for row in chosen.groupBy("segment").count().collect()}
    assert sum(counts.values()) == len(expected)
    with pytest.raises(Exception, match="did you mean onCorruption"):
        log.option("onCorruptoin", "skip").load(str(store)).count()
    with pytest.raises(Exception, match="Did you mean position"):
        log.schema("positoin bigint").load(str(store)).count()
