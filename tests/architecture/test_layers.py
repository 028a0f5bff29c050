"""Who may import whom. An arrow points down, never up, never across.

    tools  spark   integrations
   /     \\   |  \\    /
  /       client  |  /
 /  broker   |        |
 |  /   \\    |        |
store   remoting      |
   \\       |         |
    +---- protocol ---+
             |
           common          kernel: any room may call it, and it calls none
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.facts import facts_of
from tests.architecture.sources import (
    FOUND_BY_SPARK,
    PACKAGES,
    ROOMS,
    ROOTS_FOLDER,
    files_of,
    module_of,
    text_of,
)

BASE = {"common", "kernel", "protocol"}
OURS = {
    "kernel": {"kernel"},
    "common": {"common", "kernel"},
    "protocol": BASE,
    "store": {"store", *BASE},
    "remoting": {"remoting", *BASE},
    "broker": {"broker", "store", "remoting", *BASE},
    "client": {"client", "remoting", *BASE},
    "spark": {"spark", "client", "store", "remoting", *BASE},
    "tools": {"tools", "client", "store", *BASE},
    "integrations": {"integrations", "client", *BASE},
    **{name: {"spark"} for name in FOUND_BY_SPARK},
    ROOTS_FOLDER: {*PACKAGES, "cli", "embedded", "loop_thread", "testing"},
}
LIBRARIES = {
    "kernel": set(),
    "common": {"msgspec"},
    "protocol": {"msgspec", "msgpack", "crcmod"},
    "store": {"msgspec", "msgpack"},
    "remoting": {"msgspec"},
    "broker": {"msgspec", "msgpack", "prometheus_client", "h11", "click", "uvloop", "yaml"},
    "client": {"msgspec", "uvloop", "prometheus_client"},
    "spark": {
        "msgspec",
        "click",
        "prometheus_client",
        "pyspark",
        "pyarrow",
        "deltalake",
        "obstore",
    },
    "tools": {"msgspec", "click", "uvloop", "yaml"},
    "integrations": {"faststream", "fast_depends", "fastapi", "kombu"},
    **{name: set[str]() for name in FOUND_BY_SPARK},
    ROOTS_FOLDER: {"click", "uvloop", "msgspec"},
}
# The outside world, which a layer must not know by itself.
NET = {"asyncio", "socket", "ssl", "select"}
BANNED = {
    "kernel": {*NET, "threading", "mmap", "time", "subprocess"},
    "common": {*NET, "time", "subprocess"},
    "protocol": {*NET, "threading", "mmap", "time", "subprocess"},
    "store": {*NET, "time", "subprocess"},
    "remoting": {"threading", "mmap", "time", "subprocess"},
    "broker": {"mmap", "subprocess"},
    "client": {"mmap", "subprocess"},
    "spark": {"mmap", "subprocess"},
    "tools": {"mmap", "subprocess"},
    "integrations": {"mmap", "subprocess", "time"},
    **{name: {"asyncio", "socket", "threading", "subprocess"} for name in FOUND_BY_SPARK},
    ROOTS_FOLDER: set[str](),
}
CONSOLE = {
    "jinja2": ("visit.py",),
    "markupsafe": ("chart.py", "text.py"),
    "starlette": (
        "app.py",
        "change.py",
        "guard.py",
        "server.py",
        "visit.py",
        *(f"pages/{path.name}" for path in Path("tools/console/pages").glob("*.py")),
    ),
    "uvicorn": ("server.py",),
}
# A file each, with its reason.
ALLOWED = {
    ("protocol/frame.py", "mmap"): "memory for large frames; no file",
    ("protocol/compression.py", "lz4"): "optional; the extra `compression`",
    ("protocol/compression.py", "zstandard"): "optional; the extra `compression`",
    ("protocol/v5/schema_pb2.py", "google"): "optional; the extra `grpc`",
    ("broker/grpc/calls.py", "google"): "optional; the extra `grpc`",
    ("broker/grpc/endpoint.py", "google"): "optional; the extra `grpc`",
    ("broker/forwarding/forwarder.py", "google"): "optional; the extra `grpc`",
    ("broker/grpc/validation.py", "google"): "optional; the extra `grpc`",
    ("broker/net/tls_context.py", "cryptography"): "optional; the extra `tls`",
    **{
        (f"tools/console/{file}", library): "the console; the extra `console`"
        for library, files in CONSOLE.items()
        for file in files
    },
    ("tools/mcp/server.py", "mcp"): "the tools for agents; the extra `mcp`",
    ("client/observe/otel.py", "opentelemetry"): "optional; the extra `otel`",
    ("client/config.py", "opentelemetry"): "the type of a setting alone; the extra `otel`",
    ("client/instance.py", "opentelemetry"): "its types alone; the extra `otel`",
    ("skylarkmq/testing/profiles.py", "opentelemetry"): "the type of an argument alone",
    ("skylarkmq/testing/profiles.py", "prometheus_client"): "the type of an argument alone",
    ("skylarkmq/testing/plugin.py", "pytest"): "the plug-in, which pytest itself loads",
    ("spark/requirements.py", "subprocess"): "asks a Java for its version",
}


def fault(path: Path, module: str) -> str:
    """Why a file may not import a module; empty when it may."""
    package = path.parts[0]
    top = module.split(".")[0]
    if module.startswith("."):
        return "relative import"
    if top in PACKAGES:
        return f"would load a second copy: import {ROOTS_FOLDER}.{module}"
    if top == ROOTS_FOLDER:
        target = module.split(".")[1] if "." in module else ""
        if (str(path), f"{ROOTS_FOLDER}.{target}") in ALLOWED:
            return ""
        allowed = OURS[package] | {"__version__"}
        return "" if target in allowed else f"{package} stands below {target}"
    if (str(path), top) in ALLOWED:
        return ""
    if top in BANNED[package]:
        return f"{package} does not know {top}"
    if top in sys.stdlib_module_names or top in LIBRARIES[package]:
        return ""
    return f"{package} does not use {top}"


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_down(room: str) -> None:
    faults = [
        f"{path}:{line}: {module}: {why}"
        for path in files_of(room)
        for module, line, _ in facts_of(path).imports
        if (why := fault(path, module))
    ]
    assert not faults, "\n".join(faults)


def test_every_room_has_its_rules() -> None:
    assert set(OURS) == set(LIBRARIES) == set(BANNED) == set(ROOMS)


def test_the_rule_sees_what_it_must() -> None:
    store, protocol = Path("store/x.py"), Path("protocol/x.py")
    assert fault(store, ".files")
    assert fault(store, "store.files")
    assert fault(store, "skylarkmq.broker.config.settings")
    assert fault(store, "asyncio")
    assert fault(protocol, "time")
    assert fault(protocol, "lz4")
    assert fault(Path("broker/x.py"), "skylarkmq.client.producer.producer")
    assert fault(Path("client/x.py"), "skylarkmq.store.folder")
    assert not fault(Path("protocol/compression.py"), "lz4")
    assert not fault(Path("skylarkmq/cli.py"), "skylarkmq.client.producer.producer")


@pytest.mark.parametrize("room", ROOMS)
def test_no_circles(room: str) -> None:
    """Sibling modules do not import one another in a circle; what only types need is left out.

    Between rooms no circle can be: imports point down.
    """
    by_module = {module_of(path): path for path in files_of(room)}
    graph = {
        module: {name for name in facts_of(path).needed_at_import if name in by_module}
        for module, path in by_module.items()
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for needed in sorted(graph[module]):
                visit(needed, (*way, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


ROOT_FLOOR = "(files)"
"""The files of the broker that stand in no folder: they put the folders together."""


def folder_of(path: Path) -> str:
    """Return the folder of a room that has a file; empty for one that stands in none."""
    if len(path.parts) > 2:
        return path.parts[1]
    return ROOT_FLOOR if path.parts[0] == "broker" and path.name != "__init__.py" else ""


def folders_needed(room: str) -> dict[str, dict[str, str]]:
    """Return the folders of a room, each with those that it loads, and by which import."""
    by_module = {module_of(path): path for path in files_of(room)}
    needed: dict[str, dict[str, str]] = {}
    for path in by_module.values():
        mine = folder_of(path)
        others = needed.setdefault(mine, {}) if mine else {}
        for name in facts_of(path).needed_at_run:
            found = by_module.get(name)
            other = folder_of(found) if found else ""
            if other and other != mine:
                others.setdefault(other, f"{path} imports {name}")
    return needed


def floors_of(needed: Mapping[str, Mapping[str, object]]) -> Iterator[list[str]]:
    """Yield folders floor by floor, the lowest first; those of a circle are on none."""
    left = set(needed)
    while floor := sorted(name for name in left if not left.intersection(needed[name])):
        yield floor
        left.difference_update(floor)


def circle_in(needed: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the imports that make circles of folders; empty when each folder is on a floor."""
    left = set(needed).difference(*floors_of(needed))
    while above := left.difference(*(needed[name] for name in left)):
        left -= above
    return [why for name in sorted(left) for to, why in needed[name].items() if to in left]


