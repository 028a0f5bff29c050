"""Our broker and name server, one process: what the tests are for."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.children import Child, Children, Event
from tests.interop.servers import Broker
from tests.support.broker_process import PATIENT

COMMAND = Path(sys.executable).with_name("skylarkmq")


class SkylarkBroker(Broker):
    """`skylarkmq serve` (or `broker`) on free ports, which a later start takes again."""

    kind = "skylarkmq"
    namesrv_port = 0
    port = 0

    def __init__(
        self, children: Children, folder: Path, joins: Broker | None = None, **keys: object
    ) -> None:
        super().__init__(children, folder, joins, **keys)
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
        ready: list[Event] = child.wait_for("the broker", lambda: child.named("ready"))
        self.port = _port(ready[0]["brokerAddr"])
        self.namesrv_port = (
            self.joins.namesrv_port if self.joins else _port(ready[0]["namesrvAddr"])
        )

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
