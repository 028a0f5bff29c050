"""A program of the SDK on a machine that is not Linux, as far as this one can play it.

    python portable_child.py <name server>

Before anything of the SDK is imported, the modules and functions that only POSIX or only Linux has
are taken away, and uvloop with them; the loop has no readers and writers of plain descriptors, as
on Windows. Prints what it received.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import os
import pkgutil
import signal
import socket
import sys
from collections.abc import Sequence
from types import ModuleType

HIDDEN = {
    "uvloop", "fcntl", "grp", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios",
    "tty", "_posixshmem", "_posixsubprocess",
}  # fmt: skip
GONE_FROM_OS = [
    "chown", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "getegid", "geteuid", "getgid",
    "getloadavg", "getpgid", "getpgrp", "getuid", "killpg", "lockf", "memfd_create", "mkfifo",
    "nice", "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev",
    "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sendfile", "setsid", "statvfs",
    "sync", "sysconf", "uname", "writev", "O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOFOLLOW",
]  # fmt: skip
GONE_FROM_SIGNAL = ["SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "pthread_sigmask"]
GONE_FROM_SOCKET = ["SO_REUSEPORT", "TCP_QUICKACK", "TCP_CORK"]


class Hide(importlib.abc.MetaPathFinder):
    """Says that the hidden modules do not exist."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def hide() -> None:
    """Take away what other systems do not have; what is imported already loses its names."""
    sys.meta_path.insert(0, Hide())
    for name in HIDDEN:
        sys.modules.pop(name, None)
    for module, names in (
        (os, GONE_FROM_OS),
        (signal, GONE_FROM_SIGNAL),
        (socket, GONE_FROM_SOCKET),
    ):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def import_all() -> list[str]:
    """Import every module of the SDK and of the codecs; return their names."""
    found: list[str] = []
    for package in ("skylarkmq.protocol", "skylarkmq.client"):
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, package + "."):
            if ".spark" not in module.name:  # Spark is an extra, and its jobs have a test
                importlib.import_module(module.name)
                found.append(module.name)
    return found


class PlainLoop(asyncio.SelectorEventLoop):
    """The stock loop without what only selectors can do."""

    def add_reader(self, *args: object) -> None:
        raise NotImplementedError

    add_writer = add_reader
    add_signal_handler = add_reader


async def scenario(namesrv: str) -> list[str]:
    """Send and receive: plain, compressed, ordered, delayed and in a batch."""
    from skylarkmq.client import Consumer, Message, Producer, StartFrom

    bodies: list[str] = []
    async with Producer(namesrv_addr=namesrv, compress_over=100) as producer:
        await producer.send(Message("portable", "plain"))
        await producer.send(Message("portable", "packed" * 100))
        await producer.send(Message("portable", "ordered", sharding_key="a"))
        await producer.send(Message("portable", "late", delay_level=1))
        await producer.send_batch([Message("portable", "one"), Message("portable", "two")])
        async with Consumer(
            "portable", namesrv_addr=namesrv, group="portable-group", start_from=StartFrom.FIRST
        ) as consumer:
            while len(bodies) < 6:
                message = await consumer.getone(timeout=120)
                bodies.append(message.body.decode()[:6])
    return sorted(bodies)


def main() -> None:
    hide()
    names = import_all()
    with asyncio.Runner(loop_factory=PlainLoop) as runner:
        bodies = runner.run(scenario(sys.argv[1]))
    loaded = sorted(HIDDEN & {name.partition(".")[0] for name in sys.modules})
    print(len(names), ",".join(bodies), ",".join(loaded) or "none")


if __name__ == "__main__":
    main()
