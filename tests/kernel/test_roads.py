"""Which road is taken, and that the Python one is there on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from skylarkmq import kernel

ASK = (
    "from skylarkmq import kernel; from skylarkmq.store.index import keys;"
    "print(kernel.road, keys.add_entries is kernel.twins['add_entries'], kernel.why_pure)"
)


def ask(**variables: str) -> str:
    """What a new process says of its road."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_environment_chooses_the_python_road() -> None:
    assert ask(SKYLARKMQ_PURE="1") == "python True SKYLARKMQ_PURE=1"


@pytest.mark.skipif(kernel.compiled is None, reason=kernel.why_pure)
def test_a_kernel_that_is_installed_is_used() -> None:
    assert ask(SKYLARKMQ_PURE="0") == "compiled False"


def test_where_there_is_none_the_cause_is_told() -> None:
    hidden = "import sys; sys.modules['skylarkmq.kernel.compiled'] = None;"
    done = subprocess.run(
        [sys.executable, "-c", hidden + ASK],
        env={**os.environ, "SKYLARKMQ_PURE": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("python True there was no C compiler")
