"""The API reference comes from the docstrings: every public name has one, and it is built."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ["skylarkmq.client", "skylarkmq.client.sync", "skylarkmq.testing"]
TARGET = re.compile(r"^docs:.*\n\t\$\(BIN\)/pdoc (.+) -o", re.MULTILINE)


def public_parts(module_name: str) -> list[tuple[str, Any]]:
    """Return every public class, function, and public method or property, with its dotted name."""
    module = importlib.import_module(module_name)
    found: list[tuple[str, Any]] = []
    for name in module.__all__:
        part = getattr(module, name)
        if not (inspect.isclass(part) or inspect.isfunction(part)):
            continue
        found.append((name, part))
        if inspect.isclass(part):
            found += [
                (f"{name}.{inner}", value)
                for inner, value in vars(part).items()
                if not inner.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, property | classmethod))
            ]
    return found


@pytest.mark.parametrize("module_name", MODULES)
def test_every_public_name_says_what_it_does(module_name: str) -> None:
    parts = public_parts(module_name)
    assert parts
    silent = [name for name, part in parts if not inspect.getdoc(part)]
    assert silent == []


def test_the_page_is_built_and_names_everything(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="pdoc is in the extra dev")
    [listed] = TARGET.findall((ROOT / "Makefile").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pdoc", *listed.split(), "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warn" not in done.stderr, done.stderr
    pages = {
        "skylarkmq.client": ["client.html"],
        "skylarkmq.client.sync": ["client/sync.html"],
        "skylarkmq.testing": [
            f"testing/{name}.html" for name in ("broker", "clock", "faults", "threaded")
        ],
    }
    for module, files in pages.items():
        text = "".join((tmp_path / "skylarkmq" / file).read_text() for file in files)
        missing = [name for name, _ in public_parts(module) if f'id="{name}"' not in text]
        assert missing == [], module
