"""A command of the command line, run in the test's own process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from skylarkmq.cli import main


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its answer."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its answer, a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def say(
    words: Sequence[str],
    stdin: str | bytes | None = None,
    variables: Mapping[str, str | None] | None = None,
) -> Said:
    """Run a command, whatever its exit code is; an error of ours is raised."""
    ended = CliRunner().invoke(main, [*words], input=stdin, env=variables, prog_name="skylarkmq")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return Said(ended.exit_code, ended.stdout, ended.stderr)
