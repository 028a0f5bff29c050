"""Writes `protocol/v5/schema_pb2.py` and its types from `schema.proto`: make schema.

protoc's own Python code refuses a protobuf older than itself; the little that it does is done here
without that, so one file serves all releases from 5 on.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "skylarkmq/protocol/v5"
SCHEMA = f"{FOLDER}/schema.proto"
WELL_KNOWN = Path(protoc.__file__).with_name("_proto")
LINE_SIZE = 90  # columns of the descriptor

CODE = '''"""Classes of the messages in `schema.proto`, made from it by `make schema`."""

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.internal import builder

__all__ = ("DESCRIPTOR", "duration_pb2", "timestamp_pb2")  # and the messages and enum values

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
{lines}
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
'''
# protobuf's own classes have no types for mypy.
TYPES_HEAD = """# mypy: disable-error-code="misc,metaclass"
# Made from schema.proto by `make schema`.
"""


def made_files() -> dict[str, str]:
    """Return the text of each file by its name."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        arguments = [
            "protoc", f"-I{ROOT}", f"-I{WELL_KNOWN}", f"--descriptor_set_out={out}/schema",
            f"--pyi_out={out}", SCHEMA,
        ]  # fmt: skip
        if protoc.main(arguments):
            raise SystemExit(f"protoc cannot read {SCHEMA}")
        described = (out / "schema").read_bytes()
        types = (out / FOLDER / "schema_pb2.pyi").read_text(encoding="utf-8")
    # The set has one file, with one-byte tag and two-byte length before it.
    assert described[0] == 0x0A and 1 << 7 <= len(described) - 3 < 1 << 14, len(described)
    described = described[3:]
    types = TYPES_HEAD + types.replace("_Mapping]", "_Mapping[str, object]]")
    made = {"schema_pb2.py": CODE.replace("{lines}", _lines(described)), "schema_pb2.pyi": types}
    return {name: _formatted(name, text) for name, text in made.items()}


def _lines(described: bytes) -> str:
    lines: list[str] = []
    start = 0
    for place in range(1, len(described) + 1):
        if place == len(described) or len(repr(described[start : place + 1])) > LINE_SIZE:
            lines.append(f"    {described[start:place]!r}")
            start = place
    return "\n".join(lines)


def _formatted(name: str, text: str) -> str:
    for command in (["check", "--fix-only", "--quiet"], ["format"]):
        text = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--stdin-filename", name, "-"],
            input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return text


if __name__ == "__main__":
    for name, text in made_files().items():
        (ROOT / FOLDER / name).write_text(text, encoding="utf-8")
