"""Ports for servers that must be where a test says, or come back to where they were.

They lie below those that the system gives to connections and to servers on port 0: nothing else of
this machine takes one by chance while its server is away, and nobody who looks for a server that is
away meets himself there. Some time may pass until the server of a test listens, so a port that one
process has drawn is not drawn by another one soon; a file in the folder for temporary ones says
which are meant. The numbers do not come from the seed of a test: with that, each run would
have those of the last one.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_FROM, _TO = 10_000, 30_000
_MEANT_S = 300.0
"""So long a port that was drawn is meant for a server that does not listen yet."""
_TRIES = 1000
"""With so many ports drawn lately, it is one of them again."""
_random = random.SystemRandom()


def free_ports(*distances: int) -> list[int]:
    """Return a loopback port p that is free together with p + each distance, and those ports."""
    return free_groups(distances)[0]


def free_groups(*groups: Iterable[int]) -> list[list[int]]:
    """Return ports for several servers: for each what `free_ports` returns, none of them twice.

    Args:
        groups: the distances of each server's further ports from its first one.
    """
    with _meant() as meant, contextlib.ExitStack() as held:
        found = [_group(tuple(distances), meant, held) for distances in groups]
        meant.update((port, time.time()) for ports in found for port in ports)
        return found


def _group(
    distances: tuple[int, ...], meant: dict[int, float], held: contextlib.ExitStack
) -> list[int]:
    for number in itertools.count():
        port = _random.randrange(_FROM, _TO)
        ports = [port, *(port + distance for distance in distances)]
        if number < _TRIES and any(each in meant for each in ports):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", each)))
            held.push(stack.pop_all())
            return ports
    raise AssertionError("never reached: the count has no end")


@contextlib.contextmanager
def _meant() -> Iterator[dict[int, float]]:
    """Yield the ports that somebody has drawn lately, and when; keep what is added to them."""
    path = Path(tempfile.gettempdir()) / f"skylarkmq-test-ports-{os.getuid()}"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = [line.split() for line in file]
        oldest = time.time() - _MEANT_S
        meant = {int(port): float(when) for port, when in lines if float(when) > oldest}
        yield meant
        file.truncate(0)
        file.writelines(f"{port} {when}\n" for port, when in meant.items())
