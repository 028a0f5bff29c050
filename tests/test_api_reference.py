"""The API reference comes from the docstrings: every public name has one, and it is built."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import LIMIT_S

ROOT = Path(__file__).parents[1]
MODULES = ["skylarkmq.client", "skylarkmq.client.sync", "skylarkmq.testing"]
PDOC = re.compile(r"/pdoc (.+) -o", re.MULTILINE)


def documented_modules() -> list[str]:
    """Return what `make docs` writes pages of."""
    asked = subprocess.run(
        ["make", "-n", "-o", ".venv/.dev", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    [listed] = PDOC.findall(asked.stdout)
    return str(listed).split()


def inherited_parts(module_name: str) -> set[tuple[str, str]]:
    """Return the methods that public classes have from others, each with its module."""
    module = importlib.import_module(module_name)
    classes = [part for name in module.__all__ if inspect.isclass(part := getattr(module, name))]
    return {
        (base.__module__, f"{base.__name__}.{name}")
        for each in classes
        for base in each.__mro__[1:]
        if base.__module__.startswith("skylarkmq.client.") and base not in classes
        for name, value in vars(base).items()
        if not name.startswith("_") and inspect.isfunction(value) and inspect.getdoc(value)
        if getattr(each, name) is value  # not written anew
    }


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
    listed = documented_modules()
    done = subprocess.run(
        [sys.executable, "-m", "pdoc", *listed, "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        # pdoc takes a default that equals a variable for a secret; Spark's session sets some.
        env={name: text for name, text in os.environ.items() if not name.startswith("SPARK")},
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
    for module in ("skylarkmq.client", "skylarkmq.client.sync"):
        for home, name in inherited_parts(module):
            page = (tmp_path / home.replace(".", "/")).with_suffix(".html")
            assert page.exists(), f"{name} of {home} is on no page"
            assert f'id="{name}"' in page.read_text(), name
