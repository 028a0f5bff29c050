"""Where topics live, for the blocking client: from the name servers, or from brokers named by hand.

Any name server will do; the one that answered last is asked first. Without name servers each
broker is asked for its name (26) and its topics (21), which RocketMQ's brokers answer to anybody
that may connect.

All names here are those that brokers know. One thread at a time.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
(getTopicRouteInfoFromNameServer), broker/.../processor/AdminBrokerProcessor.java
(getBrokerConfig, getAllTopicConfig)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    NotFound,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.wire.route import TopicRoute, parse_route
from skylarkmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)
from skylarkmq.protocol.bodies.topic_config import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    REPLY_TOPIC_POSTFIX,
    is_system_topic,
)
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.route import GetRouteInfoRequestHeader
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.remoting.connections import Connections
from skylarkmq.spark.remoting.requests import body_in, check
from skylarkmq.spark.settings import ConnectionSettings

T = TypeVar("T")

log = logging.getLogger(__name__)

MASTER_ID: Final = 0
CLUSTER: Final = "direct"
BROKER_NAME_KEY: Final = "brokerName"
CLUSTER_NAME_KEY: Final = "brokerClusterName"
REPLY_ENDING: Final = f"_{REPLY_TOPIC_POSTFIX}"
TABLES_MAX_AGE_S: Final = 1.0
"""How long the topics of a broker that was named by hand are good for the next question."""
ROUTE_MAX_AGE_S: Final = 30.0
"""How old a route may be that says where a queue's broker is."""
ROUTE_RETRY_AGE_S: Final = 1.0
"""How old after a failure: the broker may have moved."""
ASKING_SHARE: Final = 10
"""While nobody answers, a known route is good for this many times as long as asking took, up to
ROUTE_MAX_AGE_S: a broker may have moved while its name server hung."""
NO_NAME_SERVER_HINT: Final = (
    "Option nameServer names name servers, mostly at port 9876; brokers go into option brokers"
)
NO_BROKER_HINT: Final = (
    "Option brokers names brokers, mostly at port 10911; name servers go into option nameServer"
)
UNREACHED_HINT: Final = (
    "Is it running there, and can this machine reach it? Driver and every executor need to"
)
MISSING_HINT: Final = (
    "The topic does not exist, or its brokers are not registered (any more): see the spelling, "
    "option namespace, and whether these are the right name servers"
)


