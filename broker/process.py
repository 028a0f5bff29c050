"""Settings of the daemon's own process, made once before it starts.

Each is a help, not a need: where the system refuses one, the daemon goes on without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from typing import Final

# glibc gives freed large blocks back to the system and faults them in again; kept, a pipelined
# send of 1 KB costs a fifth less. Parameters and values of mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
FILES_RESERVED: Final = 1024  # descriptors: queue files, log files, tables, connections to refuse
_MALLOC_SETTINGS: Final = (
    (_M_TRIM_THRESHOLD, 512 << 20),
    (_M_TOP_PAD, 16 << 20),
    (_M_MMAP_THRESHOLD, 64 << 20),
)
_TRIM_PAD: Final = 16 << 20


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_possible(wanted: int, file_limit: int, servers: int) -> int:
    """Return how many connections each of `servers` may have, at most `wanted`.

    A store that cannot open a file has failed, so connections must not take every descriptor: the
    store keeps FILES_RESERVED of them, of a small limit half.
    """
    available = max(file_limit - FILES_RESERVED, file_limit // 2)
    return max(1, min(wanted, available // servers))


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep freed blocks; False where there is no glibc."""
    libc = _glibc()
    if libc is None:
        return False
    return all(libc.mallopt(parameter, value) for parameter, value in _MALLOC_SETTINGS)


def give_memory_back() -> None:
    """Give what malloc keeps back to the system, some of it apart: 20 ms for 100 MiB."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(_TRIM_PAD)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        return libc if libc.mallopt else None
    except (OSError, AttributeError):
        return None
