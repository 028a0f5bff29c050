"""A finding: what is wrong, how bad it is, whose, why, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

Severity = Literal["critical", "warning"]
ORDER: Final[tuple[Severity, ...]] = ("critical", "warning")
CRITICAL_KINDS: Final = frozenset(
    {
        "broker_unreachable", "no_master", "name_server_unreachable", "too_few_in_sync",
        "replica_halted",
    }
)  # fmt: skip
"""Of the SDK's `Problem`s; the others are warnings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `kind` is for programs and stays; `cause` and `cure` are sentences."""

    kind: str
    severity: Severity
    subject: str
    cause: str
    cure: str

    def to_json(self) -> dict[str, str]:
        """Return it as plain texts."""
        return asdict(self)
