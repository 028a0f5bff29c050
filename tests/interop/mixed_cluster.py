"""A cluster of both kinds: two name servers and two brokers, one of each ours and RocketMQ's.

Each of the four is a process of its own, which a test may kill and start again. Both brokers
register with both name servers.
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.apache_server import ApacheBroker, ApacheNameServer
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker, SkylarkNameServer

OURS, THEIRS = "broker-ours", "broker-theirs"
# As soon as RocketMQ lets it: its broker notices only so that a name server was started again.
SOON = {"registerNameServerPeriod": 10_000}


class MixedCluster:
    """The four processes; `namesrv` names both name servers, ours first.

    Attributes:
        brokers: by name, OURS and THEIRS.
        our_names, their_names: the name servers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Children] = []
        self.our_names = SkylarkNameServer(self.new("names-ours"))
        self.their_names = ApacheNameServer(self.new("names-theirs"), self._children[-1].folder)
        self.brokers: dict[str, Broker] = {}

    def new(self, name: str) -> Children:
        """Return a folder for processes that end with the cluster."""
        folder = self._folder / name
        folder.mkdir()
        self._children.append(Children(folder))
        return self._children[-1]

    @property
    def namesrv(self) -> str:
        """Where clients ask for routes."""
        return f"{self.our_names.namesrv};{self.their_names.namesrv}"

    def start(self) -> None:
        """Start all four."""
        self.our_names.start()
        self.their_names.start()
        kinds: dict[str, type[Broker]] = {OURS: SkylarkBroker, THEIRS: ApacheBroker}
        for name, kind in kinds.items():
            children = self.new(name)
            broker = kind(children, children.folder, self, brokerName=name, **SOON)
            self.brokers[name] = broker
            broker.start()

    def end(self) -> None:
        """Leave no process behind; nobody will look at the stores any more."""
        for children in self._children:
            for child in children.all:
                child.kill()

    def tail(self, lines: int) -> list[tuple[str, str]]:
        """Return what each process printed last."""
        return [(child.name, child.tail(lines)) for each in self._children for child in each.all]
