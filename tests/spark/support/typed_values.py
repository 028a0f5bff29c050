"""Types of columns with values of theirs, and the bodies that say these values."""

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import Array, Field, Leaf, Map, Struct, Type, column_name
from skylarkmq.spark.typed.decoding import BodyDecoder, Decoded

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DAYS = st.dates(datetime.date(1600, 1, 1), datetime.date(9999, 12, 31))
NAIVE = st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(9999, 12, 31))
MICROSECOND = datetime.timedelta(microseconds=1)

leaves = st.one_of(
    st.sampled_from(
        [
            Leaf(kind)
            for kind in ("string", "boolean", "binary", *BITS, "float", "double", "date", "json")
        ]
    ),
    st.sampled_from([Leaf("timestamp"), Leaf("timestamp_ntz")]),
    st.sampled_from([Leaf("timestamp", unit) for unit in PER_UNIT]),
    st.builds(
        lambda precision, scale: Leaf("decimal", precision=precision, scale=min(scale, precision)),
        st.integers(1, 38),
        st.integers(0, 38),
    ),
)
names = st.sampled_from(["a", "b", "a b", "class", "naïve", "x=y", "f0", "z.z"])


@st.composite
def structs(draw: Any, inner: st.SearchStrategy[Type]) -> Struct:
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Struct(tuple(Field(column_name(name), draw(inner), name) for name in chosen))


types: st.SearchStrategy[Type] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Array, inner),
        st.builds(Map, st.sampled_from([Leaf("string"), Leaf("int"), Leaf("bigint")]), inner),
        structs(inner),
    ),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def ddl(kind: Type) -> str:
    """The type's text, which `parse` reads."""
    if isinstance(kind, Leaf):
        if kind.unit:
            return f"{kind.kind}({kind.unit})"
        return f"decimal({kind.precision},{kind.scale})" if kind.kind == "decimal" else kind.kind
    if isinstance(kind, Array):
        return f"array<{ddl(kind.item)}>"
    if isinstance(kind, Map):
        return f"map<{ddl(kind.key)},{ddl(kind.value)}>"
    return f"struct<{','.join(f'`{field.key}`:{ddl(field.type)}' for field in kind.fields)}>"


def values(kind: Type) -> st.SearchStrategy[Any]:
    """Values as `to_pylist` of a column gives them, None among them."""
    return st.none() | present(kind)


def present(kind: Type) -> st.SearchStrategy[Any]:
    if isinstance(kind, Array):
        return st.lists(values(kind.item), max_size=3)
    if isinstance(kind, Map):
        pairs = st.tuples(present(kind.key), values(kind.value))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if isinstance(kind, Struct):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind.fields})
    return leaf_values(kind)


def leaf_values(leaf: Leaf) -> st.SearchStrategy[Any]:
    kind = leaf.kind
    if kind in BITS:
        return st.integers(-(2 ** (BITS[kind] - 1)), 2 ** (BITS[kind] - 1) - 1)
    if kind == "decimal":
        digits = st.integers(-(10**leaf.precision) + 1, 10**leaf.precision - 1)
        exact = decimal.Context(prec=80)
        return digits.map(lambda number: decimal.Decimal(number).scaleb(-leaf.scale, exact))
    if kind == "timestamp" and leaf.unit:
        width = PER_UNIT[leaf.unit]
        counts = st.integers(-(10**15) // width, 10**16 // width)
        return counts.map(lambda number: EPOCH + number * width * MICROSECOND)
    if kind == "timestamp":
        return NAIVE.map(lambda time: time.replace(tzinfo=UTC))
    return {
        "string": texts,
        "boolean": st.booleans(),
        "binary": st.binary(max_size=8),
        "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "date": DAYS,
        "timestamp_ntz": NAIVE,
        "json": st.sampled_from(['{"a": [1, null]}', "[]", '"x"', "1.50", "true"]),
    }[kind]


def jsonable(kind: Type, value: Any, keep_nulls: bool) -> Any:
    """What msgspec encodes as the JSON of a value; else null fields are left out."""
    if value is None:
        return None
    if isinstance(kind, Array):
        return [jsonable(kind.item, each, keep_nulls) for each in value]
    if isinstance(kind, Map):
        return {str(key): jsonable(kind.value, each, keep_nulls) for key, each in value}
    if isinstance(kind, Struct):
        return {
            field.key: jsonable(field.type, value[field.name], keep_nulls)
            for field in kind.fields
            if keep_nulls or value[field.name] is not None
        }
    if kind.unit:
        return (value - EPOCH) // MICROSECOND // PER_UNIT[kind.unit]
    return msgspec.Raw(value.encode()) if kind.kind == "json" else value


def decoded(decoder: BodyDecoder, *bodies: bytes | None) -> Decoded:
    """What a decoder makes of bodies alone."""
    return decoder.decode(pa.record_batch({"body": pa.array(bodies, pa.binary())}))


def reasons(decoder: BodyDecoder, *bodies: bytes | None) -> list[str | None]:
    return decoded(decoder, *bodies).quarantine.to_pylist()
