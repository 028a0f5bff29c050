"""Columns of rows to be sent: what is what, and what is refused before any row is sent."""

import pickle

import pytest

from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.schema import COLUMNS, LOG_COLUMNS, SchemaError
from skylarkmq.spark.writing.sink_columns import RowPlan, plan_rows

ALL = [
    ("shardingKey", "string"), ("body", "binary"), ("topic", "string"), ("keys", "array<string>"),
    ("tags", "string"), ("properties", "map<string,string>"), ("queueId", "int"),
    ("brokerName", "string"), ("delayTimeLevel", "tinyint"), ("msgId", "string"), ("flag", "int"),
    ("priority", "int"),
]  # fmt: skip


def test_all_parts_in_any_order() -> None:
    assert plan_rows(ALL, has_topic=False) == RowPlan(
        body=1, topic=2, keys=3, tags=4, properties=5, queue_id=6, broker_name=7, sharding_key=0,
        delay_level=8, msg_id=9, flag=10, priority=11,
    )  # fmt: skip


def test_only_a_body() -> None:
    assert plan_rows([("body", "string")], has_topic=True) == RowPlan(body=0)


def test_option_topic_goes_before_the_column() -> None:
    assert plan_rows([("topic", "string"), ("body", "binary")], has_topic=True).topic is None


def test_a_queue_is_named_by_its_number() -> None:
    fields = [("body", "binary"), ("brokerName", "string")]
    assert plan_rows(fields, has_topic=True).broker_name is None
    assert plan_rows([*fields, ("queueId", "bigint")], has_topic=True).broker_name == 1


@pytest.mark.parametrize("columns", [COLUMNS, LOG_COLUMNS])
def test_rows_of_our_sources_can_be_sent_as_they_are(columns: tuple[object, ...]) -> None:
    fields = [(column.name, column.ddl) for column in columns]  # type: ignore[attr-defined]
    plan = plan_rows(fields, has_topic=True)
    assert fields[plan.body][0] == "body"
    assert plan.msg_id is not None


@pytest.mark.parametrize("kind", ["string", "varchar(10)", "char(3)", "string collate UTF8_LCASE"])
def test_kinds_of_text(kind: str) -> None:
    assert plan_rows([("body", kind), ("tags", kind)], has_topic=True).tags == 1


def test_identity() -> None:
    fields = [("body", "binary"), ("msgId", "string"), ("order_id", "bigint"), ("at", "timestamp")]
    plan = plan_rows(fields, has_topic=True, identity=["at", "order_id"])
    assert plan.identity == (3, 2)
    assert plan.msg_id is None  # the option goes before the column
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("instant", ["timestamp", "timestamp_ntz"])
def test_a_window_may_be_an_identity(instant: str) -> None:
    """`groupBy(window(...))` gives such a column, and rows after a shuffle need an identity."""
    window = f"struct<start:{instant},end:{instant}>"
    fields = [("window", window), ("body", "string"), ("tags", "string")]
    plan = plan_rows(fields, has_topic=True, identity=("window", "tags"))
    assert plan.identity == (0, 2)
    for other in ("struct<start:double,end:double>", "struct<start:timestamp>", "struct<a:int>"):
        with pytest.raises(OptionError, match="no one spelling"):
            plan_rows([("x", other), ("body", "string")], has_topic=True, identity=("x",))


def test_a_source_queue_that_makes_the_key_is_no_target() -> None:
    fields = [(column.name, column.ddl) for column in COLUMNS]
    identity = ["topic", "brokerName", "queueId", "queueOffset"]
    plan = plan_rows(fields, has_topic=True, identity=identity)
    assert [fields[place][0] for place in plan.identity] == identity
    assert plan.queue_id is plan.broker_name is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([("tags", "string")], "no column body"),
        ([("body", "struct<a:int>")], "column body is struct<a:int>.*binary or string"),
        ([("body", "binary"), ("queueId", "string")], "column queueId is string.*CAST"),
        ([("body", "binary"), ("keys", "map<string,string>")], "column keys is map"),
        ([("body", "binary"), ("shardingkey", "string")], "shardingkey.*did you mean shardingKey"),
        ([("body", "binary"), ("key", "string")], "'key'.*did you mean keys"),
        ([("body", "binary"), ("xyzzy", "string")], "'xyzzy' is no part of a message.*Known are"),
        ([("body", "binary"), ("body", "binary")], "two columns are named body"),
        ([("body", "binary"), ("properties", "map<string,int>")], "column properties is map"),
    ],
)
def test_refused(fields: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        plan_rows(fields, has_topic=True)


def test_a_topic_is_needed() -> None:
    with pytest.raises(SchemaError, match="no column topic, and option topic is not given"):
        plan_rows([("body", "binary")], has_topic=False)


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        (["order"], "names order, which is no column: did you mean order_id"),
        (["price"], "column price is double, which has no one spelling"),
        (["parts"], "column parts is array<int>"),
    ],
)
def test_refused_identity(identity: list[str], text: str) -> None:
    fields = [("body", "binary"), ("order_id", "bigint")]
    fields += [(name, kind) for name, kind in (("price", "double"), ("parts", "array<int>"))
               if name in identity]  # fmt: skip
    with pytest.raises(OptionError, match=text):
        plan_rows(fields, has_topic=True, identity=identity)
