"""Our broker and name server, one process: what the tests are for."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.children import Child, Children, Event
from tests.interop.servers import DELAY_LEVELS, FILE_SIZES, Broker

COMMAND = Path(sys.executable).with_name("skylarkmq")


class SkylarkBroker(Broker):
    """`skylarkmq serve` on free ports, which a later start takes again."""

    kind = "skylarkmq"
    namesrv_port = 0
    port = 0

    def __init__(self, children: Children, folder: Path) -> None:
        super().__init__(children, folder)
        self._child: Child | None = None

    def start(self) -> None:
        settings = {
            "brokerName": "broker-a",
            "listenPort": self.port,
            "namesrvListenPort": self.namesrv_port,
            "metricsPromExporterPort": 0,
            "storePathRootDir": self.folder / "store",
            **FILE_SIZES,
            "messageDelayLevel": DELAY_LEVELS,
        }
        command = [str(COMMAND), "serve", "--log-format", "json"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self._child = child = self.children.start("skylarkmq", command, one_stream=True)
        ready: list[Event] = child.wait_for("the broker", lambda: child.named("ready"))
        self.port = _port(ready[0]["brokerAddr"])
        self.namesrv_port = _port(ready[0]["namesrvAddr"])

    def stop(self) -> None:
        assert self._child is not None
        code = self._child.stop()
        if code:
            self._child.fail("did not stop cleanly")

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
