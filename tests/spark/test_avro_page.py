"""The page about Avro and Protobuf: each program is run as it stands, in a process of its own.

Those with Spark's functions need a jar from Maven Central: they are skipped where it is not there.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.support.archives import append, open_table, row
from tests.support.patience import JVM_LIMIT_S
from tests.test_documents import AVRO_PAGE, BLOCK, PROMISE, ROOT

PAGE = (ROOT / AVRO_PAGE).read_text("utf-8")
PROTO = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; double price = 2; }
"""
WITH_PANDAS, WITH_AVRO, WITH_PROTOBUF = BLOCK.findall(PAGE)


def avro_archive(folder: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    (text,) = re.findall(r"^```json\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "order.avsc").write_text(text)
    schema = fastavro.parse_schema(json.loads(text))

    def body(order: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        return out.getvalue()

    archive(folder / "orders", body)


def protobuf_archive(folder: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    from google.protobuf import descriptor_pb2, message_factory

    (folder / "shop.proto").write_text(PROTO)
    made = folder / "shop.desc"
    told = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={made}", "shop.proto"]
    assert protoc.main(["protoc", *told]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    order: Any = message_factory.GetMessages(list(files))["shop.Order"]
    archive(folder / "shop", lambda values: order(**values).SerializeToString())


def archive(place: Path, body: Callable[[dict[str, Any]], bytes]) -> None:
    orders = [body({"id": number, "price": number * 1.5}) for number in (1, 2, 3)]
    rows = [row(("orders", "b", 0, at), body=each) for at, each in enumerate(orders)]
    append(open_table(place), rows)


def printed(program: str, folder: Path) -> str:
    """What a program printed; the test is skipped when Maven does not have its jar."""
    done = subprocess.run(
        [sys.executable, "-c", program.replace("/data", str(folder))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=JVM_LIMIT_S,
        check=False,
    )
    if "unresolved dependency" in done.stdout + done.stderr:
        pytest.skip("Maven Central cannot be asked, or does not have the jar")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_the_function_of_pandas(tmp_path: Path) -> None:
    avro_archive(tmp_path)
    assert PROMISE.findall(WITH_PANDAS) == printed(WITH_PANDAS, tmp_path).splitlines()


@pytest.mark.interop
@pytest.mark.parametrize(
    ("program", "made"), [(WITH_AVRO, avro_archive), (WITH_PROTOBUF, protobuf_archive)]
)
def test_the_functions_of_spark(program: str, made: Callable[[Path], None], tmp_path: Path) -> None:
    made(tmp_path)
    assert PROMISE.findall(program) == printed(program, tmp_path).splitlines()
