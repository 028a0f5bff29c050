"""The one command: quick help, commands loaded when they are named."""

import subprocess
import sys

from click.testing import CliRunner

from skylarkmq import __version__
from skylarkmq.cli import COMMANDS, REMOVED, SECTIONS, main


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, (_, _, text) in COMMANDS.items():
        assert name in result.output and text in result.output


def test_every_command_stands_under_one_heading() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert len(named) == len(set(named))
    assert not COMMANDS.keys() - set(named)
    assert "Other commands" not in CliRunner().invoke(main, ["--help"]).output


def test_help_loads_neither_broker_nor_client() -> None:
    code = (
        "import sys\n"
        "from skylarkmq.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = [name for name in sys.modules if name.startswith(('skylarkmq.', 'asyncio'))]\n"
        "assert heavy == ['skylarkmq.cli'], heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_server_has_its_own_help() -> None:
    for name in ("serve", "broker", "namesrv"):
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Usage: main " + name in result.output


def test_the_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output.split()[-1] == __version__


def test_an_unknown_command_is_wrong_use() -> None:
    assert CliRunner().invoke(main, ["sen"]).exit_code == 2
    assert CliRunner().invoke(main, ["serve", "--nonsense"]).exit_code == 2


def test_a_removed_command_says_what_to_use() -> None:
    for name in REMOVED:
        result = CliRunner().invoke(main, [name, "traffic.ndjson", "--to", "127.0.0.1:9876"])
        assert result.exit_code == 2
        assert result.output.splitlines()[-1] == f"Error: {name} was removed: {REMOVED[name]}"
        assert name not in COMMANDS


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "skylarkmq", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == __version__
