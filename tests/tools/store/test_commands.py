"""The tools as processes: exit codes, who is refused, and what a terminal is shown."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.tools.output import ProgressBar
from tests.support.archives import unpack
from tests.support.patience import LIMIT_S
from tests.tools.store.support import Sample, flip, run, run_json, run_lines

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "stores"
COMMANDS = ("info", "verify", "dump", "cat", "rebuild", "truncate", "salvage")
# As a Java broker does: FileChannel.lock(0, 1, false) is this record lock.
HOLD = """
import fcntl, os, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
print("held", flush=True)
sys.stdin.read()
"""


def process(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skylarkmq.cli", "store", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.slow
def test_as_processes(sample: Sample, tmp_path: Path) -> None:
    found = process("verify", sample.root)
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["sound"], "JSON where no terminal reads it"
    found = process("verify", sample.root, "-o", "table")
    assert found.stdout.endswith("the store is sound\n")
    path, position = sample.place(sample.of("Plain", 3))
    flip(path, position + 100)
    found = process("salvage", sample.root, tmp_path / "new", "--json")
    assert (found.returncode, found.stderr) == (1, "")
    assert len(json.loads(found.stdout)["lost"]) == 1
    found = process("info", tmp_path / "nowhere")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"Error: {tmp_path / 'nowhere'} is not a folder\n"


def test_the_form_is_chosen_as_in_other_commands(sample: Sample) -> None:
    as_text = run("verify", sample.root).stdout
    as_json = run("verify", sample.root, "--json").stdout
    assert run("verify", sample.root, "-o", "table").stdout == as_text
    assert json.loads(as_json) and run("verify", sample.root, "-o", "json").stdout == as_json
    assert run("verify", sample.root, "--json", "-o", "table").exit_code == 2
    assert run("cat", sample.root, "-o", "json").stdout == run("cat", sample.root).stdout


def test_help_tells_commands_and_exit_codes() -> None:
    text = run("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in text
        assert "Exit codes: 0 sound or done, 1 findings" in run(command, "--help").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("verify",), ("cat",), ("dump", "checkpoint"), ("rebuild",),
        ("rebuild", "--write"), ("truncate", "--to", "0", "--write"), ("salvage", "{new}"),
    ],
)  # fmt: skip
def test_a_store_of_another_process_is_refused(
    sample: Sample, tmp_path: Path, words: tuple[str, ...]
) -> None:
    lock = sample.root / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        named = [word.format(new=tmp_path / "new") for word in words]
        result = run(named[0], sample.root, *named[1:])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        assert f"is in use by process {holder.pid} (python" in result.stderr
        assert f"process {holder.pid}" in run_json("info", sample.root)["running"]
        assert not (tmp_path / "new").exists()
    finally:
        holder.communicate(b"")
    assert run_json("info", sample.root)["running"] is None


def test_a_broker_that_starts_meanwhile_spoils_the_result(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, "process 7"])
    monkeypatch.setattr("skylarkmq.tools.store.ownership.owner_of", lambda *_: next(answers))
    result = run("verify", sample.root)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "in use by process 7" in result.stderr


@pytest.mark.parametrize("name", sorted(path.stem[:-4] for path in GOLDEN.glob("*.tar.xz")))
def test_stores_of_rocketmq_are_sound(tmp_path: Path, name: str) -> None:
    unpack(GOLDEN / f"{name}.tar.xz", tmp_path)
    root = tmp_path / "store"
    found = json.loads(run("verify", root, "--json").stdout)
    # The last kind is RocketMQ's: a queue that it builds before it has read its delay levels.
    assert set(found["kinds"]) <= {"store.unclean", "queue.tags-code"}
    assert found["records"] > 50 and found["entries"] > 50
    saved = json.loads(run("salvage", root, tmp_path / "new", "--json").stdout)
    assert saved["complete"]
    assert run_lines("cat", tmp_path / "new") == run_lines("cat", root)
    assert run_json("verify", tmp_path / "new")["kinds"] == {}


def test_read_only_files_change_nothing(tmp_path: Path) -> None:
    files, path = ReadOnlyFiles(), tmp_path / "file"
    path.write_bytes(b"as it was")
    for change in (
        lambda: files.open(tmp_path / "new", create=True),
        lambda: files.open(path).pwrite(b"x", 0),
        lambda: files.replace(path, b"x", backup=False),
        lambda: files.unlink(path),
        lambda: files.make_folder(tmp_path / "new"),
        lambda: files.add_folder(tmp_path / "new"),
        lambda: files.lock(path),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno in (errno.EROFS, errno.EBADF)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [
        ("file", b"as it was")
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals() -> None:
    quiet, plain = io.StringIO(), Terminal()
    with ProgressBar(quiet) as bar:
        bar("reading", 1, 2)
    assert quiet.getvalue() == ""
    with ProgressBar(plain) as bar:
        bar("reading", 1, 2)
        bar("reading", 2, 2)
    assert plain.getvalue().startswith("\rreading: 50 %\rreading: 100 %")
    assert plain.getvalue().endswith("\r")
