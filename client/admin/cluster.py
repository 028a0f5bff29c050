"""The cluster: its brokers, their settings and their account of themselves.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getBrokerConfig, updateBrokerConfig, getBrokerRuntimeInfo), common/.../common/MixAll.java
(properties2String)
"""

from __future__ import annotations

from collections.abc import Mapping

from skylarkmq.client.admin.base import AdminBase
from skylarkmq.client.admin.bounded import each
from skylarkmq.client.admin.results import BrokerRuntime, BrokerSummary, ClusterSummary
from skylarkmq.client.wire.api_admin import read_header
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.headers.namesrv_admin import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
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

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address.

        Raises:
            BrokerError: it does not tell them; ours do not.
        """
        code = RequestCode.GET_NAMESRV_CONFIG
        answers = await each(lambda server: self._api.call(server, code), self._name_servers)
        return {
            server: parse_properties(answer.body)
            for server, answer in zip(self._name_servers, answers, strict=True)
        }

    async def broker_runtime(self, broker: str) -> BrokerRuntime:
        """Return what a broker counts and measures.

        Raises:
            NotFound: no broker of that name is registered.
        """
        address = await self._master(broker)
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return BrokerRuntime(broker, (await self._api.body(KVTable, address, code)).table)

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
        return (await self._masters(brokers=[broker]))[broker]


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
