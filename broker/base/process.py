"""The daemon's own process: settings that are made once as it starts, and its memory.

Each setting is a help, not a need: where the system refuses one, the daemon goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

# glibc gives freed large blocks back to the system and faults them in again; kept, a pipelined
# send of 1 KB costs a fifth less. Parameters and values of mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
FILES_RESERVED: Final = 1024
"""Descriptors: queue files, log files, tables, connections of the pages, and those to refuse."""
FILES_OF_PAGES: Final = 64  # of those: the connections of the pages
_MALLOC_SETTINGS: Final = (
    (_M_TRIM_THRESHOLD, 512 << 20),
    (_M_TOP_PAD, 16 << 20),
    (_M_MMAP_THRESHOLD, 64 << 20),
)
_TRIM_PAD: Final = 16 << 20
GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Sending makes no cycles: collections are rare, and leave out what the start has made."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop of uvloop, None where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_possible(wanted: int, file_limit: int, servers: int) -> int:
    """Return how many connections each of `servers` may have, at most `wanted`.

    A store that cannot open a file refuses messages, so connections must not take every descriptor:
    the store keeps FILES_RESERVED of them, of a small limit half, and the pages theirs.

    Args:
        servers: ports with `maxConnections` of their own: of a broker, a name server, for gRPC.
    """
    available = max(file_limit - FILES_RESERVED, file_limit // 2 - FILES_OF_PAGES)
    return max(1, min(wanted, available // servers))


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep freed blocks; False where there is no glibc."""
    libc = _glibc()
    if libc is None:
        return False
    return all(libc.mallopt(parameter, value) for parameter, value in _MALLOC_SETTINGS)


def collect_rarely() -> None:
    """Set Python's garbage collector for a daemon that has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def give_memory_back(kept_size: int = _TRIM_PAD) -> None:
    """Give what malloc keeps back to the system, `kept_size` bytes apart: 20 ms for 100 MiB."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(kept_size)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        return libc if libc.mallopt else None
    except (OSError, AttributeError):
        return None


def memory_size(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may have. Blocks; for the start alone.

    It is the machine's memory, or less where a container is limited:

        /proc/self/cgroup    limit of the group, and of each group that it is in
        0::PATH              version 2: memory.max, below /sys/fs/cgroup (or its `unified`)
        N:...memory...:PATH  version 1: memory.limit_in_bytes, below /sys/fs/cgroup/memory

    A container may see its own group as the root of these folders, whatever PATH says: a folder
    that is not there tells nothing, and the root is always asked. No limit is a word, or a number
    above all memory.
    """
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
    """Yield the limits of a group and of those around it."""
    inner = PurePosixPath(group.lstrip("/"))
    for part in (inner, *inner.parents):
        try:
            limit = int((mount / part / name).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
        if limit > 0:
            yield limit
