"""How much memory this process may have: the machine's, or less where a container is limited.

    /proc/self/cgroup    limit of the group, and of each group that it is in
    0::PATH              version 2: memory.max, below /sys/fs/cgroup (or its `unified`)
    N:...memory...:PATH  version 1: memory.limit_in_bytes, below /sys/fs/cgroup/memory

A container may see its own group as the root of these folders, whatever PATH says: a folder that is
not there tells nothing, and the root is always asked. No limit is a word, or a number above all
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_size(root: Path = Path("/")) -> int:
    """Bytes of memory of this process's container or machine. Blocks; for the start alone."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((physical, *_limits(root)))


def _limits(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is hidden
        return
    folder = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mount in (folder, folder / "unified"):
                yield from _limits_of(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_of(folder / "memory", path, "memory.limit_in_bytes")


def _limits_of(mount: Path, group: str, name: str) -> Iterator[int]:
    """The limits of a group and of those around it."""
    inner = PurePosixPath(group.lstrip("/"))
    for part in (inner, *inner.parents):
        try:
            limit = int((mount / part / name).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
        if limit > 0:
            yield limit
