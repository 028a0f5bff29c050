"""ali-ons, the RocketMQ client of the Node world, as commands that print JSON lines."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.interop.children import Child, Children, Event
from tests.interop.servers import Broker

HERE = Path(__file__).resolve().parent / "node"
INSTALL_S = 300


@cache
def _absent() -> str:
    """Install the package if need be; why that is not possible, or nothing."""
    absent = [name for name in ("node", "npm") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    stamp = HERE / "node_modules" / ".package-lock.json"
    lock = HERE / "package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        result = subprocess.run(
            ["npm", "ci"], cwd=HERE, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    return ""


class NodeTools:
    """The program of tests/interop/node against one broker; skips where it cannot be run."""

    def __init__(
        self,
        children: Children,
        broker: Broker,
        keys: tuple[str, str] | None = ("interop-key", "interop-secret"),
    ) -> None:
        """Take the broker; `keys`, access key and secret, are ignored without access control."""
        if why := _absent():
            pytest.skip(why)
        self._children = children
        self._namesrv = broker.namesrv
        self._keys = keys or ("", "")

    def create(self, topic: str, queues: int) -> None:
        """Make a topic."""
        child = self._start("create", topic, queues)
        child.event("done")
        child.finish()

    def send(self, topic: str, count: int, prefix: str = "n", level: int = 0) -> list[Event]:
        """Send and return what became of each message."""
        child = self._start("send", topic, count, prefix, level)
        child.event("done")
        child.finish()
        return child.named("error") + child.named("sent")

    def consume(
        self, topic: str, group: str, tags: str = "*", fail: int = 0, model: str = "CLUSTERING"
    ) -> Child:
        """Start a consumer; `finish` stops it cleanly."""
        return self._start("consume", topic, group, tags, fail, model)

    def _start(self, mode: str, topic: str, *args: str | int) -> Child:
        words = [mode, self._namesrv, *self._keys, topic, *map(str, args)]
        return self._children.start(f"node-{mode}", ["node", str(HERE / "client.js"), *words])
