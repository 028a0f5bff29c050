"""Memory that the store manages page by page: locked buffers, pages made present before stores.

The only place for anonymous mappings and for `madvise` and `mlock`, which Python reaches through
ctypes. A call through it releases the GIL, so a thread that waits for pages does not hold the loop.

    lock_memory    keeps a buffer out of swap and makes all of its pages present
    populate       makes pages of a mapping present and writable without changing a byte; the store
                   that comes later finds them (else it costs the loop 2.5 us a page)

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../util/LibC.java
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from typing import Final

PAGE_SIZE: Final = mmap.PAGESIZE
# Of Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_WRITE: Final = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def anonymous(size: int) -> memoryview:
    """Return zeroed private memory outside of Python's heap, given back with the last view of it.

    Raises:
        OSError: the system has no room for it.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def lock_memory(view: memoryview) -> OSError | None:
    """Keep the pages of a writable view in memory; return why that was refused, None if it worked.

    Blocks while the pages are made present, also when the lock is refused.
    """
    code = _call(_libc.mlock, view, 0, len(view))
    if code == 0:
        return None
    populate(view, 0, len(view))
    return OSError(code, os.strerror(code))


def populate(view: memoryview, start: int, stop: int) -> None:
    """Make the pages of [start, stop) of a writable view present and writable. Blocks.

    The bytes stay what they are, also those that another thread stores meanwhile.
    """
    start -= start % PAGE_SIZE
    if start < stop and _call(_libc.madvise, view, start, stop - start, _MADV_POPULATE_WRITE):
        _touch(view, start, stop)


def _touch(view: memoryview, start: int, stop: int) -> None:
    """Store one byte of each page onto itself.

    One assignment reads and stores under the GIL, so it never undoes what the loop stores there.
    """
    for position in range(start, stop, PAGE_SIZE):
        byte = view[position : position + 1]
        byte[:] = byte


def _call(function: Callable[..., int], view: memoryview, start: int, *args: int) -> int:
    """Call with the address of a byte of the view in front; return 0 or the error number."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(view, start))
    if function(address, *args) == 0:
        return 0
    return ctypes.get_errno() or errno.EINVAL
