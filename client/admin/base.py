"""What all parts of Admin stand on: the calls, the cluster's brokers, a topic's queues.

`each` makes many calls at the same time, a bounded number of them. `ask_brokers` asks several
brokers side by side, and can do without those that do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from msgspec.structs import replace

from skylarkmq.client.admin.results import Unanswered
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotFound,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    TopicNotExist,
)
from skylarkmq.client.instance import Client, OnClient, services_of
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_admin import AdminApi
from skylarkmq.client.wire.ask import read_body, read_messages
from skylarkmq.client.wire.route import parse_route
from skylarkmq.common.settings import checked, require_positive, seconds_of
from skylarkmq.protocol.bodies.route import BrokerData, ClusterInfo, KVTable, TopicRouteData
from skylarkmq.protocol.bodies.text import MessageQueueBody
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import MASTER_ID, validate_group, validate_topic
from skylarkmq.protocol.headers.pull import ViewMessageRequestHeader
from skylarkmq.protocol.headers.route import (
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
)
from skylarkmq.protocol.headers.topic import (
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.remoting.waiting import sleep

FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})
T = TypeVar("T")
R = TypeVar("R")
CALLS_MAX: Final = 32
TIMEOUT_S: Final = 5.0
STARTS: Final = "LinkedList.getLast"
"""In RocketMQ's refusal of its runtime table before its first count, a second after its start.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../StoreStatsService.java (getPutTps, sampling)
"""
STARTS_EVERY_S: Final = 0.25
STARTS_TRIES: Final = 20
NO_ROUTE: Final = TopicRouteData(queue_datas=[], broker_datas=[])


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic as the name server that knows most of it tells, with the addresses to dial."""

    topic: str
    data: TopicRouteData
    masters: dict[str, str] = field(hash=False)
    """Broker name to address."""
    read_queues: tuple[MessageQueue, ...]
    write_queues: tuple[MessageQueue, ...]


