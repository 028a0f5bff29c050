"""The command line in the test's own process, towards a broker in a thread."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from click.testing import CliRunner

from skylarkmq.cli import main

TOPIC, GROUP, COUNT = "orders", "billing", 6
"""On the shared broker: a topic, a group that has taken all of it, and how many messages."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    errors: str

    @property
    def json(self) -> Any:
        """Its output as a value."""
        return json.loads(self.out)


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
        ended = CliRunner().invoke(
            main, [*words, *self.words], input=stdin, env=variables, prog_name="skylarkmq"
        )
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Said(ended.exit_code, ended.stdout, ended.stderr)

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
