"""A member's link to its supervisor: a socket pair, whose other end nobody else has.

    to the supervisor   lines of JSON: {"event":"ready",...} once, or {"event":"failed","why":...};
                        {"event":"alive"} to each question
    from it             b"P" with a descriptor: a connection that asks for a page
                        b"R": the name server has started again, and knows nobody
                        b"A": does it run? Of one that has started, the event loop answers
    end of the stream   the supervisor is gone, however it ended: the member stops, as by SIGTERM

So no member outlives its supervisor and keeps a folder locked, and a member needs no port for its
metrics: a connection comes with each question, which no other user of the machine can make.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

log = logging.getLogger(__name__)

PAGE: Final = b"P"
NAMESRV: Final = b"R"
ASK: Final = b"A"
ALIVE: Final = b'{"event":"alive"}\n'
READ_SIZE: Final = 64
DESCRIPTORS_MAX: Final = 16
"""Of one read; the rest waits in the socket."""


class SupervisorLink:
    """The member's end. A thread of its own listens; `ready` and `failed` belong to any thread.

    Attributes:
        on_page: gets a connection that asks for a page, on the link's thread.
        on_namesrv: called on the link's thread when the name server has started again.
        on_ask: called on the link's thread at each question; must have `alive` called by what has
            to run: this thread, until the start is over, and then the event loop.
    """

    def __init__(self, descriptor: int) -> None:
        """Take the descriptor that the supervisor gave to this process, and listen.

        Raises:
            OSError: it is no socket.
        """
        self.on_page: Callable[[socket.socket], None] = socket.socket.close
        self.on_namesrv: Callable[[], object] = lambda: None  # the start registers anyway
        self.on_ask: Callable[[], object] = self.alive
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        threading.Thread(target=self._listen, name="skylarkmq-link", daemon=True).start()

    def ready(self, fields: Mapping[str, Any]) -> None:
        """Tell that this process serves, and where."""
        self._tell({**fields, "event": "ready"})

    def failed(self, why: str) -> None:
        """Tell why this process ends before it has served."""
        self._tell({"event": "failed", "why": why})

    def alive(self) -> None:
        """Tell that the event loop runs, unless the supervisor has not read for long."""
        with contextlib.suppress(OSError):
            self._socket.send(ALIVE, socket.MSG_DONTWAIT)

    def _tell(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # without a supervisor this process ends anyway
            self._socket.sendall(msgspec.json.encode(report) + b"\n")

    def _listen(self) -> None:
        while True:  # until the supervisor is gone
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, READ_SIZE, DESCRIPTORS_MAX)
            except OSError:
                data, descriptors = b"", []
            for descriptor in descriptors:
                self.on_page(socket.socket(fileno=descriptor))
            if not data:
                break
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                if NAMESRV in data:
                    self.on_namesrv()
                if ASK in data:
                    self.on_ask()
        log.warning("the supervisor is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