@pytest.mark.parametrize("room", ROOMS)
def test_no_circles_of_folders(room: str) -> None:
    """Folders do not import one another in a circle, and none of the broker's its own files.

    What a file loads later counts; what only types need is left out.
    """
    circle = circle_in(folders_needed(room))
    assert not circle, "\n".join(circle)


def test_a_circle_of_folders_is_seen() -> None:
    circle = {"a": {"b": "a/x.py imports b"}, "b": {"a": "b/y.py imports a"}}
    assert circle_in({**circle, "above": {"a": ""}, "c": {}}) == [
        *circle["a"].values(),
        *circle["b"].values(),
    ]
    assert [*floors_of({"a": {"b": ""}, "b": {"c": ""}, "c": {}})] == [["c"], ["b"], ["a"]]


def test_the_floors_of_the_broker_are_those_of_the_page() -> None:
    """`ARCHITECTURE.md` lists them from below: a folder imports from lines above its own alone."""
    needed = folders_needed("broker")
    listed = re.search(r"```\n(base\n.*?)```", text_of(Path("ARCHITECTURE.md")), re.DOTALL)
    assert listed
    lines = [line.split() for line in listed[1].replace("its files", ROOT_FLOOR).splitlines()]
    height = {name: number for number, line in enumerate(lines) for name in line}
    now = "\n".join(" ".join(floor) for floor in floors_of(needed))
    assert height.keys() == needed.keys(), f"the floors are now:\n{now}"
    faults = [
        why
        for name, others in needed.items()
        for other, why in others.items()
        if height[other] >= height[name]
    ]
    assert not faults, "\n".join([*faults, "the floors are now:", now])
