"""librocketmq, RocketMQ's C++ client, as commands that print JSON lines.

Python packages carry it, built: `rocketmq` 0.4.4 that of 2019, `rocketmq-python-cvs` 2.1.0.3 one
that calls itself 2.1.0. They are installed below `var/librocketmq`, each into a folder of its own;
they run on x86-64 Linux alone.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.interop.children import Child, Children, Event
from tests.interop.servers import Broker

HERE = Path(__file__).resolve().parent / "cpp"
PACKAGES = HERE.parents[2] / "var" / "librocketmq"
RELEASES = ("2019", "2.1.0")
INSTALL_S = 300


@cache
def _installed(release: str) -> tuple[Path, str]:
    """Install a release if need be; return its folder, and why that is not possible, or nothing."""
    machine = f"{platform.system()} {platform.machine()}"
    folder = PACKAGES / release
    if machine != "Linux x86_64":
        return folder, f"librocketmq is built for Linux on x86-64, this is {machine}"
    requirements = HERE / f"requirements-{release}.txt"
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--target", str(folder), "-r", str(requirements)]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        stamp.write_text(requirements.read_text())
    return folder, ""


class CppTools:
    """The program of tests/interop/cpp against one broker; skips where it cannot be run."""

    def __init__(
        self,
        children: Children,
        broker: Broker,
        release: str,
        keys: tuple[str, str] | None = None,
    ) -> None:
        """Take the broker; `release` is one of RELEASES, `keys` are access key and secret."""
        packages, why = _installed(release)
        if why:
            pytest.skip(why)
        self._children = children
        self._words = [str(packages), broker.namesrv, *(keys or ("", ""))]

    def send(self, topic: str, count: int) -> list[Event]:
        """Send and return what became of each message."""
        child = self._start("send", topic, count)
        child.event("done")
        child.finish()
        return child.named("error") + child.named("sent")

    def consume(self, topic: str, group: str, fail: int = 0) -> Child:
        """Start a consumer; `finish` stops it cleanly."""
        return self._start("consume", topic, group, fail)

    def _start(self, mode: str, *args: str | int) -> Child:
        words = [*self._words, mode, *map(str, args)]
        return self._children.start(
            f"cpp-{mode}", [sys.executable, str(HERE / "client.py"), *words]
        )
