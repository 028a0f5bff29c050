"""Sizes that keep files readable, and calls that have one place only."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.architecture.facts import facts_of, function_sizes
from tests.architecture.sources import ROOMS, files_of, product_files, test_files, text_of

LINES_MAX = 800
FUNCTION_LINES_MAX = 60
LONG_FUNCTION_LINES_MAX = 80  # of tests, and of those below
COLUMNS_MAX = 100
DEPTH_MAX = 2  # folders below a package
FOLDER_FILES_MAX = 25
CONSTRUCTOR_ARGUMENTS_MAX = 8
METHODS_MAX = 25
ATTRIBUTES_MAX = 15
SIZE_REASON = "Its size is one idea:"
"""What the docstring of a larger class says, with that idea."""

# Functions that have more lines; one leaves this list, none enters it.
LONG_FUNCTIONS = {
    "spark/columns/gathered.py::gather",  # loops over messages: a call for each would be felt
    "store/log/append.py::add",  # runs for each message: the same
    "store/message_store.py::__init__",  # the parts of a store, a line for each, and their calls
}
SIZED_ROOMS = ("broker", "client", "store")

# Whose constructors take more; a class leaves this list, none enters it.
LONG_CONSTRUCTORS = {
    "client/consumer/config.py::ConsumerConfig",  # the one list of a Consumer's settings
    "protocol/remoting_command.py::RemotingCommand",  # the fields of a frame's header
}

CLOCKS = {
    "broker/base/clock.py",
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


TEST_FOLDERS = sorted({path.parts[1:-1][:2] for path in test_files()})

by_room = pytest.mark.parametrize("room", ROOMS)


def calls_in(room: str) -> Iterator[tuple[str, str, str, int]]:
    """Calls in a room: the file, what stands before the last dot, the name called, the line."""
    for path in files_of(room):
        for owner, name, line in facts_of(path).calls:
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


@by_room
def test_functions(room: str) -> None:
    found = {
        f"{path}::{name}": size
        for path in files_of(room)
        for name, _, size in facts_of(path).functions
        if size > FUNCTION_LINES_MAX
    }
    faults = [
        f"{name} has {size} lines, at most {FUNCTION_LINES_MAX}"
        for name, size in found.items()
        if name not in LONG_FUNCTIONS or size > LONG_FUNCTION_LINES_MAX
    ]
    assert not faults, shown(faults)
    known = {name for name in LONG_FUNCTIONS if name.startswith(f"{room}/")}
    assert not known - found.keys(), "these may leave the list"


@pytest.mark.parametrize("folder", TEST_FOLDERS, ids="/".join)
def test_functions_of_tests(folder: tuple[str, ...]) -> None:
    files = [path for path in test_files() if path.parts[1:-1][:2] == folder]
    faults = [
        f"{path}:{line}: {name} has {size} lines, at most {LONG_FUNCTION_LINES_MAX}"
        for path in files
        for name, line, size in function_sizes(path)
        if size > LONG_FUNCTION_LINES_MAX
    ]
    assert not faults, shown(faults)


@pytest.mark.parametrize("room", SIZED_ROOMS)
def test_classes(room: str) -> None:
    """A large class says which idea needs that size, or waits for a cut."""
    found = {
        f"{path}::{size.name}": size
        for path in files_of(room)
        for size in facts_of(path).classes
        if size.methods > METHODS_MAX or size.attributes > ATTRIBUTES_MAX
    }
    without_reason = {
        name: size for name, size in found.items() if SIZE_REASON not in size.description
    }
    faults = [
        f"{name} has {size.methods} methods and {size.attributes} attributes, at most "
        f"{METHODS_MAX} and {ATTRIBUTES_MAX}, or {SIZE_REASON!r} in its docstring"
        for name, size in without_reason.items()
    ]
    assert not faults, shown(faults)


@by_room
def test_constructors(room: str) -> None:
    found = {
        f"{path}::{name}": count
        for path in files_of(room)
        for name, count in facts_of(path).constructors
        if count > CONSTRUCTOR_ARGUMENTS_MAX
    }
    faults = [
        f"{name}: its constructor has {count} arguments, at most {CONSTRUCTOR_ARGUMENTS_MAX}"
        for name, count in found.items()
        if name not in LONG_CONSTRUCTORS
    ]
    assert not faults, shown(faults)
    known = {name for name in LONG_CONSTRUCTORS if name.startswith(f"{room}/")}
    assert not known - found.keys(), "these may leave the list"


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


@by_room
def test_every_module_says_what_it_is(room: str) -> None:
    faults = [str(path) for path in files_of(room) if not facts_of(path).is_described]
    assert not faults, shown(faults)


@by_room
def test_print_belongs_to_commands(room: str) -> None:
    faults = [
        f"{path}:{line}"
        for path, owner, name, line in calls_in(room)
        if (owner, name) == ("", "print") and path not in COMMANDS
    ]
    assert not faults, shown(faults)


@by_room
def test_time_is_handed_in(room: str) -> None:
    faults = [
        f"{path}:{line}: {owner}.{name}"
        for path, owner, name, line in calls_in(room)
        if path not in CLOCKS | COMMANDS
        and (
            owner == "time"
            or (name in TIMER_CALLS and not owner.endswith("clock"))
            or (owner.endswith("datetime") and name in {"now", "utcnow", "today"})
            or (name == "time" and "loop" in owner)
        )
    ]
    faults += [
        f"{path}:{line}: from time import"
        for path in files_of(room)
        if str(path) not in CLOCKS | COMMANDS
        for module, line, takes_names in facts_of(path).imports
        if module == "time" and takes_names
    ]
    assert not faults, shown(faults)


@pytest.mark.parametrize("room", ["store", "broker"])
def test_the_disk_has_one_door(room: str) -> None:
    """Crash tests own the disk only if nothing else in store and broker writes to it."""
    faults = [
        f"{path}:{line}: {owner}.{name}"
        for path, owner, name, line in calls_in(room)
        if path not in DISK
        and (
            (owner == "os" and name in DISK_CALLS)
            or (owner.lower().endswith("path") and name in PATH_CALLS)
            or (owner, name) == ("shutil", "rmtree")
        )
    ]
    assert not faults, shown(faults)


@by_room
def test_no_mapping_is_flushed(room: str) -> None:
    """mmap.flush holds the interpreter's lock while the disk works: fdatasync takes its place."""
    faults = [
        f"{path}:{line}: {owner}.flush"
        for path, owner, name, line in calls_in(room)
        if name == "flush" and (path in MAPPERS or "map" in owner.lower().rpartition(".")[2])
    ]
    mappers = {
        str(path)
        for path in files_of(room)
        for module, _, takes_names in facts_of(path).imports
        if module == "mmap" and not takes_names
    }
    assert mappers <= MAPPERS
    assert not faults, shown(faults)