class Routes:
    """The routes of one client."""

    def __init__(
        self, settings: ConnectionSettings, connections: Connections, clock: BlockingClock
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._clock = clock
        self._first = 0
        self._known: dict[str, tuple[float, TopicRoute]] = {}
        self._unasked_until_s = 0.0
        self._names: dict[str, str] = {address: name for name, address in settings.brokers if name}
        self._tables: dict[str, tuple[float, dict[str, TopicConfig]]] = {}

    def topics(self) -> list[str]:
        """Return the names of all topics but those that brokers make for themselves, sorted.

        Raises:
            RocketMQError: no name server, or one of the brokers named by hand, did not answer.
        """
        if self._settings.name_servers:
            code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            names = set(self._ask(code, {}, _topic_list).topic_list)
            # Every broker has topics of its own name and of its cluster's; this answer has them.
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
            names -= set(self._ask(code, {}, _topic_list).topic_list)
        else:
            tables = [self._table(address) for _, address in self._settings.brokers]
            names = {topic for table in tables for topic in table}
            for _, address in self._settings.brokers:
                config = self._config(address)
                names -= {config.get(BROKER_NAME_KEY, ""), config.get(CLUSTER_NAME_KEY, "")}
        return sorted(
            name for name in names if not is_system_topic(name) and not name.endswith(REPLY_ENDING)
        )

    def clusters(self) -> dict[str, str]:
        """Return the cluster of each broker that is registered, or named by hand, by its name.

        Raises:
            RocketMQError: no name server, or one of the brokers named by hand, did not answer.
        """
        if self._settings.name_servers:
            table = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, _clusters).broker_addr_table
            return {name: broker.cluster or "" for name, broker in table.items()}
        return {
            self._name(address): self._config(address).get(CLUSTER_NAME_KEY, "")
            for _, address in self._settings.brokers
        }

    def find(self, topic: str, max_age_s: float = 0.0) -> TopicRoute:
        """Return a topic's route, from memory when that is younger than `max_age_s`.

        Raises:
            RouteNotFound: no broker has the topic.
            RocketMQError: nobody answered; or one of the brokers named by hand did not, whose
                queues nobody should take for missing.
        """
        route = self._remembered(topic, max_age_s) or self._fetch(topic, all_answer=True)
        return _there(topic, route)

    def lasting(self, topic: str, max_age_s: float) -> TopicRoute:
        """Return what `find` does; while nobody answers, what was found before goes on to count.

        Raises:
            RouteNotFound: no broker has the topic.
            RocketMQError: nobody answered, and nothing is remembered.
        """
        return _there(topic, self._lasting(topic, max_age_s))

    def for_publish(self, topic: str, queue_count: int, max_age_s: float = 0.0) -> TopicRoute:
        """Return a route with queues to write to; a topic of nobody borrows that of TBW102.

        While nobody answers, what was found before goes on to count, as for RocketMQ's producers.

        Raises:
            RouteNotFound: nobody takes messages of this topic.
            RocketMQError: nobody answered, and nothing is remembered.
        """
        route = self._lasting(topic, max_age_s)
        if route is None:
            data = self._data(AUTO_CREATE_TOPIC_KEY_TOPIC)
            if data is None:
                raise RouteNotFound(
                    topic,
                    "auto_create_off",
                    "The topic does not exist and brokers create none on demand: create it first",
                )
            route = parse_route(topic, data, self._settings.dialled, queue_count)
            route = replace(route, subscribe_queues=(), borrowed=True)
        if not route.publish_queues:
            raise RouteNotFound(topic, "no_broker", "No broker with a master takes writes for it")
        return route

    def age(self, topic: str) -> None:
        """Let what is remembered of a topic be too old in ROUTE_RETRY_AGE_S, if not before."""
        found = self._known.get(topic)
        if found is not None:
            asked_s = self._clock.monotonic() + ROUTE_RETRY_AGE_S - ROUTE_MAX_AGE_S
            self._known[topic] = (min(found[0], asked_s), found[1])

    def _remembered(self, topic: str, max_age_s: float) -> TopicRoute | None:
        found = self._known.get(topic)
        if found is None or self._clock.monotonic() - found[0] >= max_age_s:
            return None
        return found[1]

    def _lasting(self, topic: str, max_age_s: float) -> TopicRoute | None:
        route = self._remembered(topic, max_age_s)
        if route is not None:
            return route
        began_s = self._clock.monotonic()
        if topic in self._known and began_s < self._unasked_until_s:
            return self._known[topic][1]
        try:
            return self._fetch(topic)
        except RocketMQError as error:
            if topic not in self._known:
                raise
            log.info("route of %s not refreshed: %s", topic, error)
            now_s = self._clock.monotonic()
            wait_s = max(ROUTE_RETRY_AGE_S, ASKING_SHARE * (now_s - began_s))
            self._unasked_until_s = now_s + min(wait_s, ROUTE_MAX_AGE_S)
            return self._known[topic][1]

    def _fetch(self, topic: str, *, all_answer: bool = False) -> TopicRoute | None:
        data = self._data(topic, all_answer=all_answer)
        if data is None:
            return None
        route = parse_route(topic, data, self._settings.dialled)
        self._known[topic] = (self._clock.monotonic(), route)
        return route

    def _data(self, topic: str, *, all_answer: bool = False) -> TopicRouteData | None:
        if not self._settings.name_servers:
            return self._data_by_hand(topic, all_answer=all_answer)
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)

        def read(answer: RemotingCommand, address: str) -> TopicRouteData | None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            return body_in(TopicRouteData, answer, address)

        return self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, encode_fields(header), read)

    # Name servers

    def _ask(
        self, code: int, fields: dict[str, str], read: Callable[[RemotingCommand, str], T]
    ) -> T:
        """Return what `read` makes of the first answer of a name server that it can read."""
        addresses = self._settings.name_servers
        errors: list[RocketMQError] = []
        settings, clock = self._settings, self._clock
        for round_index in range(settings.retries + 1):
            if round_index:
                clock.sleep(settings.retry_interval_s * 2 ** (round_index - 1))
            errors.clear()
            for index in range(len(addresses)):
                position = (self._first + index) % len(addresses)
                address = addresses[position]
                deadline_s = clock.monotonic() + settings.request_timeout_s
                try:
                    request = RemotingCommand.request(code, fields)
                    outcome = read(self._connections.call(address, request, deadline_s), address)
                except RocketMQError as error:
                    log.debug("name server %s: %s", address, error)
                    errors.append(error)
                    continue
                self._first = position
                return outcome
            if not any(error.retryable for error in errors):
                break
        raise self._failure(errors)

    def _failure(self, errors: list[RocketMQError]) -> RocketMQError:
        for error in errors:
            if isinstance(error, BrokerError):
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    text = f"{error.broker_addr} is no name server: {error.remark}"
                    return NotFound(text, hint=NO_NAME_SERVER_HINT)
                return error
        text = "; ".join(map(str, errors))
        if any(isinstance(error, RequestTimeout) for error in errors):
            return RequestTimeout(f"no name server answered in time: {text}", hint=UNREACHED_HINT)
        why = f"no name server answered: {text}"
        return ConnectionFailed(self._settings.text, why, hint=UNREACHED_HINT)

    # Brokers named by hand

    def _data_by_hand(self, topic: str, *, all_answer: bool) -> TopicRouteData | None:
        """Return a route made of the brokers that have the topic and answer.

        Raises:
            RocketMQError: none of them answered; with `all_answer`, one of all did not.
        """
        brokers: list[BrokerData] = []
        queues: list[QueueData] = []
        errors: list[RocketMQError] = []
        for _, address in self._settings.brokers:
            try:
                config = self._table(address).get(topic)
                name = self._name(address)
            except RocketMQError as error:
                errors.append(error)
                continue
            if config is not None:
                brokers.append(
                    BrokerData(broker_addrs={MASTER_ID: address}, broker_name=name, cluster=CLUSTER)
                )
                queues.append(
                    QueueData(
                        broker_name=name,
                        perm=config.perm,
                        read_queue_nums=config.read_queue_nums,
                        write_queue_nums=config.write_queue_nums,
                    )
                )
        if errors and (all_answer or not brokers):
            raise errors[0]
        return TopicRouteData(broker_datas=brokers, queue_datas=queues) if brokers else None

    def _table(self, address: str) -> dict[str, TopicConfig]:
        found = self._tables.get(address)
        now_s = self._clock.monotonic()
        if found is not None and now_s - found[0] < TABLES_MAX_AGE_S:
            return found[1]
        answer = self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotFound(f"{address} is no broker: {answer.remark}", hint=NO_BROKER_HINT)
        table = body_in(TopicConfigSerializeWrapper, answer, address).topic_config_table
        self._tables[address] = (now_s, table)
        return table

    def _name(self, address: str) -> str:
        name = self._names.get(address)
        if name is None:
            name = self._config(address).get(BROKER_NAME_KEY)
            if not name:
                raise NotFound(
                    f"{address} does not tell its broker name",
                    hint=f"Write it before the address: brokers=broker-a={address}",
                )
            self._names[address] = name
        return name

    def _config(self, address: str) -> dict[str, str]:
        answer = self._call(address, RequestCode.GET_BROKER_CONFIG)
        check(answer, address)
        lines = answer.body.decode("utf-8", "replace").splitlines()
        parts = (line.partition("=") for line in lines)
        return {key.strip(): value.strip() for key, _, value in parts}

    def _call(self, address: str, code: int) -> RemotingCommand:
        deadline_s = self._clock.monotonic() + self._settings.request_timeout_s
        return self._connections.call(address, RemotingCommand.request(code), deadline_s)


def _clusters(answer: RemotingCommand, address: str) -> ClusterInfo:
    return body_in(ClusterInfo, answer, address)


def _topic_list(answer: RemotingCommand, address: str) -> TopicList:
    return body_in(TopicList, answer, address)


def _there(topic: str, route: TopicRoute | None) -> TopicRoute:
    if route is None:
        raise RouteNotFound(topic, "topic_missing", MISSING_HINT)
    return route
