"""The console of `serve --console`: a process beside the servers, started and stopped with them.

The console stands on the SDK, which a broker does not load, and its pages must not hold up a
broker's loop. It is started again when it ends, sooner or later by how often. Its standard input is
a pipe of ours: it ends with that, so it does not outlive servers that were killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from skylarkmq.common.clock import Clock
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

DEFAULT_PLACE: Final = "127.0.0.1:8080"
CANNOT_START: Final = frozenset({1, 2})
"""Codes by which it says that another try would end alike."""
RESTART_MIN_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
STOP_LIMIT_S: Final = 5.0
NOT_FOR_IT: Final = frozenset(
    {"NAMESRV_ADDR", "SKYLARKMQ_CONTEXT", "SKYLARKMQ_ACCESS_KEY", "SKYLARKMQ_SECRET_KEY"}
)
"""Variables that would name another cluster, or an account for everybody who opens a page."""


class ConsoleProcess:
    """Keeps one console at work. Loop thread."""

    def __init__(
        self, command: Sequence[str], place: str, environment: Mapping[str, str], clock: Clock
    ) -> None:
        """Take how it is started.

        Args:
            command: how a process of ours is started, up to its own words.
            place: where it listens, `host:port`, or a port of this machine alone.
        """
        self._command = command
        self._place = place if ":" in place else f"127.0.0.1:{place}"
        self._environment = {
            key: value for key, value in environment.items() if key not in NOT_FOR_IT
        }
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, namesrv: str) -> None:
        """Start it, for the cluster of these name servers."""
        log.info("the console of %s is at http://%s/", namesrv, self._place)
        words = ("console", "--listen", self._place, "--namesrv", namesrv, "--until-stdin-ends")
        self._task = asyncio.create_task(self._run([*self._command, *words]), name="console")

    async def stop(self) -> None:
        """End it; does nothing when it was not started."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
        except TimeoutError:
            log.warning("the console has not ended within %g s: it is killed", STOP_LIMIT_S)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run(self, words: Sequence[str]) -> None:
        pause_s = RESTART_MIN_S
        while True:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C goes to its servers, which end it
                )
                code: int | None = await self._process.wait()
            except OSError as error:
                log.error("the console cannot be started: %s", error)
                code = None
            if code in CANNOT_START:
                log.error("there is no console: it could not start; the servers go on without it")
                return
            log.warning("the console has ended with %s: it starts again in %g s", code, pause_s)
            await sleep(self._clock, pause_s)
            pause_s = min(2 * pause_s, RESTART_MAX_S)
