"""A finding: what is wrong, how bad it is, whose, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
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
ONE_IS_ENOUGH: Final = {
    "broker_unreachable": "address_unreachable",
    "disk_nearly_full": "disk_full",
}
"""A finding that says less than another one about the same broker."""


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


def arranged(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first, without what another one about the same broker says."""
    listed = list(found)
    names = {(one.kind, one.subject.partition(" ")[0]) for one in listed}
    kept = [
        one
        for one in listed
        if (ONE_IS_ENOUGH.get(one.kind, ""), one.subject.partition(" ")[0]) not in names
    ]
    return sorted(kept, key=lambda one: (ORDER.index(one.severity), one.kind, one.subject))
