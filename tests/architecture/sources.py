"""The project's Python files."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "broker", "client", "common", "integrations", "kernel", "protocol", "remoting", "spark",
    "store", "tools",
)  # fmt: skip
ROOTS_FOLDER = "skylarkmq"  # the import name: links to the rooms, and what puts them together

# Spark looks for top-level packages of such names.
FOUND_BY_SPARK = ("pyspark_skylarkmq", "pyspark_skylarkmq_commitlog")
ROOMS = (*PACKAGES, *FOUND_BY_SPARK, ROOTS_FOLDER)
"""Whose files a rule looks at one room at a time: no test parses them all."""


@cache
def product_files() -> tuple[Path, ...]:
    """Code files as paths below the project's folder."""
    folders = [ROOT / package for package in (*PACKAGES, *FOUND_BY_SPARK)]
    found = [path for folder in folders for path in folder.rglob("*.py")]
    found += (ROOT / ROOTS_FOLDER).glob("*.py")
    found += (ROOT / ROOTS_FOLDER / "testing").rglob("*.py")
    return tuple(sorted(path.relative_to(ROOT) for path in found))


def files_of(room: str) -> list[Path]:
    """Code files of a room."""
    found = [path for path in product_files() if path.parts[0] == room]
    assert found
    return found


@cache
def test_files() -> tuple[Path, ...]:
    """Test files as paths below the project's folder."""
    return tuple(sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")))


test_files.__test__ = False  # type: ignore[attr-defined]  # not a test, for all its name


@cache
def text_of(path: Path) -> str:
    """The text of a file."""
    return (ROOT / path).read_text(encoding="utf-8")


def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree. Thousands of them would be half the memory of a run: none is kept."""
    return ast.parse(text_of(path), filename=str(path))


def module_of(path: Path) -> str:
    """The name under which a code file is imported."""
    parts = path.with_suffix("").parts
    if parts[0] in PACKAGES:
        parts = (ROOTS_FOLDER, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
