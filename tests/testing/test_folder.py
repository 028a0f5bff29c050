"""Where stores of tests lie, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skylarkmq.testing import folder
from skylarkmq.testing.folder import PREFIX, StoreFolder, memory_folder
from tests.support.patience import LIMIT_S

LEAVE = """
import os, sys
from pathlib import Path
from skylarkmq.testing import folder
folder.MEMORY, folder.ROOM_MIN = Path(sys.argv[1]), 0
left = folder.StoreFolder.in_memory()
(left.path / "data").write_text("x")
print(left.path, flush=True)
exec(sys.argv[2])
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Takes the place of /dev/shm."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(folder, "MEMORY", place)
    monkeypatch.setattr(folder, "ROOM_MIN", 0)
    return place


def leave(memory: Path, how: str) -> tuple[Path, int]:
    """Make a folder in another process that ends by `how`; its path and exit code."""
    command = [sys.executable, "-c", LEAVE, str(memory), how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    return Path(run.stdout.strip()), run.returncode


def test_a_folder_goes_when_it_is_told_to(memory: Path) -> None:
    one, two = StoreFolder.in_memory(), StoreFolder.in_memory()
    assert one.path.parent == two.path.parent == memory
    assert one.path.name.startswith(PREFIX)
    (one.path / "store").mkdir()
    one.remove()
    one.remove()
    assert not one.path.exists()
    assert two.path.exists(), "another one stays"
    two.remove()


def test_nothing_stays_when_the_process_ends(memory: Path) -> None:
    path, code = leave(memory, "sys.exit(3)")
    assert (code, path.exists()) == (3, False)


def test_what_a_killed_test_leaves_goes_with_the_next_run(memory: Path) -> None:
    held = StoreFolder.in_memory()
    path, code = leave(memory, f"os.kill(os.getpid(), {signal.SIGKILL})")
    assert code == -signal.SIGKILL
    assert (path / "data").exists()
    fresh = StoreFolder.in_memory()
    assert not path.exists()
    assert held.path.exists(), "one that is in use stays"
    held.remove()
    fresh.remove()


def test_a_forked_child_leaves_its_parent_s_folder_alone(memory: Path) -> None:
    path, _ = leave(
        memory,
        "pid = os.fork()\n"
        "if not pid: left.remove(); os._exit(0)\n"
        "os.waitpid(pid, 0); print(left.path.exists())\n",
    )
    assert str(path).endswith("True")


def test_another_place_where_memory_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MEMORY", Path("/nowhere/at/all"))
    assert memory_folder().is_dir()
    monkeypatch.setattr(folder, "MEMORY", Path(os.sep))
    monkeypatch.setattr(folder, "ROOM_MIN", 1 << 70)
    assert memory_folder() != Path(os.sep)
