"""The command line in the test's own process, towards a broker in a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.tools.command import Said, say

TOPIC, GROUP, COUNT = "orders", "billing", 6
"""On the shared broker: a topic, a group that has taken all of it, and how many messages."""


@dataclass
class Shell:
    """Runs commands; `home` keeps their contexts, `words` follow each command."""

    home: Path
    words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def __call__(self, *words: str, stdin: str | None = None) -> Said:
        """Run a command; one that must not end well is looked at by its code."""
        variables: dict[str, str | None] = {
            "NAMESRV_ADDR": None,
            "SKYLARKMQ_CONTEXT": None,
            "SKYLARKMQ_ACCESS_KEY": None,
            "SKYLARKMQ_SECRET_KEY": None,
            "XDG_CONFIG_HOME": str(self.home),
            **self.variables,
        }
        return say([*words, *self.words], stdin, variables)

    def ok(self, *words: str, stdin: str | None = None) -> Said:
        """Run a command that must end well."""
        said = self(*words, stdin=stdin)
        assert said.code == 0, (words, said)
        return said

    def json(self, *words: str) -> Any:
        """Return what a command that must end well answers."""
        return self.ok(*words).json


def paths(value: Any, at: str = "") -> set[str]:
    """Return the names in a JSON value, such as `queues[].queue.topic`; a list by its first row."""
    if isinstance(value, dict):
        rows = cast("dict[str, Any]", value).items()
        found = [paths(each, f"{at}.{name}" if at else name) for name, each in rows]
        return set[str]().union(*found)
    if isinstance(value, list):
        first = next(iter(cast("list[Any]", value)), None)
        return paths(first, f"{at}[]") if isinstance(first, dict | list) else {f"{at}[]"}
    return {at}
