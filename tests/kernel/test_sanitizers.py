"""The kernel under the compiler's checks: addresses, and what C leaves undefined."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("Cython", reason="the kernel is compiled here, which takes Cython")

ROOT = Path(__file__).resolve().parents[2]
CHECKS = "-fsanitize=address,undefined"
LEFT_OUT = (".*", "var", "build", "dist", "docs", "*.egg-info", "*.so", "*.c", "__pycache__")


def library(name: str) -> str:
    """The path of a runtime library of the compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    command = [compiler, f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"gcc has no {name}")
    return path


@pytest.mark.fault
def test_the_tests_of_the_kernel_pass_under_the_compilers_checks(tmp_path: Path) -> None:
    preloaded = f"{library('libasan.so')} {library('libubsan.so')}"
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    flags = f"-O1 -g {CHECKS} -fno-sanitize-recover=all -fno-omit-frame-pointer"
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = {**os.environ, "CFLAGS": flags, "LDFLAGS": CHECKS}
    done = subprocess.run(build, cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(source.glob("kernel/*.so")), done.stderr
    # Python's own arenas would hide what is read beside an object.
    environment = {
        **os.environ,
        "LD_PRELOAD": preloaded,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(source),
        "SKYLARKMQ_PURE": "",
    }
    run = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:randomly"]
    run += ["-p", "no:cacheprovider", "-m", "not fault", "tests/kernel"]
    done = subprocess.run(run, cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
