"""The generated pages of the reference are those that the code gives now."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.sources import product_files, text_of

ROOT = Path(__file__).parents[1]
PAGES = (
    "command-line.md",
    "configuration.md",
    "metrics.md",
    "request-codes.md",
    "spark-options.md",
)
METRIC = re.compile(r'"((?:skylarkmq|rocketmq)_[a-z0-9_]+)"')


def generator() -> ModuleType:
    """Load `docs/generate.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def made() -> dict[str, str]:
    pages: dict[str, str] = asyncio.run(generator().made())
    return pages


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    """`make docs-reference` writes the pages anew."""
    assert set(made()) == set(PAGES)
    committed = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert committed == made()[name]


def test_the_page_of_metrics_names_every_metric_of_the_broker() -> None:
    """The broker behind the page may hide a family that needs another configuration."""
    texts = [text_of(path) for path in product_files() if path.parts[0] == "broker"]
    named = {name for text in texts for name in METRIC.findall(text)}
    assert len(named) > 50
    assert not [name for name in named if f"`{name}" not in made()["metrics.md"]]


def test_who_sends_a_code_is_said_of_all_that_are_answered() -> None:
    """A new code needs a line in `docs/senders.toml`."""
    page = made()["request-codes.md"]
    answered = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert set(generator().senders_by_code()) == answered
