"""Our messages are Apache's on the wire, and the checked-in code is that of the schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.protocol.v5 import oracle

FOLDER = oracle.installed_folder()
needs_client = pytest.mark.skipif(
    FOLDER is None, reason="pip install --no-deps rocketmq-python-client"
)
MODELS = oracle.our_models()
ROWS = json.loads(oracle.GOLDEN.read_text(encoding="utf-8"))


def ours(name: str) -> Any:
    return getattr(schema_pb2, name)


def test_golden_bytes_are_of_all_messages() -> None:
    assert {name for name, _, _ in ROWS} == set(MODELS)


def test_messages_are_apaches_bytes() -> None:
    found = [
        [name, choice, data.hex()]
        for name, choice, data in oracle.vectors({name: ours(name) for name in MODELS}, MODELS)
    ]
    assert found == ROWS


@pytest.mark.parametrize(("name", "choice", "data"), ROWS)
def test_apaches_bytes_are_read(name: str, choice: int, data: str) -> None:
    message = ours(name).FromString(bytes.fromhex(data))
    expected = ours(name)()
    oracle.fill(expected, MODELS[name], choice)
    assert message == expected


def test_checked_in_code_is_the_schema_s() -> None:
    pytest.importorskip("grpc_tools", reason="pip install grpcio-tools")
    from tests.protocol.v5.schema_code import FOLDER, ROOT, made_files

    for name, text in made_files().items():
        assert (ROOT / FOLDER / name).read_text(encoding="utf-8") == text, f"make schema: {name}"


@needs_client
def test_fields_and_words_are_apaches() -> None:
    assert FOLDER is not None
    theirs = oracle.their_classes(FOLDER)
    faults: list[str] = []
    for name, model in MODELS.items():
        known = {field.number: field for field in theirs[name].DESCRIPTOR.fields}
        for field in model.fields:
            other = known.get(field.number)
            if other is None or shape(field) != shape(other):
                faults.append(f"{field.full_name} = {field.number}")
    words = {
        enum.name: {value.name: value.number for value in enum.value}
        for file in oracle.their_files(FOLDER)
        for enum in file.enum_type
    }
    for name, enum in schema_pb2.DESCRIPTOR.enum_types_by_name.items():
        faults += [
            f"{name}.{value.name}"
            for value in enum.values
            if words[name].get(value.name) != value.number
        ]
    faults += [code.name for code in Code if code and words["Code"].get(code.name) != code]
    assert not faults


def shape(field: Any) -> tuple[object, ...]:
    """What of a field is on the wire, and its name; `Status.code` is an int with us."""
    kind = field.type if not field.full_name.endswith(".Status.code") else field.TYPE_INT32
    inner = field.message_type.name if field.message_type is not None else ""
    oneof = field.containing_oneof
    alone = oneof is None or len(oneof.fields) == 1
    return field.name, kind, inner.replace("UserAgent", "UA"), field.is_repeated, alone


@st.composite
def filled(draw: st.DrawFn, name: str) -> Any:
    """Draw a message of ours with some of its fields."""
    message = ours(name)()
    draw_fields(draw, message, MODELS[name])
    return message


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
INTS = {32: st.integers(-(1 << 31), (1 << 31) - 1), 64: st.integers(-(1 << 63), (1 << 63) - 1)}


def draw_fields(draw: st.DrawFn, message: Any, model: Any) -> None:
    for field in (
        draw(st.lists(st.sampled_from(list(model.fields)), unique=True)) if model.fields else ()
    ):
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            getattr(message, field.name).update(draw(st.dictionaries(TEXTS, TEXTS, max_size=2)))
        elif inner is not None and field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                draw_fields(draw, getattr(message, field.name).add(), inner)
        elif inner is not None:
            getattr(message, field.name).SetInParent()
            draw_fields(draw, getattr(message, field.name), inner)
        else:
            values = {
                field.TYPE_STRING: TEXTS,
                field.TYPE_BYTES: st.binary(max_size=8),
                field.TYPE_BOOL: st.booleans(),
                field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
                field.TYPE_INT64: INTS[64],
                field.TYPE_INT32: INTS[32],
                field.TYPE_ENUM: st.integers(0, 7),
            }[field.type]
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(values, max_size=2)))
            else:
                setattr(message, field.name, draw(values))


@needs_client
@given(st.data())
def test_both_read_what_the_other_writes(data: st.DataObject) -> None:
    assert FOLDER is not None
    theirs = oracle.their_classes(FOLDER)
    name = data.draw(st.sampled_from(sorted(MODELS)))
    message = data.draw(filled(name))
    written = message.SerializeToString(deterministic=True)
    assert theirs[name].FromString(written).SerializeToString(deterministic=True) == written
    assert ours(name).FromString(written) == message
