"""What `pip install` gets: the source distribution and the wheel that is built from it."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a checkout, a source distribution, and the kernel compiled
pytest.importorskip("setuptools", minversion="77", reason="pyproject.toml needs setuptools 77")

ROOT = Path(__file__).resolve().parents[1]
FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
ROOMS = (
    "broker/",
    "client/",
    "common/",
    "integrations/",
    "kernel/",
    "protocol/",
    "remoting/",
    "spark/",
    "store/",
    "tools/",
)
TOP = ("skylarkmq/", "pyspark_skylarkmq")
BUILD = "from setuptools import build_meta as b; print(b.build_{kind}({folder!r}))"


def build(kind: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-c", BUILD.format(kind=kind, folder=str(folder))]
    quickly = os.environ | {"CFLAGS": "-O0"}  # the kernel is packed, and not run
    done = subprocess.run(
        command, cwd=source, env=quickly, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str], str]:
    """Names in the source distribution and in its wheel, and the wheel's metadata."""
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(checkout)], check=True)
    for name in FILES:
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(build("sdist", checkout, folder)) as archive:
        source = set(archive.getnames())
        archive.extractall(folder / "source")  # ours; early 3.11 knows no filters
    (unpacked,) = (folder / "source").iterdir()
    with zipfile.ZipFile(build("wheel", unpacked, folder)) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        return (
            {name.partition("/")[2] for name in source},
            set(wheel.namelist()),
            wheel.read(metadata).decode(),
        )


def test_what_is_packed(built: tuple[set[str], set[str], str]) -> None:
    source, wheel, _ = built
    command = ["git", "ls-tree", "-r", "--name-only", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [name for name in done.stdout.splitlines() if name.endswith(".py")]
    modules = {f"skylarkmq/{name}" for name in listed if name.startswith(ROOMS)}
    modules |= {name for name in listed if name.startswith(TOP)}
    shown = ("tools/console/static/", "tools/console/templates/")
    pages = {f"skylarkmq/{name}" for name in done.stdout.splitlines() if name.startswith(shown)}
    packed = {name for name in wheel if ".dist-info/" not in name and not name.endswith(".so")}
    assert packed == modules | pages | {
        "skylarkmq/py.typed",
        "skylarkmq/client/sync/__init__.pyi",
        "skylarkmq/protocol/v5/schema.proto",
        "skylarkmq/protocol/v5/schema_pb2.pyi",
        "skylarkmq/spark/log4j2.properties",
    }
    is_compiled = find_spec("skylarkmq.kernel.compiled") is not None
    assert sum(name.endswith(".so") for name in wheel) == is_compiled  # as where this runs
    in_cython = (".pyx", ".pxi")
    kernel = {f"skylarkmq/{name}" for name in done.stdout.splitlines() if name.endswith(in_cython)}
    assert modules | kernel | pages <= source
    assert not [name for name in source if name.endswith((".c", ".so", ".pyc"))]
    rest = {name for name in source - modules if not name.startswith("skylarkmq")}
    assert not {name for name in rest if name.startswith(("tests", "deploy", "var"))}


def test_metadata(built: tuple[set[str], set[str], str]) -> None:
    metadata = email.message_from_string(built[2])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert "rocketmq" in metadata["Keywords"]
    assert "Spark" in str(metadata.get_payload())