class AdminBase(OnClient):
    """What the parts of Admin share. Loop thread."""

    @checked
    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        timeout: float | timedelta = TIMEOUT_S,
        unanswered: dict[str, Unanswered] | None = None,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with producers and consumers.
            namesrv_addr: in place of `client`: name servers (default as for Client) for a client
                of this object's own.
            timeout: seconds for each request to a broker or a name server.
            unanswered: questions to several brokers do without those that do not answer, and note
                them here by name; one that is silent or away is then not asked again. An error is
                raised where nobody answers. Default: the first broker that does not answer ends
                the question. Changes always end so.
        """
        self._timeout_s = seconds_of(timeout)
        require_positive("timeout", self._timeout_s)
        super().__init__(client, namesrv_addr)
        self._unanswered = unanswered
        self._calls: AdminApi | None = None
        self._stopped = False

    async def start(self) -> None:
        """Connect to a name server; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before.
        """
        if self._stopped:
            raise IllegalState("the admin has stopped")
        await self._client.start()
        self._calls = AdminApi(self._services.remoting, self._timeout_s)

    async def stop(self) -> None:
        """Close the connections, unless the client is shared."""
        self._stopped = True
        self._calls = None
        await self._stop_own_client()

    @property
    def _services(self) -> Services:
        return services_of(self._client)

    @property
    def _api(self) -> AdminApi:
        if self._calls is None:
            raise IllegalState("the admin is not started, or it has stopped")
        return self._calls

    async def _ask(
        self, work: Callable[[str, str], Awaitable[R]], brokers: Mapping[str, str]
    ) -> dict[str, R]:
        return await ask_brokers(work, brokers, self._unanswered)

    def _topic(self, topic: str) -> str:
        """Return the topic as brokers know it."""
        wrapped = self._namespace.wrap(topic)
        if (reason := validate_topic(wrapped)) is not None:
            raise ValueError(reason)
        return wrapped

    def _group(self, group: str) -> str:
        """Return the group as brokers know it."""
        wrapped = self._namespace.wrap(group)
        if (reason := validate_group(wrapped)) is not None:
            raise ValueError(reason)
        return wrapped

    def _queue(self, body: MessageQueueBody) -> MessageQueue:
        """Return the queue that a broker named, as the application knows it."""
        queue = MessageQueue(body.topic, body.broker_name, body.queue_id)
        return self._namespace.unwrap_queue(queue)

    # Name servers

    @property
    def _name_servers(self) -> list[str]:
        return self._services.config.name_servers

    async def _cluster_info(self) -> ClusterInfo:
        """Return what the name servers know together.

        They differ for a while: one that was started again has met few brokers yet.
        """
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answers = await self._api.all_of(self._name_servers, code)
        return joined(read_body(ClusterInfo, answer, address) for answer, address in answers)

    def _dial(self, address: str) -> str:
        return self._services.config.mapped(address)

    async def _find_message(self, offset_msg_id: str) -> tuple[str, str, MessageExt] | None:
        """Return the broker that has a message, the address to dial, and the message.

        The broker that has the id's address now is asked first, then all others.

        Raises:
            RemoteProtocolError: no offset id.
            RocketMQError: a broker does not answer, and none of the others has the message.
        """
        named, physical_offset = decode_offset_message_id(offset_msg_id)
        header = ViewMessageRequestHeader(offset=physical_offset)
        accepted = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
        errors: list[RocketMQError] = []

        async def ask(place: tuple[str, str]) -> tuple[str, str, MessageExt] | None:
            name, address = place
            code = RequestCode.VIEW_MESSAGE_BY_ID
            try:
                answer = await self._api.call(address, code, header, accepted=accepted)
            except RocketMQError as error:
                errors.append(error)
                return None
            records = read_messages(answer, address) if answer.code == ResponseCode.SUCCESS else []
            is_it = bool(records) and records[0].offset_msg_id == offset_msg_id.upper()
            return (name, address, records[0]) if is_it else None

        first: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for name, broker in (await self._cluster_info()).broker_addr_table.items():
            for address in broker.broker_addrs.values():
                (first if address == str(named) else others).append((name, self._dial(address)))
        for asked in filter(None, (first, others)):
            for found in await each(ask, asked):
                if found is not None:
                    return found
        if errors:
            raise errors[0]
        return None

    async def _runtime(self, address: str) -> dict[str, str]:
        """Return a broker's runtime table; one that has just started is asked again."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        for _ in range(STARTS_TRIES):
            try:
                return (await self._api.body(KVTable, address, code)).table
            except BrokerError as error:
                if STARTS not in error.remark:
                    raise
            await sleep(self._services.clock, STARTS_EVERY_S)
        return (await self._api.body(KVTable, address, code)).table

    async def _masters(
        self, cluster: str | None = None, brokers: Sequence[str] | None = None
    ) -> dict[str, str]:
        """Return name and address of the masters of a cluster, of these brokers, or of all.

        Args:
            brokers: names; an address, host:port, as it is registered means the process there,
                also a slave's.

        Raises:
            NotFound: no such cluster or broker, or a broker of that name has no master.
        """
        info = await self._cluster_info()
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise NotFound(f"there is no cluster {cluster}; known: {known}")
            names = info.cluster_addr_table[cluster]
        places: dict[str, str] = {}
        if brokers is not None:
            places = {_name_at(info, each): each for each in brokers if ":" in each}
            wanted = dict.fromkeys(
                _name_at(info, each) if ":" in each else each for each in brokers
            )
            absent = [name for name in wanted if name not in set(names)]
            if absent:
                raise NotFound(f"no broker {absent[0]} is registered with the name server")
            names = wanted
        found = {
            name: self._dial(address)
            for name in sorted(names)
            if (broker := info.broker_addr_table.get(name)) is not None
            and (address := places.get(name) or _master(broker)) is not None
        }
        if not found or (brokers is not None and len(found) < len({*names})):
            raise NotFound("no broker with a master is registered with the name server")
        return found

    async def _targets(self, cluster: str | None, brokers: Sequence[str] | None) -> dict[str, str]:
        """Return the masters that a change is meant for; with several clusters, one is named.

        Raises:
            IllegalState: the name server knows several clusters and none was named.
        """
        if cluster is None and brokers is None:
            clusters = (await self._cluster_info()).cluster_addr_table
            if len(clusters) > 1:
                raise IllegalState(
                    f"the name server knows several clusters: {', '.join(sorted(clusters))}",
                    hint="Name one of them, or the brokers",
                )
        return await self._masters(cluster, brokers)

    async def _find_place(self, topic: str, servers: list[str] | None = None) -> TopicPlace | None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answers = await self._api.all_of(
            servers or self._name_servers, code, header, accepted=FOUND_OR_NOT
        )
        routes = [
            read_body(TopicRouteData, answer, address)
            for answer, address in answers
            if answer.code == ResponseCode.SUCCESS
        ]
        if not routes:
            return None
        data = max(routes, key=lambda each: len(each.broker_datas))  # the first of the longest
        route = parse_route(topic, data, self._services.config.mapped)
        masters = {
            name: addresses[MASTER_ID]
            for name, addresses in route.brokers.items()
            if MASTER_ID in addresses
        }
        reads = tuple(queue for queue in route.subscribe_queues if queue.broker_name in masters)
        return TopicPlace(topic, data, masters, reads, route.publish_queues)

    async def _place(self, topic: str) -> TopicPlace:
        """Return where a topic lives.

        Raises:
            RouteNotFound: no name server knows it.
        """
        place = await self._find_place(topic)
        if place is None or not place.masters:
            raise RouteNotFound(
                topic, "topic_missing", "No broker with a master has told the name server of it"
            )
        return place

    async def _topic_attributes(self, address: str, topic: str) -> Mapping[str, str]:
        """Return a topic's attributes on a broker; none of one that is not SkylarkMQ."""
        if not (await self._services.peer(address)).ours:
            return {}
        header = GetTopicConfigRequestHeader(topic=topic)
        code = RequestCode.GET_TOPIC_CONFIG
        return (await self._api.body(TopicConfig, address, code, header)).attributes_map

    async def _remove_topic(
        self, topic: str, addresses: Iterable[str], cluster: str | None = None
    ) -> None:
        """Delete a topic from brokers, and let the name servers forget it."""
        header = DeleteTopicRequestHeader(topic=topic)
        await each(
            lambda address: self._api.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header),
            addresses,
        )
        forget = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await each(
            lambda server: self._api.call(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, forget),
            self._name_servers,
        )


