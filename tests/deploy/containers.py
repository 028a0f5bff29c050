"""The image, built and run with Podman: needs root, nothing of a registry of images.

What the Dockerfile takes as its base is made here by debootstrap: Debian with its own Python under
the name of the official image. All containers share a network of their own, which has a loopback
device alone, so that the ports of this machine are neither used nor seen. `host` runs a command of
this machine in it.

Where packages come from is pip's own configuration: PIP_CONFIG_FILE, else /etc/pip.conf, and a file
of issuers in PIP_CERT or SSL_CERT_FILE. Both are mounted while the image is built.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.tools import ROOT
from tests.support.patience import LIMIT_S

PROGRAMS: Final = ("podman", "runc", "debootstrap", "ip", "nsenter")
INSTALL: Final = "apt install podman buildah runc netavark aardvark-dns debootstrap iproute2"
FOLDER: Final = ROOT / "var" / "image"
"""Keeps the base and the layers, so that a second run builds what has changed. May be deleted."""
BASES: Final = ("docker.io/library/python:3.11", "docker.io/library/python:3.11-slim")
PACKAGES: Final = (
    "ca-certificates,gcc,libc6-dev,python3.11,python3.11-dev,python3.11-venv,python3-pip"
)
IMAGE: Final = "skylarkmq"
ISSUERS: Final = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_LIMIT_S: Final = 900
READY_LIMIT_S: Final = 60
SETTINGS: Final = """\
[containers]
default_ulimits = []
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
HARDENED: Final = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt",
                   "no-new-privileges")  # fmt: skip


def why_not() -> str:
    """Return why no container can run here; empty when one can."""
    if sys.platform != "linux" or os.geteuid():
        return "containers are run by root, on Linux"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} ({INSTALL})" if missing else ""


class Containers:
    """Podman with a store of its own, and a network for what it runs."""

    def __init__(self, folder: Path, network: str) -> None:
        self._folder = folder
        self._inside = ("nsenter", f"--net=/run/netns/{network}")

    def podman(self, *words: str, limit_s: float = LIMIT_S, inside: bool = True) -> str:
        """Run a command of Podman and return what it prints; fails with that when it says no."""
        done = self.ask(*words, limit_s=limit_s, inside=inside)
        assert done.returncode == 0, f"podman {' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def ask(
        self, *words: str, limit_s: float = LIMIT_S, inside: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Podman, whatever it answers."""
        store = ("--root", str(self._folder / "store"), "--runroot", str(self._folder / "run"))
        command = ("podman", *store, *words)
        settings = self._folder / "containers.conf"
        settings.write_text(SETTINGS)
        return _run((*self._inside, *command) if inside else command, limit_s,
                    CONTAINERS_CONF=str(settings))  # fmt: skip

    def host(self, *words: str) -> str:
        """Run our Python with these words, on this machine and in the containers' network."""
        done = _run((*self._inside, sys.executable, *words), LIMIT_S, NAMESRV_ADDR="127.0.0.1:9876")
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def build(self) -> None:
        """Make the base, if it is not there, and build the image from this tree.

        The layers of builds before today are taken away.
        """
        self.podman("image", "prune", "--force", "--filter=until=24h", inside=False)
        if self.ask("image", "exists", BASES[0], inside=False).returncode:
            self._make_base()
        mounts = [f"--volume={place}:{target}:ro" for place, target in _of_pip()]
        self.podman("build", "--format=docker", "--network=host", "--pull=never", *mounts,
                    f"--tag={IMAGE}", str(ROOT), limit_s=BUILD_LIMIT_S, inside=False)  # fmt: skip

    def _make_base(self) -> None:
        tree, packed = self._folder / "base", self._folder / "base.tar"
        shutil.rmtree(tree, ignore_errors=True)
        done = _run(("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm",
                     str(tree)), BUILD_LIMIT_S)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        (tree / "usr" / "local" / "bin" / "python").symlink_to("../../bin/python3.11")
        packing = _run(("tar", "-C", str(tree), "-cf", str(packed), "."), BUILD_LIMIT_S)
        assert packing.returncode == 0, packing.stderr
        self.podman("import", str(packed), BASES[0], limit_s=BUILD_LIMIT_S, inside=False)
        self.podman("tag", *BASES, inside=False)
        shutil.rmtree(tree)
        packed.unlink()

    def added_size(self) -> int:
        """Return the bytes of the image above its base."""
        sizes = (
            int(self.podman("image", "inspect", "--format={{.Size}}", one, inside=False))
            for one in (IMAGE, BASES[1])
        )
        return next(sizes) - next(sizes)

    @contextmanager
    def running(self, name: str, *words: str, options: tuple[str, ...] = ()) -> Iterator[None]:
        """Run a container of the image, hardened as the page tells, and take it away after it.

        Args:
            words: after the image, its command.
            options: of Podman, such as volumes and variables.
        """
        try:
            self.podman("run", "--detach", "--pull=never", f"--name={name}", *HARDENED, *options,
                        IMAGE, *words)  # fmt: skip
            yield
        except BaseException:
            print(self.log(name)[-4000:])
            raise
        finally:
            self.ask("rm", "--force", "--time=0", name)

    def until_healthy(self, name: str) -> float:
        """Wait until the image's own check says so; return after how many seconds."""
        return until(lambda: self.ask("healthcheck", "run", name).returncode == 0, name)

    def log(self, name: str) -> str:
        """Return what a container has written."""
        done = self.ask("logs", name)
        return done.stdout + done.stderr

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a container, its exit code too."""
        found: dict[str, Any] = json.loads(self.podman("inspect", name))[0]["State"]
        return found


def until(holds: Callable[[], bool], what: str) -> float:
    """Wait until something holds; return after how many seconds. Blocks."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < READY_LIMIT_S, f"{what}: not within {READY_LIMIT_S} s"
        time.sleep(0.1)
    return time.monotonic() - began


@contextmanager
def containers() -> Iterator[Containers]:
    """Build the image and run what is asked for, in a network that ends with it.

    Skips where it cannot.
    """
    if missing := why_not():
        pytest.skip(missing)
    FOLDER.mkdir(parents=True, exist_ok=True)
    network = f"skylarkmq-{os.getpid()}"
    for words in (("add", network), ("exec", network, "ip", "link", "set", "lo", "up")):
        made = _run(("ip", "netns", *words), LIMIT_S)
        if made.returncode:
            pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        found = Containers(FOLDER, network)
        found.build()
        yield found
    finally:
        _run(("ip", "netns", "delete", network), LIMIT_S)


def _of_pip() -> Iterator[tuple[str, str]]:
    """Yield what pip needs on this machine, and where it is in the container."""
    settings = Path(os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf"))
    if settings.is_file():
        yield str(settings), "/etc/pip.conf"
    issuers = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if issuers:
        yield issuers, str(ISSUERS)


def _run(
    words: tuple[str, ...], limit_s: float, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        cwd=ROOT,
        env={**os.environ, **variables},
    )
