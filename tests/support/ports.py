"""Ports for servers that must be where a test says, or come back to where they were.

They lie below those that the system gives to connections and to servers on port 0: nothing else of
this machine takes one by chance while its server is away.
"""

from __future__ import annotations

import contextlib
import random
import socket

_FROM, _TO = 10_000, 30_000


def free_ports(*distances: int) -> list[int]:
    """Return a loopback port p that is free together with p + each distance, and those ports."""
    while True:
        port = random.randrange(_FROM, _TO)
        ports = [port, *(port + distance for distance in distances)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", each)))
            return ports
