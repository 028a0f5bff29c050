"""Finds a process that runs and does nothing any more, and ends it, so that it is started again.

Again and again the supervisor asks each process; the event loop of the process answers, and before
that has started, the thread of its link, because a large store takes the loop minutes. What is
counted is questions in a row without an answer, not the time that has passed: a supervisor that was
stopped itself, or a machine that slept, has asked nothing meanwhile.

    hungProcessTimeoutSeconds of silence   SIGABRT, at which the process writes where each of its
                                           threads is; STACKS_S later SIGKILL; then it starts again
    the same process hangs once more       it gets twice the time, up to PATIENCE_MAX times; after
                                           FORGOTTEN_S without, the configured time again

Two are left alone, however long they are silent: a process that the kernel holds until a device
answers, because a new one would wait for the same disk, and a process that a debugger traces. The
stop has a limit of its own.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from skylarkmq.broker.base.health import LOOP_DEAD_S, waits_for_disk
from skylarkmq.broker.fleet.supervisor import ProcessSlot
from skylarkmq.common.clock import Clock
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

ASK_PERIOD_S: Final = 5.0
QUESTIONS_MIN: Final = 4
"""Questions of the shortest silence: where the limit is short, they follow sooner."""
STACKS_S: Final = 2.0
PATIENCE_MAX: Final = 16
FORGOTTEN_S: Final = 3600.0


class HangWatch:
    """Watches the processes of a fleet. Loop thread of the supervisor.

    Args:
        slots: returns the members.
        limit_s: silence after which a process is killed; 0: it is only told.
        why_spared: says why a process, by its number, is left alone; empty: it is not.
    """

    def __init__(
        self,
        slots: Callable[[], Sequence[ProcessSlot]],
        limit_s: float,
        clock: Clock,
        why_spared: Callable[[int], str],
    ) -> None:
        self._slots = slots
        self._kills = limit_s > 0
        self._limit_s = limit_s or LOOP_DEAD_S
        self._period_s = min(ASK_PERIOD_S, self._limit_s / QUESTIONS_MIN)
        self._clock = clock
        self._why_spared = why_spared
        self._killed: dict[str, tuple[int, float]] = {}  # how often in a row, and when last
        self._doubted: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await sleep(self._clock, self._period_s)
            for slot in self._slots():
                try:
                    self._look(slot)
                except Exception:
                    log.exception("whether %s hangs is not known; asking goes on", slot.name)
                slot.ask()

    def _look(self, slot: ProcessSlot) -> None:
        if slot.child is None or slot.is_aborted or not slot.unanswered_count:
            slot.hung = ""
            if slot.name in self._doubted and slot.child is not None and not slot.is_aborted:
                log.info("%s answers again", slot.name)
            self._doubted.discard(slot.name)
            return
        silent_s = slot.unanswered_count * self._period_s
        patience_s = self._patience_s(slot.name)
        told = f"{slot.name} (process {slot.child.pid}) has not answered for {silent_s:.0f} s"
        if silent_s < patience_s:
            if silent_s >= patience_s / 2 and slot.name not in self._doubted:
                log.warning("%s", told)
                self._doubted.add(slot.name)
        elif spared := self._why_spared(slot.child.pid):
            log.warning("%s; it is left alone: %s", told, spared)
            slot.unanswered_count = 0  # what held it may have ended just now
        elif self._kills:
            log.error("%s; it is killed, after it has written where its threads are", told)
            self._kill(slot, f"it had not answered for {silent_s:.0f} s")
        elif not slot.hung:
            log.error("%s; hungProcessTimeoutSeconds is 0, so it is left alone", told)
            slot.hung = "it does not answer, and hungProcessTimeoutSeconds is 0"

    def _kill(self, slot: ProcessSlot, why: str) -> None:
        now_s = self._clock.monotonic()
        count, _ = self._killed.get(slot.name, (0, 0.0))
        self._killed[slot.name] = (count + 1, now_s)
        child = slot.abort(why)
        self._clock.call_at(now_s + STACKS_S, child.signal, signal.SIGKILL)

    def _patience_s(self, name: str) -> float:
        count, last_s = self._killed.get(name, (0, 0.0))
        if count and self._clock.monotonic() - last_s >= FORGOTTEN_S:
            del self._killed[name]
            count = 0
        return self._limit_s * min(1 << count, PATIENCE_MAX)


def why_spared(pid: int) -> str:
    """Return why a process that does not answer is left alone; empty: no reason is known."""
    with suppress(OSError):  # no Linux, or it has ended meanwhile
        folder = Path(f"/proc/{pid}")
        for line in (folder / "status").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "TracerPid" and value.strip() != "0":
                return f"process {value.strip()}, a debugger, traces it"
        if any(waits_for_disk(int(thread.name), pid) for thread in (folder / "task").iterdir()):
            return "the kernel holds it until a device has answered"
    return ""
