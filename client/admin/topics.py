"""Topics: their settings, their queues, who consumes them.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/topic/ (UpdateTopicSubCommand,
DeleteTopicSubCommand, UpdateTopicPermSubCommand)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from skylarkmq.client.admin.base import AdminBase, TopicPlace, each, from_ms
from skylarkmq.client.admin.cluster import KEPT_OR_NOT
from skylarkmq.client.admin.results import Result
from skylarkmq.client.admin.status import BrokerSummary
from skylarkmq.client.errors import (
    AlreadyExists,
    NotFound,
    NotSupported,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.wire.ask import read_body, read_header
from skylarkmq.common.settings import require_count
from skylarkmq.protocol.bodies.group import GroupList
from skylarkmq.protocol.bodies.route import QueueData, TopicList
from skylarkmq.protocol.bodies.topic import (
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    PermName,
    is_inherited,
    is_readable,
    is_system_topic,
    is_writeable,
)
from skylarkmq.protocol.headers.group import QueryTopicConsumeByWhoRequestHeader
from skylarkmq.protocol.headers.route import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    PutKVConfigRequestHeader,
)
from skylarkmq.protocol.headers.topic import (
    CreateTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.topic_attributes import (
    DeduplicationWindow,
    MessageType,
    deduplication_changes,
    deduplication_of,
    message_type_change,
)
from skylarkmq.remoting.waiting import sleep

ROUTE_POLL_S: Final = 0.05
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
PERM_LETTERS: Final = {
    "r": PermName.PERM_READ,
    "w": PermName.PERM_WRITE,
    "x": PermName.PERM_INHERIT,
}


@dataclass(frozen=True, slots=True)
class TopicSettings(Result):
    """A topic on one broker. `perm` has the letters r, w, x (inherited by topics on demand)."""

    broker: str
    read_queues: int
    write_queues: int
    perm: str
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats(Result):
    """One queue: its first readable offset, the one its next message gets, its last message."""

    queue: MessageQueue
    begin: int
    end: int
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True)
class TopicRoute(Result):
    """What name servers tell clients of a topic; `order` is `broker:queues;...` of order topics."""

    topic: str
    order: str | None
    brokers: tuple[BrokerSummary, ...]
    settings: tuple[TopicSettings, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription(Result):
    """A topic: its settings by broker, its queues, the groups that consume it."""

    topic: str
    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueStats, ...]
    groups: tuple[str, ...]

    @property
    def message_count(self) -> int:
        """Messages that can still be read."""
        return sum(queue.end - queue.begin for queue in self.queues)


class TopicAdmin(AdminBase):
    """The part of Admin for topics."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: str = "rw",
        order: bool = False,
        sys_flag: int = 0,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
        deduplication: DeduplicationWindow | None = None,
        message_type: MessageType | None = None,
    ) -> None:
        """Create a topic and wait until the name servers tell clients of it.

        Args:
            queues: to write to, on each broker.
            read_queues: to read from; default as many.
            perm: letters r, w and x (topics made on demand inherit), or "" for none of them.
            order: an order topic keeps its queues in the route while a broker is away.
            sys_flag: bits that RocketMQ keeps for units: 1 of a unit, 2 subscribed by one.
            cluster: on all its brokers; needed when the name server knows several clusters.
            brokers: on these, by name.
            exist_ok: leave a topic that is there as it is.
            deduplication: each broker stores a message of the same unique key once within it.
            message_type: what clients of RocketMQ 5 may send; SkylarkMQ's default is any. With
                PRIORITY each queue is a level of priority, the last one the highest.

        Raises:
            AlreadyExists: there is such a topic on one of the brokers.
            NotSupported: a window is wanted, and a broker is not SkylarkMQ; nothing was created.
            RequestTimeout: created, but a name server does not know it in time.
        """
        name = self._topic(topic)
        _check_counts(queues, read_queues)
        targets = await self._targets(cluster, brokers)
        place = await self._find_place(name)
        there = [] if place is None else [each for each in targets if each in place.masters]
        if there and not exist_ok:
            raise AlreadyExists(
                f"topic {topic} exists on {', '.join(there)}", hint="update_topic changes it"
            )
        absent = {broker: address for broker, address in targets.items() if broker not in there}
        if deduplication is not None:
            await self._require_windows(absent.values())
        wanted = TopicConfig(
            topic_name=name,
            write_queue_nums=queues,
            read_queue_nums=queues if read_queues is None else read_queues,
            perm=parse_perm(perm),
            order=order,
            topic_sys_flag=sys_flag,
        )
        changes = _changes(deduplication, message_type)
        await self._put_topic(dict.fromkeys(absent, wanted), absent, attributes=changes)
        await self._routed(name, set(targets))

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        perm: str | None = None,
        order: bool | None = None,
        sys_flag: int | None = None,
        brokers: Sequence[str] | None = None,
        deduplication: DeduplicationWindow | Literal[False] | None = None,
        message_type: MessageType | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the topic or on those named.

        Messages in queues that are not read stay on the disk unread. So `queues` alone lets the
        queues to read grow, never shrink: lower `queues` first, and `read_queues` once what is in
        the others is consumed.

        A topic that gets a deduplication window knows the keys of what is stored from then on;
        after a restart of its broker those of all that the window reaches back to.

        Args:
            deduplication: False takes the window away.
            message_type: what clients of RocketMQ 5 may send; MIXED is anything.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: one of `brokers` does not have it.
            NotSupported: a window is wanted, and a broker is not SkylarkMQ; nothing was changed.
        """
        name = self._topic(topic)
        _check_counts(queues, read_queues)
        place = await self._place(name)
        changes = _changes(deduplication, message_type)
        if deduplication is not None:
            chosen = place.masters if brokers is None else brokers
            await self._require_windows(
                place.masters[each] for each in chosen if each in place.masters
            )
        wanted: dict[str, TopicConfig] = {}
        was_ordered = order is not None
        if brokers is not None and any(":" in each for each in brokers):
            brokers = [*await self._masters(None, brokers)]
        for broker in place.masters if brokers is None else brokers:
            if broker not in place.masters:
                raise NotFound(f"broker {broker} has no topic {topic}")
            old = await self._topic_config(place.masters[broker], name)
            was_ordered = was_ordered or old.order
            wanted[broker] = TopicConfig(
                topic_name=name,
                write_queue_nums=old.write_queue_nums if queues is None else queues,
                read_queue_nums=read_queues_after(old.read_queue_nums, queues, read_queues),
                perm=old.perm if perm is None else parse_perm(perm),
                order=old.order if order is None else order,
                topic_filter_type=old.topic_filter_type,
                topic_sys_flag=old.topic_sys_flag if sys_flag is None else sys_flag,
            )
        await self._put_topic(wanted, place.masters, was_ordered, attributes=changes)

    async def deduplication_windows(self, topic: str) -> dict[str, DeduplicationWindow | None]:
        """Return the deduplication window of a topic on each broker; None: it has none there.

        Raises:
            RouteNotFound: there is no such topic.
        """
        found = await self.topic_attributes(topic)
        return {broker: deduplication_of(attributes) for broker, attributes in found.items()}

    async def topic_attributes(self, topic: str) -> dict[str, Mapping[str, str]]:
        """Return the attributes of a topic on each broker, such as `message.type`.

        None of a broker that is not SkylarkMQ.

        Raises:
            RouteNotFound: there is no such topic.
        """
        place = await self._place(self._topic(topic))
        return await self._ask(
            lambda _, address: self._topic_attributes(address, place.topic), place.masters
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from all brokers and name servers.

        Nothing happens to one that is not there. Producers that go on sending create it again
        where brokers create topics on demand.

        Args:
            cluster: only there.
        """
        name = self._topic(topic)
        targets = await self._masters(cluster)
        await self._remove_topic(name, targets.values(), cluster)
        if cluster is None:
            await each(lambda server: self._put_order(server, name, {}), self._name_servers)
        else:
            await self._change_order(name, dict.fromkeys(targets))
        if name not in self._services.routes.topics:
            self._services.routes.forget(name)

    async def list_topics(
        self, *, cluster: str | None = None, system: bool = False, groups: bool = False
    ) -> list[str]:
        """Return the topics' names, sorted; those of the client's namespace if it has one.

        Args:
            cluster: of one cluster.
            system: the brokers' own topics as well.
            groups: the groups' retry and dead letter topics as well.
        """
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        names: set[str] = set()
        for answer, address in await self._api.all_of(self._name_servers, code):
            names.update(read_body(TopicList, answer, address).topic_list)
        own = await self._own_topics() if not system else set[str]()
        if cluster is not None:
            configs = await self._ask(
                lambda _, address: self._topic_configs(address), await self._masters(cluster)
            )
            names &= {name for table in configs.values() for name in table}
        marks = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
        return sorted(
            self._namespace.unwrap(name)
            for name in names - own
            if self._namespace.holds(name)
            and (groups or not name.startswith(marks))
            and (system or not is_system_topic(name))
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return settings, queues and consumer groups of a topic.

        Raises:
            RouteNotFound: there is no such topic.
        """
        place = await self._place(self._topic(topic))
        header = GetTopicStatsInfoRequestHeader(topic=place.topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        tables = await self._ask(
            lambda _, address: self._api.body(TopicStatsTable, address, code, header),
            place.masters,
        )
        queues = [
            QueueStats(
                self._queue(queue),
                row.min_offset,
                row.max_offset,
                from_ms(row.last_update_timestamp),
            )
            for table in tables.values()
            for queue, row in table.offset_table
        ]
        return TopicDescription(
            topic,
            tuple(_settings(data, place) for data in place.data.queue_datas),
            tuple(sorted(queues, key=lambda stats: stats.queue)),
            tuple(await self._groups_of(place)),
        )

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return what name servers tell clients of a topic: its brokers, slaves too, and queues.

        Raises:
            RouteNotFound: there is no such topic.
        """
        place = await self._place(self._topic(topic))
        return TopicRoute(
            topic,
            place.data.order_topic_conf,
            tuple(
                BrokerSummary(
                    each.broker_name, each.cluster, dict(sorted(each.broker_addrs.items()))
                )
                for each in sorted(place.data.broker_datas, key=lambda data: data.broker_name)
            ),
            tuple(
                _settings(data, place)
                for data in sorted(place.data.queue_datas, key=lambda data: data.broker_name)
            ),
        )

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that have consumed or consume a topic.

        Raises:
            RouteNotFound: there is no such topic.
        """
        return await self._groups_of(await self._place(self._topic(topic)))

    # Inside

    async def _groups_of(self, place: TopicPlace) -> list[str]:
        header = QueryTopicConsumeByWhoRequestHeader(topic=place.topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        lists = await self._ask(
            lambda _, address: self._api.body(GroupList, address, code, header), place.masters
        )
        return sorted(
            {self._namespace.unwrap(name) for found in lists.values() for name in found.group_list}
        )

    async def _topic_configs(self, address: str) -> Mapping[str, TopicConfig]:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return (await self._api.body(TopicConfigSerializeWrapper, address, code)).topic_config_table

    async def _topic_config(self, address: str, topic: str) -> TopicConfig:
        config = (await self._topic_configs(address)).get(topic)
        if config is None:
            raise NotFound(f"{address} has no topic {topic}")
        return config

    async def _own_topics(self) -> set[str]:
        """Return the brokers' own topics; brokers and clusters have one of their name each."""
        info = await self._cluster_info()
        names = {AUTO_CREATE_TOPIC_KEY_TOPIC, *info.broker_addr_table, *info.cluster_addr_table}
        return names | {f"{cluster}_REPLY_TOPIC" for cluster in info.cluster_addr_table}

    async def _require_windows(self, addresses: Iterable[str]) -> None:
        """Check that brokers have deduplication windows; RocketMQ 4.9 would say nothing."""
        for address in addresses:
            peer = await self._services.peer(address)
            if not peer.ours:
                raise NotSupported(
                    f"{address} is {peer.release}, which has no deduplication windows",
                    hint="Leave deduplication out there, and name the brokers that have them",
                )

    async def _put_topic(
        self,
        wanted: Mapping[str, TopicConfig],
        addresses: Mapping[str, str],
        was_ordered: bool = False,
        attributes: str | None = None,
    ) -> None:
        async def put(broker: str) -> None:
            config = wanted[broker]
            header = CreateTopicRequestHeader(
                topic=config.topic_name,
                default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=attributes,
            )
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await self._api.call(addresses[broker], code, header)

        await each(put, wanted)
        if was_ordered or any(config.order for config in wanted.values()):
            changes = {
                broker: config.write_queue_nums if config.order else None
                for broker, config in wanted.items()
            }
            await self._change_order(next(iter(wanted.values())).topic_name, changes)

    async def _change_order(self, topic: str, changes: Mapping[str, int | None]) -> None:
        """Change the queues that name servers keep of an order topic, on these brokers alone."""

        async def change(server: str) -> None:
            header = GetKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic)
            code = RequestCode.GET_KV_CONFIG
            answer = await self._api.call(server, code, header, accepted=KEPT_OR_NOT)
            value = None
            if answer.code == ResponseCode.SUCCESS:
                value = read_header(GetKVConfigResponseHeader, answer, server).value
            pairs = [pair.rpartition(":") for pair in (value or "").split(";") if pair]
            old = {name: count for name, _, count in pairs}
            new = {name: str(count) for name, count in changes.items() if count is not None}
            kept = {name: count for name, count in old.items() if name not in changes}
            if old != kept | new:
                await self._put_order(server, topic, kept | new)

        await each(change, self._name_servers)

    async def _put_order(self, server: str, topic: str, counts: Mapping[str, str]) -> None:
        if counts:
            text = ";".join(f"{name}:{counts[name]}" for name in sorted(counts))
            header = PutKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic, value=text)
            await self._api.call(server, RequestCode.PUT_KV_CONFIG, header)
        else:
            gone = DeleteKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic)
            await self._api.call(server, RequestCode.DELETE_KV_CONFIG, gone)

    async def _routed(self, topic: str, brokers: set[str]) -> None:
        """Wait until every name server that can be asked knows the topic on these brokers."""
        clock = self._services.clock
        deadline_s = clock.monotonic() + self._timeout_s
        waiting, answered = list(self._name_servers), 0
        while waiting:
            server = waiting[0]
            try:
                place = await self._find_place(topic, [server])
            except RocketMQError:
                del waiting[0]
                if not waiting and not answered:
                    raise
                continue
            if place is not None and brokers <= place.masters.keys():
                del waiting[0]
                answered += 1
                continue
            if clock.monotonic() >= deadline_s:
                raise RequestTimeout(
                    f"topic {topic} is created, but after {self._timeout_s:g} s the name server "
                    f"{server} does not know it"
                )
            await sleep(clock, ROUTE_POLL_S)
        if topic in self._services.routes.topics:
            await self._services.routes.refresh(topic)


