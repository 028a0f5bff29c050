"""The cluster: its name servers and brokers, their settings, and how they are.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getBrokerConfig, updateBrokerConfig, getBrokerRuntimeInfo), common/.../common/MixAll.java
(properties2String), tools/.../command/cluster/ClusterListSubCommand.java
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from skylarkmq.client.admin.base import AdminBase, each, from_ms, joined
from skylarkmq.client.admin.results import why
from skylarkmq.client.admin.status import (
    BEHIND_MAX,
    DISK_MAX,
    BrokerRuntime,
    BrokerStatus,
    BrokerSummary,
    ClusterStatus,
    ClusterSummary,
    FailoverStatus,
    NameServerStatus,
    OtherReplica,
    Problem,
    ReplicaStatus,
    Span,
    Statistic,
)
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.client.wire.ask import read_body, read_header
from skylarkmq.protocol.bodies.replica import OtherReplicaBody, ReplicaStatusBody
from skylarkmq.protocol.bodies.route import BrokerData, ClusterInfo, KVTable
from skylarkmq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.headers.route import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from skylarkmq.protocol.headers.topic import ViewBrokerStatsDataRequestHeader

KEPT_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
COUNTED_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
REPLICA_OR_NOT: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),  # Apache's, and our older ones
        int(ResponseCode.ILLEGAL_OPERATION),
    }
)


class ClusterAdmin(AdminBase):
    """The part of Admin for brokers and name servers."""

    async def cluster(self) -> ClusterSummary:
        """Return the brokers that are registered."""
        table = (await self._cluster_info()).broker_addr_table
        brokers = [
            BrokerSummary(each.broker_name, each.cluster, dict(sorted(each.broker_addrs.items())))
            for _, each in sorted(table.items())
        ]
        return ClusterSummary(tuple(self._name_servers), tuple(brokers))

    async def cluster_status(self) -> ClusterStatus:
        """Ask every name server and every broker, slaves too, how it is.

        Who does not answer within the time limit stands in the result with the reason; with
        access control it wants an admin's credentials.

        Raises:
            RocketMQError: no name server answered.
        """
        answers = await each(self._ask_name_server, self._name_servers)
        known = [info for _, info in answers if info is not None]
        info = joined(known) if known else await self._cluster_info()  # which says why
        table = sorted(info.broker_addr_table.items())
        brokers = await each(lambda row: self._ask_broker(*row), table)
        return ClusterStatus(tuple(server for server, _ in answers), tuple(brokers))

    async def cluster_health(
        self, *, behind_max: int = BEHIND_MAX, disk_max: float = DISK_MAX
    ) -> tuple[Problem, ...]:
        """Return what is wrong with the cluster, each with its cure; empty: all is well.

        Args:
            behind_max: bytes that a slave may lack.
            disk_max: part of a disk that may be used, 0 to 1.

        Raises:
            RocketMQError: no name server answered.
        """
        status = await self.cluster_status()
        return status.problems(behind_max=behind_max, disk_max=disk_max)

    async def _ask_name_server(self, server: str) -> tuple[NameServerStatus, ClusterInfo | None]:
        try:
            info = await self._api.body(ClusterInfo, server, RequestCode.GET_BROKER_CLUSTER_INFO)
        except RocketMQError as error:
            return NameServerStatus(server, str(error), {}), None
        known = {
            name: tuple(sorted(data.broker_addrs))
            for name, data in sorted(info.broker_addr_table.items())
        }
        return NameServerStatus(server, None, known), info

    async def _ask_broker(self, name: str, data: BrokerData) -> BrokerStatus:
        places = sorted(data.broker_addrs.items())
        replicas = await each(lambda place: self._ask_replica(*place), places)
        return BrokerStatus(name, data.cluster, tuple(replicas))

    async def _ask_replica(self, broker_id: int, address: str) -> ReplicaStatus:
        try:
            table = await self._runtime(self._dial(address))
            failover = await self._ask_failover(address)
        except RocketMQError as error:
            return ReplicaStatus(broker_id, address, str(error), why=why(error))
        return ReplicaStatus(
            broker_id,
            address,
            error=None,
            version=table.get("brokerVersionDesc", ""),
            log_begin=_number(table, "commitLogMinOffset"),
            log_end=_number(table, "commitLogMaxOffset"),
            disk_used=_ratio(table, "commitLogDiskRatio"),
            started_at=from_ms(_number(table, "bootTimestamp") or 0),
            failover=failover,
        )

    async def _ask_failover(self, address: str) -> FailoverStatus | None:
        """Return what a replica tells that elects its master; None: this broker is none."""
        dialled, code = self._dial(address), RequestCode.GET_REPLICA_STATUS
        answer = await self._api.call(dialled, code, accepted=REPLICA_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return _failover_status(read_body(ReplicaStatusBody, answer, dialled))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return all settings of a broker by RocketMQ's names.

        Raises:
            NotFound: no broker of that name is registered.
        """
        answer = await self._api.call(await self._master(broker), RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body)

    async def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs; it writes them into its file.

        A key that takes effect at the next start only is taken all the same; one that may not be
        changed is refused, and then nothing is changed.

        Raises:
            NotFound: no broker of that name is registered.
            BrokerError: an unknown key, a bad value, or one that is not to be changed.
            ValueError: a name or value that has no place in one line.
        """
        body = properties_text(changes)
        address = await self._master(broker)
        await self._api.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def set_name_server_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers while they run; they write them into their files.

        Raises:
            BrokerError: a name server does not take them; ours take no key while they run.
            ValueError: a name or value that has no place in one line.
        """
        body, code = properties_text(changes), RequestCode.UPDATE_NAMESRV_CONFIG
        await each(lambda server: self._api.call(server, code, body=body), self._name_servers)

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address.

        Raises:
            BrokerError: it does not tell them.
        """
        code = RequestCode.GET_NAMESRV_CONFIG
        answers = await each(lambda server: self._api.call(server, code), self._name_servers)
        return {
            server: parse_properties(answer.body)
            for server, answer in zip(self._name_servers, answers, strict=True)
        }

    async def broker_runtime(self, broker: str, *, broker_id: int = MASTER_ID) -> BrokerRuntime:
        """Return what a broker counts and measures.

        Args:
            broker: its name; or the address of a process, host:port, whatever its id.
            broker_id: of a slave; default: the master.

        Raises:
            NotFound: no broker of that name and id, or address, is registered.
        """
        if ":" in broker:
            address = await self._master(broker)
        else:
            data = (await self._cluster_info()).broker_addr_table.get(broker)
            if data is None or broker_id not in data.broker_addrs:
                raise NotFound(f"no broker {broker} with the id {broker_id} is registered")
            address = self._dial(data.broker_addrs[broker_id])
        return BrokerRuntime(broker, await self._runtime(address))

    async def kept_texts(self, namespace: str) -> dict[str, str]:
        """Return what the name servers keep in a namespace, by key; nothing is no error.

        `ORDER_TOPIC_CONFIG` has the queues of order topics. Where name servers differ, the first
        counts.
        """
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        answers = await self._api.all_of(self._name_servers, code, header, accepted=KEPT_OR_NOT)
        found: dict[str, str] = {}
        for answer, server in answers:
            if answer.code == ResponseCode.SUCCESS:
                found = {**read_body(KVTable, answer, server).table, **found}
        return found

    async def keep_text(self, namespace: str, key: str, value: str | None) -> None:
        """Let all name servers keep a text; None: forget it."""
        if value is None:
            gone = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
            code = RequestCode.DELETE_KV_CONFIG
            await each(lambda server: self._api.call(server, code, gone), self._name_servers)
        else:
            kept = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
            code = RequestCode.PUT_KV_CONFIG
            await each(lambda server: self._api.call(server, code, kept), self._name_servers)

    async def statistic(
        self, name: str, key: str, *, brokers: Sequence[str] | None = None
    ) -> tuple[Statistic, ...]:
        """Return what brokers count under a name; who has counted nothing of it is left out.

        Args:
            name: as RocketMQ calls it: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS
                and GROUP_GET_SIZE by topic@group, BROKER_PUT_NUMS by cluster.
            key: of what; names as brokers know them, with the namespace.
            brokers: by name; default all.
        """
        targets = await self._masters(None, brokers)
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        code = RequestCode.VIEW_BROKER_STATS_DATA
        answers = await self._ask(
            lambda _, address: self._api.call(address, code, header, accepted=COUNTED_OR_NOT),
            targets,
        )
        return tuple(
            _statistic(broker, read_body(BrokerStatsData, answer, targets[broker]))
            for broker, answer in answers.items()
            if answer.code == ResponseCode.SUCCESS
        )

    async def stop_writes(self, broker: str) -> int:
        """Let name servers tell clients not to send to a broker; return how many topics changed.

        It lasts until `allow_writes`, or until the broker registers its topics anew (a change of a
        topic, a restart).
        """
        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker)
        counts: list[int] = []
        for server in self._name_servers:
            answer = await self._api.call(server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            kind = WipeWritePermOfBrokerResponseHeader
            counts.append(read_header(kind, answer, server).wipe_topic_count)
        return max(counts)

    async def allow_writes(self, broker: str) -> int:
        """Undo `stop_writes`; return how many topics changed."""
        header = AddWritePermOfBrokerRequestHeader(broker_name=broker)
        counts: list[int] = []
        for server in self._name_servers:
            answer = await self._api.call(server, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
            kind = AddWritePermOfBrokerResponseHeader
            counts.append(read_header(kind, answer, server).add_topic_count)
        return max(counts)

    async def _master(self, broker: str) -> str:
        (address,) = (await self._masters(brokers=[broker])).values()
        return address


def _statistic(broker: str, body: BrokerStatsData) -> Statistic:
    def span(item: BrokerStatsItem) -> Span:
        return Span(item.sum, item.tps, item.avgpt)

    spans = (body.stats_minute, body.stats_hour, body.stats_day)
    return Statistic(broker, *map(span, spans))


def _failover_status(body: ReplicaStatusBody) -> FailoverStatus:
    def other(each: OtherReplicaBody) -> OtherReplica:
        behind = max(0, body.end - each.durable_end) if found.leads else None
        return OtherReplica(each.replica, each.broker_id, each.address, each.alive, behind)

    found = FailoverStatus(
        replica=body.replica,
        broker_id=body.broker_id,
        state=body.state,
        term=body.term,
        master=body.master,
        in_sync=tuple(body.in_sync),
        min_in_sync=body.min_in_sync,
        log_end=body.end,
        durable_end=body.durable_end,
        confirmed=body.confirmed,
        mastership_changes=body.mastership_changes,
        is_engine_reachable=body.engine_reachable,
        halted=body.halted,
        others=(),
    )
    return replace(found, others=tuple(other(each) for each in body.others))


def _number(table: Mapping[str, str], key: str) -> int | None:
    """Return a whole number that a broker told; None: it did not."""
    try:
        return int(table[key])
    except (KeyError, ValueError):
        return None


def _ratio(table: Mapping[str, str], key: str) -> float | None:
    """Return a part of 1 that a broker told; None: it did not, or it does not know (-1)."""
    try:
        ratio = float(table[key])
    except (KeyError, ValueError):
        return None
    return ratio if 0 <= ratio <= 1 else None


def parse_properties(body: bytes) -> dict[str, str]:
    """Return settings as brokers write them: `key=value`, a line each, nothing escaped."""
    found: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() and not key.lstrip().startswith("#"):
            found[key.strip()] = value.strip()
    return found


def properties_text(changes: Mapping[str, str]) -> bytes:
    """Return settings as brokers read them: Java's properties, where a backslash escapes.

    Raises:
        ValueError: no change at all, or a line's end inside.
    """
    if not changes:
        raise ValueError("there is nothing to change")
    lines: list[str] = []
    for key, value in changes.items():
        if not key or any(mark in key + value for mark in "\r\n") or set(key) & set("=: #!\\"):
            raise ValueError(f"{key!r} and its value do not fit into one line")
        lines.append(f"{key}={value.replace(chr(92), chr(92) * 2)}\n")
    return "".join(lines).encode("utf-8")
