"""What readiness and liveness are built from: named checks, each of which tells why it fails.

A check is asked on the loop thread, at each probe and scrape: it must not touch the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
