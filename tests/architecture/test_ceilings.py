"""Sizes that keep files readable, and calls that have one place only."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import product_files, test_files, text_of, tree_of

LINES_MAX = 800
FUNCTION_LINES_MAX = 80
COLUMNS_MAX = 100
DEPTH_MAX = 2  # folders below a package
FOLDER_FILES_MAX = 25
CONSTRUCTOR_ARGUMENTS_MAX = 8

# Whose constructors take more; a class leaves this list, none enters it.
LONG_CONSTRUCTORS = {
    "protocol/remoting_command.py::RemotingCommand",  # the fields of a frame's header
}

CLOCKS = {
    "broker/clock.py",
    "client/clock.py",
    "spark/clock.py",
    "skylarkmq/testing/clock.py",
}
COMMANDS = {
    "broker/cli.py",
    "broker/namesrv/cli.py",
    "tools/drain.py",
    "tools/health.py",
    "tools/messages.py",
    "tools/store/cli.py",
    "skylarkmq/cli.py",
    "examples/flights.py",
    "examples/pipeline.py",
    "examples/places.py",
}
DISK = {"common/files.py"}
MAPPERS = DISK | {"store/log/memory.py"}
# What changes a disk: these names of `os`, and methods of these names on a path or file.
DISK_CALLS = {
    "fdatasync", "fsync", "ftruncate", "link", "posix_fallocate", "pwrite", "pwritev", "remove",
    "rename", "replace", "truncate", "unlink", "write", "writev",
}  # fmt: skip
PATH_CALLS = {"rename", "touch", "unlink", "write_bytes", "write_text"}
TIMER_CALLS = {"call_later", "call_at"}


def calls(path: Path) -> Iterator[tuple[str, str, int]]:
    """Calls in a file: what stands before the last dot, the name called, the line."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield ast.unparse(node.func.value), node.func.attr, node.lineno
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id, node.lineno


def all_calls() -> Iterator[tuple[str, str, str, int]]:
    for path in product_files():
        for owner, name, line in calls(path):
            yield str(path), owner, name, line


def shown(faults: list[str]) -> str:
    return "\n" + "\n".join(faults)


@pytest.mark.parametrize("files", [product_files, test_files])
def test_lines_and_columns(files: object) -> None:
    faults: list[str] = []
    for path in files():  # type: ignore[operator]
        lines = text_of(path).splitlines()
        if len(lines) > LINES_MAX:
            faults.append(f"{path}: {len(lines)} lines, at most {LINES_MAX}")
        faults += [
            f"{path}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"
            for number, line in enumerate(lines, 1)
            if len(line) > COLUMNS_MAX
        ]
    assert not faults, shown(faults)


@pytest.mark.parametrize("files", [product_files, test_files])
def test_functions(files: object) -> None:
    faults = [
        f"{path}:{node.lineno}: {node.name} has {size} lines, at most {FUNCTION_LINES_MAX}"
        for path in files()  # type: ignore[operator]
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not faults, shown(faults)


def test_constructors() -> None:
    found = {
        f"{path}::{node.name}": count
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and method.name == "__init__"
        and (count := argument_count(method)) > CONSTRUCTOR_ARGUMENTS_MAX
    }
    faults = [
        f"{name}: its constructor has {count} arguments, at most {CONSTRUCTOR_ARGUMENTS_MAX}"
        for name, count in found.items()
        if name not in LONG_CONSTRUCTORS
    ]
    assert not faults, shown(faults)
    assert not LONG_CONSTRUCTORS - found.keys(), "these may leave the list"


def argument_count(method: ast.FunctionDef) -> int:
    """How many arguments a method takes, itself aside."""
    arguments = method.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def test_depth() -> None:
    faults = [str(path) for path in product_files() if len(path.parts) > DEPTH_MAX + 2]
    assert not faults, shown(faults)


def test_folders() -> None:
    counts = Counter(path.parent for path in product_files())
    faults = [
        f"{folder}: {count} files, at most {FOLDER_FILES_MAX}"
        for folder, count in counts.items()
        if count > FOLDER_FILES_MAX
    ]
    assert not faults, shown(faults)


def test_every_module_says_what_it_is() -> None:
    faults = [str(path) for path in product_files() if not ast.get_docstring(tree_of(path))]
    assert not faults, shown(faults)


def test_print_belongs_to_commands() -> None:
    faults = [
        f"{path}:{line}"
        for path, owner, name, line in all_calls()
        if (owner, name) == ("", "print") and path not in COMMANDS
    ]
    assert not faults, shown(faults)


def test_time_is_handed_in() -> None:
    faults = [
        f"{path}:{line}: {owner}.{name}"
        for path, owner, name, line in all_calls()
        if path not in CLOCKS | COMMANDS
        and (
            owner == "time"
            or (name in TIMER_CALLS and not owner.endswith("clock"))
            or (owner.endswith("datetime") and name in {"now", "utcnow", "today"})
            or (name == "time" and "loop" in owner)
        )
    ]
    faults += [
        f"{path}:{node.lineno}: from time import"
        for path in product_files()
        if str(path) not in CLOCKS | COMMANDS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module == "time"
    ]
    assert not faults, shown(faults)


def test_the_disk_has_one_door() -> None:
    """Crash tests own the disk only if nothing else in store and broker writes to it."""
    faults = [
        f"{path}:{line}: {owner}.{name}"
        for path, owner, name, line in all_calls()
        if path.startswith(("store/", "broker/"))
        and path not in DISK
        and (
            (owner == "os" and name in DISK_CALLS)
            or (owner.lower().endswith("path") and name in PATH_CALLS)
            or (owner, name) == ("shutil", "rmtree")
        )
    ]
    assert not faults, shown(faults)


def test_no_mapping_is_flushed() -> None:
    """mmap.flush holds the interpreter's lock while the disk works: fdatasync takes its place."""
    faults = [
        f"{path}:{line}: {owner}.flush"
        for path, owner, name, line in all_calls()
        if name == "flush" and (path in MAPPERS or "map" in owner.lower().rpartition(".")[2])
    ]
    mappers = {
        str(path)
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import) and any(alias.name == "mmap" for alias in node.names)
    }
    assert mappers <= MAPPERS
    assert not faults, shown(faults)
