"""Routes without name servers: from brokers that option `brokers` names one by one.

Each broker is asked for its name (26) and its topics (21). RocketMQ's brokers answer these
questions to every client that may connect. Implements `RouteSource`. All names are those that
brokers know.

Loop thread of a `BlockingClient`.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getBrokerConfig, getAllTopicConfig)
"""

from __future__ import annotations

from typing import Final

from skylarkmq.client.errors import NotFound, RocketMQError, broker_error
from skylarkmq.client.wire.ask import read_body
from skylarkmq.client.wire.nameserver import application_topics
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.spark.settings import ConnectionSettings

CLUSTER: Final = "direct"
BROKER_NAME_KEY: Final = "brokerName"
CLUSTER_NAME_KEY: Final = "brokerClusterName"
TABLES_MAX_AGE_S: Final = 1.0
"""How long the topics of a broker are good for the next question."""
NO_BROKER_HINT: Final = (
    "Option brokers names brokers, mostly at port 10911; name servers go into option nameServer"
)


class NamedBrokers:
    """The brokers of one client."""

    def __init__(
        self, settings: ConnectionSettings, remoting: RemotingClient, clock: Clock
    ) -> None:
        self.text = settings.text
        self.silent: RocketMQError | None = None
        """Why one of the brokers did not answer the last question for a route; its queues would
        be missing in what is read."""
        self._addresses = [address for _, address in settings.brokers]
        self._timeout_s = settings.request_timeout_s
        self._remoting = remoting
        self._clock = clock
        self._names: dict[str, str] = {address: name for name, address in settings.brokers if name}
        self._tables: dict[str, tuple[float, dict[str, TopicConfig]]] = {}

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return a route made of the brokers that have the topic and answer.

        Raises:
            RocketMQError: none of those that may have it answered.
        """
        self.silent = None
        brokers: list[BrokerData] = []
        queues: list[QueueData] = []
        for address in self._addresses:
            try:
                config = (await self._table(address)).get(topic)
                name = await self._name(address)
            except RocketMQError as error:
                self.silent = self.silent or error
                continue
            if config is not None:
                addresses = {MASTER_ID: address}
                brokers.append(
                    BrokerData(broker_addrs=addresses, broker_name=name, cluster=CLUSTER)
                )
                queues.append(
                    QueueData(
                        broker_name=name,
                        perm=config.perm,
                        read_queue_nums=config.read_queue_nums,
                        write_queue_nums=config.write_queue_nums,
                    )
                )
        if self.silent is not None and not brokers:
            raise self.silent
        return TopicRouteData(broker_datas=brokers, queue_datas=queues) if brokers else None

    async def broker_names(self) -> list[str]:
        """Return the names of the brokers, sorted."""
        return sorted([await self._name(address) for address in self._addresses])

    async def topics(self) -> list[str]:
        """Return the names of all topics but those that brokers make for themselves, sorted.

        Raises:
            RocketMQError: one of the brokers did not answer.
        """
        names: set[str] = set()
        own: set[str] = set()
        for address in self._addresses:
            names |= (await self._table(address)).keys()
            config = await self._config(address)
            own |= {config.get(BROKER_NAME_KEY, ""), config.get(CLUSTER_NAME_KEY, "")}
        return application_topics(names - own)

    async def cluster_of_brokers(self) -> dict[str, str]:
        """Return the cluster of each broker, by its name; raises as `topics`."""
        return {
            await self._name(address): (await self._config(address)).get(CLUSTER_NAME_KEY, "")
            for address in self._addresses
        }

    async def _table(self, address: str) -> dict[str, TopicConfig]:
        found = self._tables.get(address)
        now_s = self._clock.monotonic()
        if found is not None and now_s - found[0] < TABLES_MAX_AGE_S:
            return found[1]
        answer = await self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = read_body(TopicConfigSerializeWrapper, answer, address).topic_config_table
        self._tables[address] = (now_s, table)
        return table

    async def _name(self, address: str) -> str:
        name = self._names.get(address)
        if name is None:
            name = (await self._config(address)).get(BROKER_NAME_KEY)
            if not name:
                raise NotFound(
                    f"{address} does not tell its broker name",
                    hint=f"Write it before the address: brokers=broker-a={address}",
                )
            self._names[address] = name
        return name

    async def _config(self, address: str) -> dict[str, str]:
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        lines = answer.body.decode("utf-8", "replace").splitlines()
        parts = (line.partition("=") for line in lines)
        return {key.strip(): value.strip() for key, _, value in parts}

    async def _call(self, address: str, code: int) -> RemotingCommand:
        request = RemotingCommand.request(code)
        answer = await self._remoting.call(address, request, self._timeout_s)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotFound(f"{address} is no broker: {answer.remark}", hint=NO_BROKER_HINT)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, address)
        return answer
