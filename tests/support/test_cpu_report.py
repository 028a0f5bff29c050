"""A run tells which tests cost much, also with workers, and fails for it when it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from tests.support import cpu_report

cpu_report.SLOW_CPU_S = 0.03

def pytest_addoption(parser):
    parser.addoption("--cpu-limit", type=float, default=0.0)

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: x")
    config.pluginmanager.register(cpu_report.CpuReport(config, config.getoption("--cpu-limit")))
"""
TESTS = """
import time
import pytest

def spend():
    start = time.process_time()
    while time.process_time() - start < 0.08:
        pass

def test_cheap():
    pass

def test_dear():
    spend()

@pytest.mark.slow
def test_known_as_dear():
    spend()
"""


@pytest.mark.slow  # two runs of pytest
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_names_what_was_dear(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider"]
    command += ["-o", f"pythonpath={ROOT}", "--rootdir", str(tmp_path), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "of 3 tests" in result.stdout
    assert "1 tests took more than 0.03 CPU s and are not marked slow:" in result.stdout
    assert "test_some.py::test_dear\n" in result.stdout
    limited = subprocess.run([*command, "--cpu-limit", "0.05"], capture_output=True, text=True)
    assert limited.returncode == 1
    assert "ERROR above the limit of 0.05 CPU s: " in limited.stdout
    assert "test_known_as_dear" not in limited.stdout
