"""A cluster of both kinds: two name servers and two brokers, one of each ours and RocketMQ's.

Each of the four is a process of its own, which a test may kill and start again. Both brokers
register with both name servers.
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.apache_server import ApacheBroker, ApacheNameServer
from tests.interop.children import Several
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker, SkylarkNameServer

OURS, THEIRS = "broker-ours", "broker-theirs"
# As soon as RocketMQ lets it: its broker notices only so that a name server was started again.
SOON = {"registerNameServerPeriod": 10_000}


class MixedCluster(Several):
    """The four processes; `namesrv` names both name servers, ours first.

    Attributes:
        brokers: by name, OURS and THEIRS.
        our_names, their_names: the name servers.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.our_names = SkylarkNameServer(self.new("names-ours"))
        theirs = self.new("names-theirs")
        self.their_names = ApacheNameServer(theirs, theirs.folder)
        self.brokers: dict[str, Broker] = {}

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
