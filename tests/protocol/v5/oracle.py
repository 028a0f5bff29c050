"""Apache's own messages, from the Python client that they are released in, beside ours.

Its files are read, not imported: they would need its other libraries, and their names would clash
with those of another copy. The classes are made in a pool of their own.

`python -m tests.protocol.v5.oracle FOLDER` writes `golden-v5.json`; FOLDER is where
`pip install --no-deps --target FOLDER rocketmq-python-client` has put it.
"""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "golden-v5.json"
THEIR_PACKAGE = "apache.rocketmq.v2"
THEIR_NAMES = {"UserAgent": "UA"}
ONEOF_MAX = 7  # fields of the largest one
CODE = 40402


def installed_folder() -> Path | None:
    """Where the client's files are in this environment; None when it is not installed."""
    spec = importlib.util.find_spec("rocketmq")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(folder) / "grpc_protocol" for folder in folders]
    return next((folder for folder in found if (folder / "service_pb2.py").is_file()), None)


def their_files(folder: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the files of the schema, as they stand in the client's generated code."""
    return [
        descriptor_pb2.FileDescriptorProto.FromString(_serialized(folder / name))
        for name in ("definition_pb2.py", "service_pb2.py")
    ]


def _serialized(path: Path) -> bytes:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AddSerializedFile"):
            data = ast.literal_eval(node.args[0])
            assert isinstance(data, bytes)
            return data
    raise AssertionError(f"no descriptor in {path}")


@cache
def their_classes(folder: Path) -> dict[str, Any]:
    """Return Apache's message classes by our names of them."""
    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in their_files(folder):
        pool.Add(file)
    ours = {theirs: name for name, theirs in THEIR_NAMES.items()}
    return {
        ours.get(message.name, message.name): message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{THEIR_PACKAGE}.{message.name}")
        )
        for file in their_files(folder)
        for message in file.message_type
    }


def fill(message: Any, model: Any, choice: int) -> None:
    """Set each field of a message that a model has, with values that depend on its number.

    Args:
        model: a descriptor of ours.
        choice: of each oneof, the field at this place, or the last one before it.
    """
    for field in model.fields:
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            place = min(choice, len(oneof.fields) - 1)
            if sorted(other.number for other in oneof.fields)[place] != field.number:
                continue
        _fill_field(message, field, choice)


def _fill_field(message: Any, field: Any, choice: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        getattr(message, field.name)["key é"] = "value"
    elif inner is not None and field.is_repeated:
        for _ in range(2):
            fill(getattr(message, field.name).add(), inner, choice)
    elif inner is not None:
        getattr(message, field.name).SetInParent()
        fill(getattr(message, field.name), inner, choice)
    elif field.is_repeated:
        getattr(message, field.name).extend([_value(field), _value(field)])
    else:
        setattr(message, field.name, _value(field))


def _value(field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.full_name.endswith(".Status.code"):
        return CODE
    kinds = {
        field.TYPE_STRING: f"text {field.number} é",
        field.TYPE_BYTES: b"\x00bytes \xff",
        field.TYPE_BOOL: True,
        field.TYPE_FLOAT: 1.5,
        field.TYPE_INT64: -(1 << 40) - field.number,
        field.TYPE_INT32: 1000 + field.number,
    }
    return kinds[field.type]


def vectors(classes: dict[str, Any], models: dict[str, Any]) -> Iterator[tuple[str, int, bytes]]:
    """Return each message filled: its name, the choice in its oneofs, its bytes."""
    for name, model in sorted(models.items()):
        seen: set[bytes] = set()
        for choice in range(ONEOF_MAX):
            message = classes[name]()
            fill(message, model, choice)
            data = message.SerializeToString(deterministic=True)
            if data not in seen:
                seen.add(data)
                yield name, choice, data


def our_models() -> dict[str, Any]:
    """Return the descriptors of our messages by their names."""
    from skylarkmq.protocol.v5 import schema_pb2

    found: dict[str, Any] = dict(schema_pb2.DESCRIPTOR.message_types_by_name)
    return found


if __name__ == "__main__":
    found = Path(sys.argv[1]) / "rocketmq" / "grpc_protocol"
    rows = [
        [name, choice, data.hex()]
        for name, choice, data in vectors(their_classes(found), our_models())
    ]
    GOLDEN.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
