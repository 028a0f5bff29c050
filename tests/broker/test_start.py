"""What a plain start loads: no module that only some brokers need, or only later."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import product_files, text_of, tree_of
from tests.support.patience import LIMIT_S

SETTINGS = (
    "listenPort=0",
    "namesrvListenPort=0",
    "metricsPromExporterPort=0",
    "mappedFileSizeCommitLog=8388608",
    "maxMessageSize=1048576",
)
# Beside those that our own code names for their first use: what comes along with them, and what
# the other commands need.
NOT_AT_START = {
    "difflib", "email", "google.protobuf", "gzip", "http.client", "http.server", "lz4",
    "lzma",
    "shutil", "stringprep", "tempfile", "tracemalloc", "unicodedata", "unittest",
    "urllib.request", "wsgiref", "xml", "yaml", "zstandard",
    "skylarkmq.client", "skylarkmq.spark", "skylarkmq.testing", "skylarkmq.tools",
}  # fmt: skip


def _named_for_first_use() -> dict[tuple[Path, str], str]:
    """The name that a file gives to a module which is loaded later, and the module."""
    return {
        (path, target.id): node.value.args[0].value
        for path in product_files()
        if "on_first_use" in text_of(path)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Name) and node.value.func.id == "on_first_use"
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.args[0], ast.Constant)
        if isinstance(node.value.args[0].value, str)
    }


def _loaded_at_start(root: Path) -> set[str]:
    """The modules that `skylarkmq serve` has loaded when it says that it is ready."""
    command = [sys.executable, "-X", "importtime", "-m", "skylarkmq.cli", "serve"]
    for setting in (*SETTINGS, f"storePathRootDir={root}"):
        command += ["--set", setting]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert child.stderr is not None
        loaded: set[str] = set()
        for line in child.stderr:
            if line.startswith("import time:"):
                loaded.add(line.rpartition("|")[2].strip())
            elif '"event":"ready"' in line:
                return loaded
        pytest.fail("it ended")
    finally:
        child.kill()
        child.communicate(timeout=LIMIT_S)


@pytest.mark.slow
@pytest.mark.timing
def test_a_plain_start_loads_only_what_it_needs(tmp_path: Path) -> None:
    later = NOT_AT_START | set(_named_for_first_use().values())
    loaded = _loaded_at_start(tmp_path / "store")
    assert {"skylarkmq.broker.controller", "asyncio", "msgspec"} <= loaded
    assert not {name for name in loaded if any(f"{name}.".startswith(f"{it}.") for it in later)}


def test_what_is_loaded_later_can_be_loaded() -> None:
    named = _named_for_first_use()
    assert {"prometheus_client.exposition", "h11"} <= set(named.values())
    for (path, name), module in named.items():
        importlib.import_module(module)
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == module
        }
        assert imported == {name}, f"{path}: type checkers see another module than {module}"