def read_queues_after(before: int, queues: int | None, read_queues: int | None) -> int:
    """Return how many queues of a topic are read after `update_topic` with these arguments."""
    return max(before, queues or 0) if read_queues is None else read_queues


def parse_perm(text: str) -> int:
    """Return the permission bits of letters, in any order and case.

    Raises:
        ValueError: another letter.
    """
    bits = 0
    for letter in text.lower():
        if letter not in PERM_LETTERS:
            raise ValueError(f"perm {text!r} has a letter other than r, w and x")
        bits |= PERM_LETTERS[letter]
    return bits


def perm_letters(perm: int) -> str:
    """Return permission bits as letters."""
    marks = (("r", is_readable), ("w", is_writeable), ("x", is_inherited))
    return "".join(letter for letter, test in marks if test(perm))


def _settings(data: QueueData, place: TopicPlace) -> TopicSettings:
    return TopicSettings(
        broker=data.broker_name,
        read_queues=data.read_queue_nums,
        write_queues=data.write_queue_nums,
        perm=perm_letters(data.perm),
        order=place.data.order_topic_conf is not None,
        sys_flag=data.topic_sys_flag,
    )


def _check_counts(queues: int | None, read_queues: int | None) -> None:
    for name, count in (("queues", queues), ("read_queues", read_queues)):
        if count is not None:
            require_count(name, count)


def _changes(
    window: DeduplicationWindow | Literal[False] | None, message_type: MessageType | None
) -> str | None:
    """Return the changes of a topic's attributes; None: there is none."""
    changes: list[str] = []
    if window is not None:
        changes.append(deduplication_changes(window or None))
    if message_type is not None:
        changes.append(message_type_change(message_type))
    return ",".join(changes) or None
