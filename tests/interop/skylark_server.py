"""Our broker and name server, one process: what the tests are for."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.children import Child, Children
from tests.interop.servers import Broker, Cluster
from tests.support.broker_process import PATIENT
from tests.support.ports import free_ports

COMMAND = Path(sys.executable).with_name("skylarkmq")


class SkylarkBroker(Broker):
    """`skylarkmq serve` (or `broker`) on free ports, which a later start takes again."""

    kind = "skylarkmq"

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        super().__init__(children, folder, joins, **keys)
        (self.namesrv_port,) = free_ports()
        self.port = free_ports(-2, 1)[0]  # the fast port, and one for replication
        self._child: Child | None = None

    def start(self) -> None:
        settings: dict[str, object] = {
            "brokerName": self.name,
            "listenPort": self.port,
            "metricsPromExporterPort": 0,
            "storePathRootDir": self.folder / "store",
            **PATIENT,
            **self.keys,
        }
        if self.joins:
            settings["namesrvAddr"] = self.joins.namesrv
        else:
            settings["namesrvListenPort"] = self.namesrv_port
        command = [str(COMMAND), "broker" if self.joins else "serve", "--log-format", "json"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self._child = child = self.children.start("skylarkmq", command, one_stream=True)
        child.wait_for("the broker", lambda: child.named("ready"))

    def stop(self) -> None:
        assert self._child is not None
        code = self._child.stop()
        if code:
            self._child.fail("did not stop cleanly")

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()


class SkylarkNameServer:
    """`skylarkmq namesrv` on a free port, which a later start takes again, with the queues of
    ordered topics in its routes.

    Attributes:
        keys: more of its configuration, to be set before `start`.
    """

    def __init__(self, children: Children) -> None:
        self.keys: dict[str, object] = {}
        self._children = children
        self._child: Child | None = None
        (self._port,) = free_ports()

    @property
    def namesrv(self) -> str:
        """Where clients ask for routes."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start and return when it serves."""
        command = [str(COMMAND), "namesrv", "--log-format", "json"]
        for key, value in {
            "listenPort": self._port,
            "orderMessageEnable": "true",
            "kvConfigPath": self._children.folder / "kvConfig.json",
            **self.keys,
        }.items():
            command += ["--set", f"{key}={value}"]
        self._child = child = self._children.start("skylarkmq-namesrv", command, one_stream=True)
        child.wait_for("the name server", lambda: child.named("ready"))

    def kill(self) -> None:
        """An end without a warning."""
        assert self._child is not None
        self._child.kill()
