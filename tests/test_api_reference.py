"""The site of the documentation is built, and its API pages name everything that is public.

They come from the docstrings, so every public name has one.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import LIMIT_S

ROOT = Path(__file__).parents[1]
API = Path("reference", "api")
PAGES = {
    "skylarkmq.client": "client",
    "skylarkmq.client.sync": "sync",
    "skylarkmq.embedded": "embedded",
    "skylarkmq.testing": "testing",
}
BUILD_LIMIT_S = 10 * LIMIT_S
SPARK_MARKS = ("build_session", "startingOffsets", "idempotencyColumns", "maxOffsetsPerTrigger")


def inherited_parts(module_name: str) -> set[str]:
    """Return the methods that public classes have from others of ours, with their dotted names."""
    module = importlib.import_module(module_name)
    classes = [part for name in module.__all__ if inspect.isclass(part := getattr(module, name))]
    return {
        f"{each.__name__}.{name}"
        for each in classes
        for base in each.__mro__[1:]
        if base.__module__.startswith("skylarkmq.")
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


@pytest.mark.parametrize("module_name", PAGES)
def test_every_public_name_says_what_it_does(module_name: str) -> None:
    parts = public_parts(module_name)
    assert parts
    silent = [name for name, part in parts if not inspect.getdoc(part)]
    assert silent == []


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_names_everything(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="Sphinx is in the extras docs and dev")
    pytest.importorskip("myst_parser", reason="MyST is in the extras docs and dev")
    pytest.importorskip("pyspark", reason="the pages about Spark need the extra spark")
    source, site = ROOT / "docs", tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", source, site],
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (site / "search.html").exists()
    for module, page in PAGES.items():
        text = (site / API / f"{page}.html").read_text(encoding="utf-8")
        names = {name for name, _ in public_parts(module)} | inherited_parts(module)
        missing = sorted(name for name in names if f'id="{module}.{name}"' not in text)
        assert missing == [], module
    pages = [site / API / "spark.html", site / "reference" / "spark-options.html"]
    spark = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [mark for mark in SPARK_MARKS if mark not in spark] == []
