"""Memory is the container's where that is less than the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skylarkmq.broker.base.process import memory_size

MIB = 1 << 20
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
UNLIMITED = str((1 << 63) - 4096)  # what version 1 says


def machine(root: Path, cgroup: str | None, **limits: str) -> Path:
    """A root folder with these files below sys/fs/cgroup."""
    if cgroup is not None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        # Version 2: seen from within the container, and from the host.
        ("0::/\n", {"memory.max": str(64 * MIB)}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": str(64 * MIB)}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": str(80 * MIB)}, 80 * MIB),
        ("0::/a\n", {"a/memory.max": str(80 * MIB), "memory.max": str(48 * MIB)}, 48 * MIB),
        ("0::/a\n", {"unified/a/memory.max": str(32 * MIB)}, 32 * MIB),
        # Version 1, alone and beside others; PATH is the host's in a container without a name space
        ("9:cpu:/\n4:memory:/\n", {"memory/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        ("4:cpu,memory:/a\n", {"memory/a/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        ("4:memory:/docker/x\n", {"memory/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        # No limit
        ("0::/\n", {"memory.max": "max"}, PHYSICAL),
        ("0::/\n", {"memory.max": "0"}, PHYSICAL),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": UNLIMITED}, PHYSICAL),
        ("0::/\n4:cpu:/\n", {"memory/memory.limit_in_bytes": str(64 * MIB)}, PHYSICAL),
        ("nonsense\n", {}, PHYSICAL),
        ("", {}, PHYSICAL),
        (None, {}, PHYSICAL),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, cgroup: str | None, limits: dict[str, str], expected: int
) -> None:
    assert memory_size(machine(tmp_path, cgroup, **limits)) == expected


def test_this_machine_has_some() -> None:
    assert 0 < memory_size() <= PHYSICAL
