"""What readiness and liveness are built from: named checks, each of which tells why it fails.

Readiness is asked on the loop thread, at each probe and scrape; liveness on the thread of the
pages, so its checks only look at plain attributes. No check touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

LOOP_DEAD_S: Final = 60.0
"""Silence of the event loop after which a restart is the cure, unless it waits for the disk.

Clients have given up after 3 to 15 s, but a restart costs them a recovery as well, so whatever may
still end by itself gets more time than that. It is half of the 120 s after which a name server
forgets the broker and clients lose their connections.
"""

Check = Callable[[], str]  # the reason why not, for a human; empty when all is well


def _no_checks() -> dict[str, Check]:
    return {}


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """`ready`: may clients be sent here. `live`: is a restart of the process no cure."""

    ready: Mapping[str, Check] = field(default_factory=_no_checks)
    live: Mapping[str, Check] = field(default_factory=_no_checks)


def run_checks(checks: Mapping[str, Check]) -> dict[str, str]:
    """Ask every check and return the reasons by name.

    A check that raises is a failed one: a probe must have an answer whatever else is broken.
    """
    reasons: dict[str, str] = {}
    for name, check in checks.items():
        try:
            reasons[name] = check()
        except Exception as error:
            reasons[name] = f"the check failed: {error!r}"
    return reasons


class LoopCheck:
    """Tells whether the event loop is dead: silent for LOOP_DEAD_S, and not because of the disk.

    A thread that the kernel holds until the disk answers cannot even be killed; a new process would
    wait for the same disk, and recover after it. So that is no reason for a restart, however long
    it takes. Linux tells; elsewhere the silence alone counts.
    """

    def __init__(self, silence_s: Callable[[], float], waits_for_disk: Callable[[], bool]) -> None:
        self._silence_s = silence_s
        self._waits_for_disk = waits_for_disk

    def __call__(self) -> str:
        silent_s = self._silence_s()
        if silent_s < LOOP_DEAD_S or self._waits_for_disk():
            return ""
        return f"the event loop has not answered for {silent_s:.0f} s, and waits for no disk"


def waits_for_disk(thread_id: int, process: int | Literal["self"] = "self") -> bool:
    """Return whether the kernel holds a thread until a device has answered.

    Args:
        thread_id: the system's number of the thread, `threading.get_native_id`.
        process: whose thread it is.
    """
    with suppress(OSError):
        stat = Path(f"/proc/{process}/task/{thread_id}/stat").read_text(
            encoding="ascii", errors="replace"
        )
        return stat.rpartition(")")[2].split()[0] == "D"  # "uninterruptible sleep"
    return False
