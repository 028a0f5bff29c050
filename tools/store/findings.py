"""What a look at a stopped store finds: each with its place, its cause and its cure.

Severities: `error` is lost or damaged data, or what keeps a broker from starting; `warning` is
what a broker repairs by itself or works around; `info` is worth knowing and no fault, as what every
stop that was not clean leaves, which the next start repairs. `kind` is a
stable word for programs, `cause` and `cure` are for humans and may be reworded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

UNCLEAN: Final = "store.unclean"


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    kind: str
    path: Path
    position: int  # byte place within the file
    cause: str
    cure: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as the JSON output has it."""
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "file": str(self.path),
            "position": self.position,
            "cause": self.cause,
            "cure": self.cure,
        }


class Findings:
    """Collects findings; of each kind only the first `limit` are kept, all are counted."""

    def __init__(self, limit: int) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[Severity] = Counter()
        self.kinds: Counter[str] = Counter()
        self._limit = limit

    def add(
        self, severity: Severity, kind: str, path: Path, position: int, cause: str, cure: str
    ) -> None:
        """Take one finding."""
        self.counts[severity] += 1
        self.kinds[kind] += 1
        if self.kinds[kind] <= self._limit:
            self.kept.append(Finding(severity, kind, path, position, cause, cure))

    def error(self, kind: str, path: Path, position: int, cause: str, cure: str) -> None:
        self.add(Severity.ERROR, kind, path, position, cause, cure)

    def warning(self, kind: str, path: Path, position: int, cause: str, cure: str) -> None:
        self.add(Severity.WARNING, kind, path, position, cause, cure)

    def info(self, kind: str, path: Path, position: int, cause: str, cure: str) -> None:
        self.add(Severity.INFO, kind, path, position, cause, cure)

    @property
    def is_sound(self) -> bool:
        """True when there are no errors and no warnings."""
        return not (self.counts[Severity.ERROR] or self.counts[Severity.WARNING])

    @property
    def verdict(self) -> str:
        """What all of it means, in one line for humans."""
        if self.counts[Severity.ERROR]:
            return "the store is not sound"
        if self.counts[Severity.WARNING]:
            return (
                "no errors: a broker can start on this store. Warnings are what it repairs by "
                "itself, or works around; after its clean stop verify tells what is left of them"
            )
        if UNCLEAN in self.kinds:
            return "the store is sound: the next start recovers it, as after a crash"
        return "the store is sound"

    @property
    def left_off(self) -> int:
        """Findings that were counted and not kept."""
        return self.counts.total() - len(self.kept)

    def as_dict(self) -> dict[str, Any]:
        """All of it as the JSON output has it."""
        return {
            "sound": self.is_sound,
            "errors": self.counts[Severity.ERROR],
            "warnings": self.counts[Severity.WARNING],
            "infos": self.counts[Severity.INFO],
            "kinds": dict(sorted(self.kinds.items())),
            "left_off": self.left_off,
            "findings": [finding.as_dict() for finding in self.kept],
        }
