"""Two brokers behind one endpoint: ours, or RocketMQ's of 5.3 with its proxy in cluster mode."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path

from skylarkmq.protocol.codes import RequestCode
from tests.interop.apache_server import Apache5Broker, ask
from tests.interop.children import Several
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkNameServer
from tests.interop.v5.brokers import (
    ApacheClusterProxy,
    HasEndpoint,
    SkylarkGrpcBroker,
    dead_letters,
    make_group,
    make_topic,
)
from tests.support.patience import until_sync

NOWHERE = "127.0.0.1:1"
"""An address that no client gets an answer from."""


class Pair(Several, HasEndpoint, abc.ABC):
    """Brokers broker-a and broker-b, and their clients' one endpoint `127.0.0.1:grpc_port`.

    Attributes:
        near, far: ours is the endpoint of `near`; RocketMQ's is a process of its own.
    """

    kind: str
    near: Broker
    far: Broker

    @abc.abstractmethod
    def start(self) -> None:
        """Start all of it."""

    @property
    def brokers(self) -> tuple[Broker, Broker]:
        """Both."""
        return self.near, self.far

    def make_topic(self, topic: str, kind: str = "NORMAL", queues: int = 2) -> None:
        """Make a topic of a type on both brokers, and wait until its route names both."""
        for broker in self.brokers:
            make_topic(broker, topic, kind, queues)
        self.routed(topic)

    def routed(self, topic: str) -> None:
        """Wait until the route of a topic names both brokers."""
        port = int(self.near.namesrv.rpartition(":")[2])

        def names_both() -> bool:
            answer = ask(port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return all(broker.name.encode() in answer.body for broker in self.brokers)

        until_sync(names_both, f"{topic} on both brokers")

    def make_group(self, group: str, *, orderly: bool = False, max_retries: int = 16) -> None:
        """Make a group on both brokers, whose messages come again after a second or two."""
        for broker in self.brokers:
            make_group(broker, group, orderly=orderly, max_retries=max_retries)

    def counts(self, topic: str, queues: int = 2) -> list[int]:
        """Return how many messages of a topic each broker has."""
        return [sum(self._ends(broker, topic, queues)) for broker in self.brokers]

    def is_read(self, topic: str, group: str, queues: int = 2) -> bool:
        """Return whether a group's offsets are at the end of all queues: ours move by what was
        acknowledged, RocketMQ's by what was handed out.
        """
        for broker in self.brokers:
            for queue_id, end in enumerate(self._ends(broker, topic, queues)):
                fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                answer = ask(broker.port, RequestCode.QUERY_CONSUMER_OFFSET, fields)
                if end and (answer.code or int(answer.ext_fields["offset"]) != end):
                    return False
        return True

    def dead_letters(self, group: str) -> list[int]:
        """Return how many dead letters of a group each broker has."""
        return [dead_letters(broker, group) for broker in self.brokers]

    @staticmethod
    def _ends(broker: Broker, topic: str, queues: int) -> list[int]:
        found: list[int] = []
        for queue_id in range(queues):
            fields = {"topic": topic, "queueId": str(queue_id)}
            answer = ask(broker.port, RequestCode.GET_MAX_OFFSET, fields)
            assert answer.code == 0, answer
            found.append(int(answer.ext_fields["offset"]))
        return found


class SkylarkPair(Pair):
    """Ours: broker-a is the endpoint. broker-b sends clients to NOWHERE, if they come there.

    Attributes:
        ours: both brokers.
        names: their name server.
    """

    kind = SkylarkGrpcBroker.kind

    def __init__(self, folder: Path, far_keys: Mapping[str, object] | None = None) -> None:
        """Decide where everything is.

        Args:
            far_keys: of broker-b.
        """
        super().__init__(folder)
        self.names = SkylarkNameServer(self.new("names"))
        first, second = self.new("near"), self.new("far")
        keys = {"grpcAdvertisedAddress": NOWHERE} if far_keys is None else far_keys
        near = SkylarkGrpcBroker(
            first, first.folder, self.names, brokerName="broker-a", grpcProxyMode="CLUSTER"
        )
        self.ours = near, SkylarkGrpcBroker(second, second.folder, self.names, **keys)
        self.near, self.far = self.ours
        self.grpc_port = near.grpc_port

    def start(self) -> None:
        self.names.start()
        for broker in self.brokers:
            broker.start()
        port = int(self.names.namesrv.rpartition(":")[2])

        def knows_both() -> bool:
            answer = ask(port, RequestCode.GET_BROKER_CLUSTER_INFO)
            return all(broker.name.encode() in answer.body for broker in self.brokers)

        until_sync(knows_both, "both brokers at the name server")


class ApachePair(Pair):
    """RocketMQ's: its proxy is a process beside the brokers'."""

    kind = ApacheClusterProxy.kind

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        first, second, third = (self.new(name) for name in ("near", "far", "proxy"))
        self.near = Apache5Broker(first, first.folder, recallMessageEnable="true")
        self.far = Apache5Broker(second, second.folder, self.near, recallMessageEnable="true")
        self._proxy = ApacheClusterProxy(third, third.folder, self.near)
        self.grpc_port = self._proxy.grpc_port

    def start(self) -> None:
        for server in (*self.brokers, self._proxy):
            server.start()
