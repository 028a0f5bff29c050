"""Who is connected: producers, consumers, and what a member of a group is doing.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../admin/DefaultMQAdminExtImpl.java
(examineConsumerConnectionInfo, examineProducerConnectionInfo, getConsumerRunningInfo,
consumeMessageDirectly)
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylarkmq.client.admin.base import AdminBase
from skylarkmq.client.admin.bounded import each
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupMembers,
    MemberInfo,
    MemberQueue,
    SubscriptionSummary,
)
from skylarkmq.client.errors import NotFound
from skylarkmq.client.wire.api_admin import read_body
from skylarkmq.protocol.bodies.group_admin import (
    ConnectionBody,
    ConsumerConnection,
    ProducerConnection,
    ProducerTableInfo,
)
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.bodies.push import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from skylarkmq.protocol.headers.group_admin import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from skylarkmq.protocol.message_id import decode_offset_message_id

RELAY_TIMEOUT_S: Final = 12.0
"""A broker waits ten seconds for a member's answer."""
MEMBERS_OR_NONE: Final = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.CONSUMER_NOT_ONLINE)}
)
PRODUCERS_OR_NONE: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
Found = dict[str, tuple[ConnectionBody, list[str]]]


class ConnectionsAdmin(AdminBase):
    """The part of Admin for clients."""

    async def consumers(self, group: str) -> GroupMembers:
        """Return the members of a consumer group, over all brokers; none is no error."""
        targets = await self._masters()
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._group(group))
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answers = await each(
            lambda address: self._api.call(address, code, header, accepted=MEMBERS_OR_NONE),
            targets.values(),
        )
        bodies = {
            broker: read_body(ConsumerConnection, answer, targets[broker])
            for broker, answer in zip(targets, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }
        found: Found = {}
        for broker, body in bodies.items():
            _gather(found, broker, body.connection_set)
        if not bodies:
            return GroupMembers(group, ())
        first = next(iter(bodies.values()))
        subscriptions = {
            topic: data
            for body in bodies.values()
            for topic, data in body.subscription_table.items()
        }
        differing = {
            member.client_id
            for body in bodies.values()
            if body.differing_members is not msgspec.UNSET
            for member in body.differing_members
        }
        return GroupMembers(
            group,
            _connections(found),
            first.message_model,
            first.consume_type,
            first.consume_from_where,
            self._subscriptions(list(subscriptions.values())),
            tuple(sorted(differing)),
        )

    async def producers(self, group: str) -> list[Connection]:
        """Return the clients of a producer group, over all brokers; none is no error."""
        targets = await self._masters()
        header = GetProducerConnectionListRequestHeader(producer_group=self.names.wrap(group))
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answers = await each(
            lambda address: self._api.call(address, code, header, accepted=PRODUCERS_OR_NONE),
            targets.values(),
        )
        found: Found = {}
        for broker, answer in zip(targets, answers, strict=True):
            if answer.code == ResponseCode.SUCCESS:
                body = read_body(ProducerConnection, answer, targets[broker])
                _gather(found, broker, body.connection_set)
        return list(_connections(found))

    async def producer_groups(self) -> dict[str, list[Connection]]:
        """Return all producers by group, over all brokers."""
        targets = await self._masters()
        code = RequestCode.GET_ALL_PRODUCER_INFO
        bodies = await each(
            lambda address: self._api.body(ProducerTableInfo, address, code), targets.values()
        )
        groups: dict[str, Found] = {}
        for broker, body in zip(targets, bodies, strict=True):
            for group, clients in body.data.items():
                rows = [
                    ConnectionBody(
                        client_addr=client.remote_ip.lstrip("/"),
                        client_id=client.client_id,
                        language=client.language,
                        version=client.version,
                    )
                    for client in clients
                ]
                _gather(groups.setdefault(group, {}), broker, rows)
        return {
            self.names.unwrap(group): list(_connections(found))
            for group, found in sorted(groups.items())
            if self.names.holds(group)
        }

    async def member_info(self, group: str, client_id: str, *, stack: bool = False) -> MemberInfo:
        """Ask a member of a group, through its broker, what it is doing.

        Args:
            stack: with the stacks of its threads, from Java clients.

        Raises:
            NotFound: no member of that name is connected.
            BrokerError: it did not answer the broker in time.
        """
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=self._group(group), client_id=client_id, jstack_enable=stack
        )
        info = await self._api.body(
            ConsumerRunningInfo,
            await self._broker_of(group, client_id),
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            header,
            timeout_s=max(RELAY_TIMEOUT_S, self._timeout_s),
        )
        queues = sorted(info.mq_table, key=lambda row: (row[0].topic, row[0].queue_id))
        return MemberInfo(
            client_id,
            info.properties,
            self._subscriptions(info.subscription_set),
            tuple(MemberQueue(self._queue(key), msgspec.to_builtins(row)) for key, row in queues),
            {
                self.names.unwrap(topic): msgspec.to_builtins(row)
                for topic, row in info.status_table.items()
            },
            info.jstack,
        )

    async def consume_directly(
        self, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumedDirectly:
        """Let one member consume one message now, whatever the group's offsets are.

        Args:
            offset_msg_id: names the broker that keeps the message and its place there.

        Raises:
            BrokerError: the message is gone, no such member is connected to its broker, or it did
                not answer the broker in time.
            ValueError: no offset id.
        """
        try:
            host, _ = decode_offset_message_id(offset_msg_id)
        except RemoteProtocolError as error:
            raise ValueError(error.remark) from error
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=self._group(group), client_id=client_id, msg_id=offset_msg_id
        )
        result = await self._api.body(
            ConsumeMessageDirectlyResult,
            self._dial(str(host)),
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_s=max(RELAY_TIMEOUT_S, self._timeout_s),
        )
        return ConsumedDirectly(
            result.consume_result or "", result.remark or "", result.spent_time_mills
        )

    # Inside

    async def _broker_of(self, group: str, client_id: str) -> str:
        members = (await self.consumers(group)).members
        for member in members:
            if member.client_id == client_id:
                return (await self._masters(brokers=member.brokers[:1]))[member.brokers[0]]
        known = ", ".join(member.client_id for member in members) or "none"
        raise NotFound(f"group {group} has no member {client_id}; connected: {known}")

    def _subscriptions(self, datas: list[SubscriptionData]) -> tuple[SubscriptionSummary, ...]:
        return tuple(
            SubscriptionSummary(
                self.names.unwrap(data.topic), data.sub_string, data.expression_type
            )
            for data in sorted(datas, key=lambda data: data.topic)
        )


def _gather(found: Found, broker: str, rows: list[ConnectionBody]) -> None:
    for row in rows:
        found.setdefault(row.client_id, (row, []))[1].append(broker)


def _connections(found: Found) -> tuple[Connection, ...]:
    return tuple(
        Connection(client_id, row.client_addr, row.language or "OTHER", row.version, tuple(brokers))
        for client_id, (row, brokers) in sorted(found.items())
    )
