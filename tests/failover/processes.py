"""A server in a process of its own: started again and again with one command, ended by its id."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.patience import LIMIT_S

LOOK_EVERY_S = 0.05
TAIL_SIZE = 6000


class ServerProcess:
    """One server. All it says goes to `<folder>/<name>.log`, life after life."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        started: Callable[[int], None] | None = None,
    ) -> None:
        """Take the command.

        Args:
            started: is told the process id of each life, before it has done much.
        """
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self.lives = 0
        self.unasked: list[str] = []
        """Ends that nobody had asked for."""
        self._started = started
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._expected = True

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start a life; it is not ready yet. Does nothing to one that runs."""
        if self.is_running:
            return
        self.look()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SKYLARKMQ_", "ETCD_"))
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self.lives += 1
        self._expected = self._is_paused = False
        if self._started is not None:
            self._started(self._process.pid)

    def look(self) -> None:
        """Note an end that nobody asked for."""
        if not self._expected and not self.is_running:
            assert self._process is not None
            self._expected = True
            self.unasked.append(f"{self.name} ended by itself with {self._process.returncode}")

    def kill(self) -> None:
        """kill -9."""
        self.look()
        self._expected = True
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(LIMIT_S)

    def terminate(self) -> None:
        """Ask for an orderly end; `ended` waits for it."""
        self.look()
        self._expected = True
        self._signal(signal.SIGTERM)

    async def ended(self) -> None:
        """Wait for the end that `terminate` asked for.

        Raises:
            AssertionError: it does not end.
        """
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                while process.poll() is None:  # of another process  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"{self.name} does not end:\n{self.tail()}") from None
        if process.returncode:
            self.unasked.append(f"{self.name} ended with {process.returncode} after SIGTERM")

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._is_paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def tail(self) -> str:
        """Return the end of what it said."""
        return self.log.read_bytes()[-TAIL_SIZE:].decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, number)
