"""docs/operations/backup.md: its commands, as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylarkmq.cli import main
from tests.tools.store.support import write_sample

PAGE = Path(__file__).parents[1] / "docs" / "operations" / "backup.md"


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sample(tmp_path / "var" / "store", rounds=4)
    commands = re.findall(r"^    \.venv/bin/skylarkmq (.*)$", PAGE.read_text("utf-8"), re.M)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.replace("/backup/", f"{tmp_path}/backup/"), comments=True)
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)
