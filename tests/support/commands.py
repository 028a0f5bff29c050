"""`skylarkmq` commands that run beside a test, with what they print for when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from skylarkmq.kernel import PURE_VARIABLE
from tests.support.patience import LIMIT_S, until

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
SHOWN_LINES = 40


class Command:
    """One process; what it prints goes to a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: Path) -> None:
        self.name = name
        self.process = process
        self.is_wanted = True
        """It has not been told to end."""
        self._file = output

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._file.read_text("utf-8", errors="replace")

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM; does nothing when it runs no more."""
        await self._end(signal.SIGTERM)

    @property
    def state(self) -> str:
        """How it is, in a word or three."""
        code = self.process.returncode
        return "runs" if code is None else f"ended with {code}"

    def tail(self) -> str:
        """What it printed last."""
        lines = self.output.splitlines()[-SHOWN_LINES:]
        return "\n".join([f"--- {self.name} ({self.state})", *lines])

    async def _end(self, by: signal.Signals) -> None:
        self.is_wanted = False
        if self.process.returncode is None:
            self.process.send_signal(by)
        await asyncio.wait_for(self.process.wait(), LIMIT_S)


class Commands:
    """Those of one test, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Command] = []

    @property
    def left(self) -> list[Command]:
        """Those that nobody told to end."""
        return [each for each in self.all if each.is_wanted]

    async def start(self, *words: str, env: Mapping[str, str] | None = None) -> Command:
        """Run a command; it is not ready yet.

        Args:
            env: more variables.
        """
        name = f"{words[0]}-{len(self.all)}"
        output = self._folder / f"{name}.output"
        mine = {k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")}
        pure = {k: v for k, v in os.environ.items() if k == PURE_VARIABLE}
        with output.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "skylarkmq", *words),
                cwd=self._folder,
                env={**mine, **pure, **(env or {}), "PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=file,
            )
        command = Command(name, process, output)
        self.all.append(command)
        return command

    async def until(self, met: Callable[[], Awaitable[T] | T], what: str) -> T:
        """Look until what `met` returns is true, and return that.

        Raises:
            AssertionError: not within LIMIT_S, or a process has ended that nobody told to; with
                what all of them printed.
        """

        async def look() -> T:
            for each in self.left:
                if each.process.returncode is not None:
                    raise AssertionError(f"waited for {what}, but {each.name} {each.state}")
            answer = met()
            return await answer if isinstance(answer, Awaitable) else answer

        try:
            return await until(look, what)
        except AssertionError as error:
            tails = [each.tail() for each in self.all]
            raise AssertionError("\n".join([str(error), *tails])) from None

    async def stop(self) -> None:
        """End them all, the last started first."""
        for each in reversed(self.all):
            await each.stop()


@asynccontextmanager
async def commands(folder: Path) -> AsyncIterator[Commands]:
    """End all commands with the block."""
    found = Commands(folder)
    try:
        yield found
    finally:
        await found.stop()