def joined(infos: Iterable[ClusterInfo]) -> ClusterInfo:
    """Return what name servers know together; where they differ, the first counts."""
    brokers: dict[str, BrokerData] = {}
    clusters: dict[str, list[str]] = {}
    for info in infos:
        for name, data in info.broker_addr_table.items():
            first = brokers.setdefault(name, data)
            addresses = {**data.broker_addrs, **first.broker_addrs}
            brokers[name] = replace(first, broker_addrs=addresses)
        for cluster, names in info.cluster_addr_table.items():
            known = clusters.setdefault(cluster, [])
            known += [name for name in names if name not in known]
    return ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)


def _name_at(info: ClusterInfo, address: str) -> str:
    """Return the name of the broker that is registered with an address.

    Raises:
        NotFound: none is.
    """
    known = {
        place: name
        for name, data in sorted(info.broker_addr_table.items())
        for place in data.broker_addrs.values()
    }
    if address not in known:
        listed = ", ".join(known) or "none"
        raise NotFound(f"no broker is registered with the address {address}; known: {listed}")
    return known[address]


def _master(broker: BrokerData) -> str | None:
    return broker.broker_addrs.get(MASTER_ID)


def from_ms(instant_ms: int) -> datetime | None:
    """Return the time of an instant, UTC; None for 0 and below, by which brokers mean never."""
    return datetime.fromtimestamp(instant_ms / 1000, UTC) if instant_ms > 0 else None


def note_unanswered(
    unanswered: dict[str, Unanswered] | None, broker: str, address: str, error: RocketMQError
) -> None:
    """Note that a broker did not answer; raise the error when that ends the question."""
    is_silence = isinstance(error, BrokerError | ConnectionFailed | RequestTimeout)
    if unanswered is None or not is_silence or isinstance(error, TopicNotExist):
        raise error
    unanswered[broker] = Unanswered(broker, address, error)


async def ask_brokers(
    work: Callable[[str, str], Awaitable[R]],
    brokers: Mapping[str, str],
    unanswered: dict[str, Unanswered] | None = None,
) -> dict[str, R]:
    """Return what `work` gives for each broker, by name, in their order; it gets name and address.

    Args:
        unanswered: those that do not answer are noted here and left out; one that is known to be
            silent or away is not asked. None: the first one that does not answer ends it.

    Raises:
        RocketMQError: no broker answered.
    """
    found: dict[str, R] = {}
    failed: list[RocketMQError] = []

    async def ask(name: str) -> None:
        known = (unanswered or {}).get(name)
        if known is not None and not isinstance(known.error, BrokerError):
            failed.append(known.error)
            return
        try:
            found[name] = await work(name, brokers[name])
        except RocketMQError as error:
            note_unanswered(unanswered, name, brokers[name], error)
            failed.append(error)

    await each(ask, brokers)
    if failed and not found:
        raise failed[0]
    return {name: found[name] for name in brokers if name in found}


async def each(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = CALLS_MAX
) -> list[R]:
    """Return what `work` gives for each item, in their order; so many at the same time.

    The first error ends it: calls under way end first, no further one begins, then it is raised.
    Cancelled, it cancels the calls.
    """
    listed = list(items)
    if len(listed) == 1:
        return [await work(listed[0])]
    found: dict[int, R] = {}
    errors: list[Exception] = []
    remaining = iter(enumerate(listed))

    async def worker() -> None:
        for index, item in remaining:
            try:
                found[index] = await work(item)
            except Exception as error:  # raised below, once the others have ended
                errors.append(error)
            if errors:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(listed))):
            group.create_task(worker(), name="skylarkmq-admin-call")
    if errors:
        raise errors[0]
    return [found[index] for index in range(len(listed))]
