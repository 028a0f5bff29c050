#!/usr/bin/env bash
# `make wheel`: builds the source distribution and, from it, the wheel of this machine and Python.
# Each is installed into an empty environment away from the sources, and tried there: the wheel
# takes the kernel's road, the source distribution without a compiler Python's.
set -euo pipefail
bin=$(realpath "$1")
rm -rf dist
"$bin/python" -m build
for wheel in dist/*-linux_*.whl; do
    [ -e "$wheel" ] || continue # other systems
    PATH=$bin:$PATH auditwheel repair --strip --wheel-dir dist "$wheel"
    rm "$wheel"
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r tests pyproject.toml "$folder"
# Without pip's cache: it may hold a wheel that it once built from the same path.
pip=(-m pip --disable-pip-version-check --quiet --no-cache-dir install)

try() { # a file, the road that it must take
    local artefact
    artefact=$(realpath "$1")
    "$bin/python" -m venv --clear "$folder/venv"
    cd "$folder"
    venv/bin/python "${pip[@]}" "$artefact"
    venv/bin/python -m tests.installed "$2"
    venv/bin/python "${pip[@]}" pytest pytest-asyncio hypothesis # as in pyproject.toml
    venv/bin/pytest -q tests/kernel tests/store
    cd "$OLDPWD"
}

try dist/*.whl compiled
CC=/bin/false try dist/*.tar.gz python
ls -l dist
