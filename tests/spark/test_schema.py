"""The columns: names, types, projections. No JVM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.schema import (
    COLUMNS,
    LOG_COLUMNS,
    SchemaError,
    arrow_schema,
    ddl,
    names,
    projection,
    select,
    struct_projection,
)
from tests.support.patience import LIMIT_S


def test_the_columns_of_a_message() -> None:
    assert len(COLUMNS) == 21
    assert names()[:4] == ("topic", "brokerName", "queueId", "queueOffset")
    assert ddl(COLUMNS[:3]) == "topic string, brokerName string, queueId int"
    assert "properties map<string,string>" in ddl()


def test_a_log_record_has_a_place_in_place_of_a_broker() -> None:
    assert names(LOG_COLUMNS) == (
        *(name for name in names() if name != "brokerName"),
        "segment",
        "position",
        "crcOk",
        "recordKind",
    )


def test_arrow_types_are_those_that_spark_derives() -> None:
    schema = arrow_schema(names(LOG_COLUMNS), LOG_COLUMNS)
    assert all(field.nullable for field in schema)
    assert schema.field("body").type == pa.binary()
    assert schema.field("bornTimestamp").type == pa.timestamp("us", tz="UTC")
    assert schema.field("queueId").type == pa.int32()
    assert schema.field("position").type == pa.int64()
    assert schema.field("crcOk").type == pa.bool_()
    properties = schema.field("properties").type
    assert properties == pa.map_(pa.string(), pa.string())
    assert not properties.key_field.nullable
    assert properties.item_field.nullable


@given(st.permutations(COLUMNS), st.integers(1, len(COLUMNS)))
def test_any_subset_in_any_order_is_a_projection(order: list[Any], count: int) -> None:
    wanted = order[:count]
    chosen = projection([(column.name, column.ddl) for column in wanted])
    assert chosen == tuple(column.name for column in wanted)
    assert arrow_schema(chosen).names == list(chosen)
    assert select(chosen) == tuple(wanted)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([("quueId", "int")], "Did you mean queueId?"),
        ([("QUEUEID", "int")], "Did you mean queueId?"),
        ([("value", "binary")], "Known are topic, brokerName"),
        ([("body", "string")], "column body is binary, but the schema asks for string"),
        ([("queueOffset", "int")], "Ask for 'queueOffset bigint'"),
        ([("properties", "string")], "map<string,string>"),
        ([("body", "binary"), ("body", "binary")], "names column body twice"),
        ([], "the schema has no column"),
        ([("segment", "string")], "no column 'segment'"),
    ],
)
def test_a_schema_that_no_record_has(fields: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        projection(fields)
    assert text in str(caught.value)


def test_types_are_compared_without_spaces_and_case() -> None:
    assert projection([("properties", "MAP<STRING, STRING>")]) == ("properties",)


@dataclass
class Kind:
    text: str
    valueContainsNull: bool = True

    def simpleString(self) -> str:
        return self.text


@dataclass
class Field:
    name: str
    dataType: Any
    nullable: bool = True


def test_a_column_that_may_not_be_null_is_refused() -> None:
    fields = [Field("topic", Kind("string")), Field("body", Kind("binary"))]
    assert struct_projection(fields) == ("topic", "body")
    fields[1].nullable = False
    with pytest.raises(SchemaError, match="column body NOT NULL"):
        struct_projection(fields)
    strict = Kind("map<string,string>", valueContainsNull=False)
    with pytest.raises(SchemaError, match="column properties NOT NULL"):
        struct_projection([Field("properties", strict)])


def test_names_are_known_without_the_libraries() -> None:
    code = (
        "import sys; import skylarkmq.spark.schema as s; s.ddl();"
        "assert not {'pyarrow', 'pyspark'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)
