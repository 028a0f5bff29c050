"""A copy of the project in which lines are written wrong: the checkout itself is never changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant, MutantError

LEFT_OUT: Final = (
    ".git", ".venv", ".venv-oldest", ".hypothesis", "__pycache__", ".*_cache", "var", "build",
    "dist", "*.egg-info", "*.so", "node_modules", "target",
)  # fmt: skip
"""Not copied. Without the compiled kernel its twins in Python do the work."""
PYTEST: Final = (
    sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
    "-m", "not spark and not interop and not image and not fault and not fault_root and not soak",
)  # fmt: skip
"""Slow tests count, too."""
ENDED_S: Final = 10.0
"""How long a killed run's own group may take to go."""
WHERE: Final = """\
import importlib.util, sys
for name in sys.argv[1:]:
    print(importlib.util.find_spec(name).origin)
"""


class WorkTree:
    """One copy; one run at a time. What runs in it sees no other copy and no checkout."""

    def __init__(self, root: Path, folder: Path, command: Sequence[str] = PYTEST) -> None:
        """Copy the project at `root` into a folder that is not there yet."""
        self._project = folder / "project"
        self._said = folder / "said"
        self._temporary = folder / "tmp"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._changes = 0
        self._temporary.mkdir(parents=True)
        leave_out = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(root, self._project, symlinks=True, ignore=leave_out)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the wrong line in the copy meanwhile."""
        path = self._project / mutant.file
        text, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.written_into(text), encoding="utf-8")
        # Compiled files go by the source's second and size: each change has a second of its own.
        self._changes += 1
        os.utime(path, (times.st_atime, times.st_mtime + self._changes))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, files: Sequence[str], limit_s: float | None = None) -> int | None:
        """Run test files; their exit code, None when they took longer than the limit."""
        return self._run([*self._command, *files], limit_s)

    def check_imports(self, package: str, files: Sequence[str]) -> None:
        """Check that the copy's files are the ones that are imported.

        Raises:
            MutantError: an import finds something else, such as the checkout's.
        """
        names = [f"{package}.{file.removesuffix('.py').replace('/', '.')}" for file in files]
        names = [
            name.removeprefix(f"{package}.") if name.startswith(f"{package}.{package}.") else name
            for name in names
        ]
        code = self._run([sys.executable, "-c", WHERE, *names], None)
        found = self.said().splitlines()
        if code != 0 or len(found) != len(files):
            raise MutantError(f"the copy's modules can't be found:\n{self.said()}")
        for file, origin in zip(files, found, strict=True):
            if Path(origin).resolve() != (self._project / file).resolve():
                raise MutantError(f"{file} of the copy is not what runs: {origin} is")

    def said(self) -> str:
        """What the last run printed."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """Kill what runs; nothing runs here any more."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self, command: Sequence[str], limit_s: float | None) -> int | None:
        environment = os.environ | {
            "PYTHONPATH": str(self._project),
            "SKYLARKMQ_PURE": "1",
            "TMPDIR": str(self._temporary),
        }
        environment.pop("PYTEST_ADDOPTS", None)
        with self._said.open("wb") as said:
            with self._lock:
                if self._ended:
                    return None
                process = self._process = subprocess.Popen(
                    command,
                    cwd=self._project,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # its own group: what it started ends with it
                )
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(ENDED_S)
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary.mkdir()
