"""One life of a member's process, seen by its supervisor: how it is started, told and watched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from skylarkmq.broker.fleet.link import ASK, NAMESRV, PAGE

REPORT_SIZE_MAX: Final = 256 << 10


class Child:
    """A process that has been started. Loop thread.

    It has a group of its own, so that the terminal's Ctrl-C goes to its supervisor, which stops its
    members in order.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: socket.socket,
        reports: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._link = link  # for sending alone
        self._reader, self._writer = reports

    @classmethod
    async def start(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a server's command; it gets the option --supervised.

        Raises:
            OSError: the system starts no process now.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    *("--supervised", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            link = ours.dup()
            stack.pop_all()
        reports = await asyncio.open_unix_connection(sock=ours, limit=REPORT_SIZE_MAX)
        link.setblocking(False)
        return cls(process, link, reports)

    async def report(self) -> Mapping[str, Any] | None:
        """Return the next report of the process; None when it has ended."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):  # it has ended; or it says what no member says
            return None
        return msgspec.json.decode(line) if line.endswith(b"\n") else None

    async def ended(self) -> int:
        """Wait for the end; return the exit code, or minus the number of a signal."""
        code = await self._process.wait()
        self._writer.close()
        self._link.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def name_server_is_new(self) -> None:
        """Tell that the name server has started again."""
        self._tell(NAMESRV)  # one that is not told registers soon by itself

    def ask(self) -> None:
        """Ask whether the process runs; it reports `{"event":"alive"}`."""
        self._tell(ASK)

    def _tell(self, mark: bytes) -> None:
        with contextlib.suppress(OSError):  # it is ending, or has not read for long
            self._link.send(mark)

    def hand_over(self, connection: socket.socket) -> None:
        """Give the process a connection that asks for a page.

        Raises:
            OSError: it takes none now.
        """
        socket.send_fds(self._link, [PAGE], [connection.fileno()])
