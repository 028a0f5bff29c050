"""`skylarkmq completion`, and what the shells ask through it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylarkmq.cli import main
from tests.tools.admin.support import Shell


def completed(words: str, home: Path) -> list[str]:
    """Return what may stand at the end of `words`, as bash asks."""
    variables = {
        "_SKYLARKMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "XDG_CONFIG_HOME": str(home),
    }
    ended = CliRunner().invoke(main, [], env=variables, prog_name="skylarkmq")
    return [line.partition(",")[2] for line in ended.stdout.splitlines()]


def test_commands_options_and_contexts(tmp_path: Path) -> None:
    assert completed("skylarkmq topi", tmp_path) == ["topic"]
    assert completed("skylarkmq topic de", tmp_path) == ["delete", "describe"]
    assert completed("skylarkmq group lag --wat", tmp_path) == ["--watch"]
    assert completed("skylarkmq topic list -o ", tmp_path) == ["table", "json", "ndjson", "yaml"]
    shell = Shell(tmp_path)
    for name in ("production", "staging"):
        shell.ok("context", "add", name, "--namesrv", "ns:9876")
    assert completed("skylarkmq topic list --context prod", tmp_path) == ["production"]


def test_the_root_is_completed_without_loading_a_command() -> None:
    code = (
        "import sys\n"
        "from skylarkmq.cli import main\n"
        "try:\n"
        "    main(prog_name='skylarkmq')\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = [name for name in sys.modules if name.startswith('skylarkmq.')]\n"
        "assert heavy == ['skylarkmq.cli'], heavy\n"
    )
    variables = {
        "_SKYLARKMQ_COMPLETE": "bash_complete", "COMP_WORDS": "skylarkmq ", "COMP_CWORD": "1",
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "plain,topic" in run.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, tmp_path: Path) -> None:
    said = Shell(tmp_path).ok("completion", shell)
    assert f"_SKYLARKMQ_COMPLETE={shell}_complete" in said.out
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed to read it")
    read = subprocess.run(
        [program, "-n"], input=said.out, capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stderr) == (0, "")


def test_another_shell(tmp_path: Path) -> None:
    assert Shell(tmp_path)("completion", "tcsh").code == 2
