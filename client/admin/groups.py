"""Consumer groups: create, change, delete, describe; who is in them; how far they are.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/consumer/ (UpdateSubGroupSubCommand,
DeleteSubscriptionGroupCommand, ConsumerProgressSubCommand), tools/.../admin/
DefaultMQAdminExtImpl.java (examineConsumerConnectionInfo, examineProducerConnectionInfo,
getConsumerRunningInfo, consumeMessageDirectly)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
from msgspec.structs import replace as replace_fields

from skylarkmq.client.admin.base import each, from_ms
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    MemberInfo,
    MemberQueue,
    MessageTrack,
    QueueProgress,
    SubscriptionSummary,
)
from skylarkmq.client.admin.topics import TopicAdmin
from skylarkmq.client.errors import AlreadyExists, AuthError, NotFound
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.wire.ask import read_body
from skylarkmq.protocol.bodies.group import (
    ConnectionBody,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProducerConnection,
    ProducerTableInfo,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from skylarkmq.protocol.bodies.stats import ReadConsumeStatsList
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_PREFIX,
    FILTERSRV_CONSUMER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    TOOLS_CONSUMER_GROUP,
    dlq_topic,
    retry_topic,
)
from skylarkmq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from skylarkmq.protocol.headers.topic import GetConsumeStatsInBrokerHeader
from skylarkmq.protocol.message_id import decode_offset_message_id

OWN_GROUPS: Final = frozenset(
    {TOOLS_CONSUMER_GROUP, FILTERSRV_CONSUMER_GROUP, SELF_TEST_CONSUMER_GROUP, "__MONITOR_CONSUMER"}
)
OWN_PREFIXES: Final = (CID_RMQ_SYS_PREFIX, "CID_ONS")
RELAY_TIMEOUT_S: Final = 12.0
"""A broker waits ten seconds for a member's answer."""
MEMBERS_OR_NONE: Final = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.CONSUMER_NOT_ONLINE)}
)
GROUP_OR_NONE: Final = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)}
)
PRODUCERS_OR_NONE: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
Found = dict[str, tuple[ConnectionBody, list[str]]]


class GroupAdmin(TopicAdmin):
    """The part of Admin for groups: settings, members, progress, and where they stand."""

    async def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        from_min_enabled: bool = True,
        notify_members: bool = True,
        orderly: bool = False,
        broker_id: int = 0,
        broker_id_when_slow: int = 1,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a consumer group; needed only where brokers create none on demand.

        Args:
            retry_queues: of its retry topic, when the first consumer makes it; `update_topic` of
                `%RETRY%group` gives it others. 0: a message that is handed back is gone.
            max_retries: for members that do not name a number of their own.
            notify_members: tell them at once who comes and goes.
            orderly: those who pop get a queue's messages one batch after the other.
            broker_id, broker_id_when_slow: where members read: as long as they keep up, and when
                they are behind; 0 is the master.
            cluster, brokers: where; see `create_topic`.
            exist_ok: leave a group that is there as it is.

        Raises:
            AlreadyExists: there is such a group on one of the brokers.
        """
        name = self._group(group)
        targets = await self._targets(cluster, brokers)
        configs = await self._configs(name, targets)
        there = [broker for broker, config in configs.items() if config is not None]
        if there and not exist_ok:
            raise AlreadyExists(
                f"group {group} exists on {', '.join(there)}", hint="update_group changes it"
            )
        wanted = SubscriptionGroupConfig(
            group_name=name,
            retry_queue_nums=retry_queues,
            retry_max_times=max_retries,
            consume_enable=consume_enabled,
            consume_broadcast_enable=broadcast_enabled,
            consume_from_min_enable=from_min_enabled,
            notify_consumer_ids_changed_enable=notify_members,
            consume_message_orderly=orderly or msgspec.UNSET,
            broker_id=broker_id,
            which_broker_when_consume_slowly=broker_id_when_slow,
        )
        absent = [address for broker, address in targets.items() if broker not in there]
        await self._put_group([(address, wanted) for address in absent])

    async def update_group(
        self,
        group: str,
        *,
        retry_queues: int | None = None,
        max_retries: int | None = None,
        consume_enabled: bool | None = None,
        broadcast_enabled: bool | None = None,
        from_min_enabled: bool | None = None,
        notify_members: bool | None = None,
        orderly: bool | None = None,
        broker_id: int | None = None,
        broker_id_when_slow: int | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the group or on those named.

        Raises:
            NotFound: no broker, or one of `brokers`, has it.
        """
        name = self._group(group)
        targets = await self._masters(cluster, brokers)
        configs = await self._configs(name, targets)
        absent = [broker for broker, config in configs.items() if config is None]
        if len(absent) == len(configs) or (brokers is not None and absent):
            raise NotFound(f"broker {absent[0]} has no group {group}")
        changes = {
            "retry_queue_nums": retry_queues,
            "retry_max_times": max_retries,
            "consume_enable": consume_enabled,
            "consume_broadcast_enable": broadcast_enabled,
            "consume_from_min_enable": from_min_enabled,
            "notify_consumer_ids_changed_enable": notify_members,
            "consume_message_orderly": orderly,
            "broker_id": broker_id,
            "which_broker_when_consume_slowly": broker_id_when_slow,
        }
        await self._put_group(
            [
                (targets[broker], _changed(config, changes))
                for broker, config in configs.items()
                if config is not None
            ]
        )

    async def delete_group(
        self,
        group: str,
        *,
        remove_offsets: bool = True,
        remove_messages: bool = False,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Delete a group from brokers, default all. Nothing happens to one that is not there.

        A member that is connected brings it back with its next heartbeat.

        Args:
            remove_offsets: forget where it stands, too.
            remove_messages: delete its retry topic and its dead letters, too.
        """
        name = self._group(group)
        targets = list((await self._masters(cluster, brokers)).values())
        if remove_messages:  # first, as pulls that wait there would bring the group back
            for topic in (retry_topic(name), dlq_topic(name)):
                await self._remove_topic(topic, targets)
        header = DeleteSubscriptionGroupRequestHeader(group_name=name, remove_offset=remove_offsets)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        await each(lambda address: self._api.call(address, code, header), targets)

    async def list_groups(self, *, system: bool = False) -> list[str]:
        """Return the consumer groups that brokers know, sorted; of the client's namespace only.

        Args:
            system: the brokers' and tools' own groups as well.
        """
        tables = await self._ask(self._group_table, await self._masters())
        return sorted(
            {
                self._namespace.unwrap(name)
                for table in tables.values()
                for name in table
                if self._namespace.holds(name)
                and (system or not (name in OWN_GROUPS or name.startswith(OWN_PREFIXES)))
            }
        )

    async def describe_group(self, group: str) -> GroupDescription:
        """Return settings and members of a group.

        Raises:
            NotFound: no broker has it.
        """
        configs = await self._configs(self._group(group), await self._masters())
        found = [_settings(broker, config) for broker, config in configs.items() if config]
        if not found:
            raise _no_group(group)
        return GroupDescription(group, tuple(found), await self.consumers(group))

    async def broker_progress(
        self, broker: str, *, order_only: bool = False
    ) -> tuple[GroupProgress, ...]:
        """Return how far all groups of one broker are there, of the client's namespace only.

        Args:
            order_only: in order topics alone.

        Raises:
            NotFound: no broker of that name is registered.
        """
        (address,) = (await self._masters(brokers=[broker])).values()
        header = GetConsumeStatsInBrokerHeader(is_order=order_only)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        body = await self._api.body(ReadConsumeStatsList, address, code, header)
        tables = {group: some for row in body.consume_stats_list for group, some in row.items()}
        return tuple(
            self._progress(self._namespace.unwrap(group), tables[group])
            for group in sorted(tables)
            if self._namespace.holds(group)
        )

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far a group is in every queue it has consumed, or in those of one topic.

        Its retry topic counts, too; not so for broadcasting groups, whose offsets are with their
        members.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: there is no such group.
        """
        name = self._group(group)
        if topic is None:
            targets = await self._masters()
        else:
            targets = (await self._place(self._topic(topic))).masters
        wanted = [None if topic is None else self._topic(topic)]
        if topic is None:
            wanted.append(retry_topic(name))  # only in its table once something of it is done

        async def stats(_: str, address: str) -> list[ConsumeStats]:
            return await each(lambda one: self._consume_stats(address, name, one), wanted)

        told = (await self._ask(stats, targets)).values()
        found = self._progress(group, [table for tables in told for table in tables])
        if not found.queues:
            await self._require_group(group)
        return replace(found, tps=sum(tables[0].consume_tps for tables in told))

    # Inside: settings and progress

    def _progress(self, group: str, tables: Sequence[ConsumeStats]) -> GroupProgress:
        rows = {self._queue(queue): row for table in tables for queue, row in table.offset_table}
        queues = (
            QueueProgress(
                queue, row.consumer_offset, row.broker_offset, from_ms(row.last_timestamp)
            )
            for queue, row in sorted(rows.items())
        )
        return GroupProgress(group, sum(table.consume_tps for table in tables), tuple(queues))

    async def _consume_stats(self, address: str, group: str, topic: str | None) -> ConsumeStats:
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        return await self._api.body(ConsumeStats, address, RequestCode.GET_CONSUME_STATS, header)

    async def _group_table(self, _: str, address: str) -> Mapping[str, SubscriptionGroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = await self._api.body(SubscriptionGroupWrapper, address, code)
        return body.subscription_group_table

    async def _require_group(self, group: str) -> None:
        """Raise NotFound when no broker has that group; `group` as the application knows it."""
        if not any((await self._configs(self._group(group), await self._masters())).values()):
            raise _no_group(group)

    async def _configs(
        self, group: str, targets: Mapping[str, str]
    ) -> dict[str, SubscriptionGroupConfig | None]:
        return await self._ask(lambda _, address: self._config(group, address), targets)

    async def _config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        try:
            return (await self._group_table("", address)).get(group)
        except AuthError:  # the whole table; an account may know of its own group alone
            header = GetSubscriptionGroupConfigRequestHeader(group=group)
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._api.call(address, code, header, accepted=GROUP_OR_NONE)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return read_body(SubscriptionGroupConfig, answer, address)

    async def _put_group(self, wanted: Sequence[tuple[str, SubscriptionGroupConfig]]) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await each(lambda one: self._api.call(one[0], code, body=encode_body(one[1])), wanted)

    async def consumers(self, group: str) -> GroupMembers:
        """Return the members of a consumer group, over all brokers; none is no error."""
        targets = await self._masters()
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._group(group))
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answers = await self._ask(
            lambda _, address: self._api.call(address, code, header, accepted=MEMBERS_OR_NONE),
            targets,
        )
        bodies = {
            broker: read_body(ConsumerConnection, answer, targets[broker])
            for broker, answer in answers.items()
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
        header = GetProducerConnectionListRequestHeader(producer_group=self._namespace.wrap(group))
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answers = await self._ask(
            lambda _, address: self._api.call(address, code, header, accepted=PRODUCERS_OR_NONE),
            targets,
        )
        found: Found = {}
        for broker, answer in answers.items():
            if answer.code == ResponseCode.SUCCESS:
                body = read_body(ProducerConnection, answer, targets[broker])
                _gather(found, broker, body.connection_set)
        return list(_connections(found))

    async def producer_groups(self) -> dict[str, list[Connection]]:
        """Return all producers by group, over all brokers."""
        code = RequestCode.GET_ALL_PRODUCER_INFO
        bodies = await self._ask(
            lambda _, address: self._api.body(ProducerTableInfo, address, code),
            await self._masters(),
        )
        groups: dict[str, Found] = {}
        for broker, body in bodies.items():
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
            self._namespace.unwrap(group): list(_connections(found))
            for group, found in sorted(groups.items())
            if self._namespace.holds(group)
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
                self._namespace.unwrap(topic): msgspec.to_builtins(row)
                for topic, row in info.status_table.items()
            },
            info.jstack,
        )

    async def track(self, message: StoredMessage, group: str) -> MessageTrack:
        """Return how a group stands to a message; see `topic_groups` for the groups.

        Raises:
            NotFound: there is no such group.
        """
        members = await self.consumers(group)
        rows = (await self.progress(group)).queues
        done = {row.queue: row.committed for row in rows}.get(message.queue)
        wanted = {
            each.topic: each.expression for each in members.subscriptions if each.kind == "TAG"
        }
        expression = wanted.get(message.topic)
        tags = {tag.strip() for tag in (expression or "").split("||")}
        return MessageTrack(
            group,
            len(members.members),
            members.kind,
            None if done is None else done > message.queue_offset,
            None if expression is None else bool(tags & {"*", "", message.tags}),
        )

    async def consume_directly(
        self, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumedDirectly:
        """Let one member consume one message now; the group's offsets do not matter.

        Args:
            offset_msg_id: names the broker that keeps the message and its place there.

        Raises:
            BrokerError: the message is gone, no such member is connected to its broker, or it did
                not answer the broker in time.
            ValueError: no offset id.
        """
        try:
            host, _ = decode_offset_message_id(offset_msg_id)
            found = await self._find_message(offset_msg_id)
        except RemoteProtocolError as error:
            raise ValueError(error.remark) from error
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=self._group(group), client_id=client_id, msg_id=offset_msg_id
        )
        result = await self._api.body(
            ConsumeMessageDirectlyResult,
            self._dial(str(host)) if found is None else found[1],
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_s=max(RELAY_TIMEOUT_S, self._timeout_s),
        )
        return ConsumedDirectly(
            result.consume_result or "", result.remark or "", result.spent_time_mills
        )

    # Inside: members

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
                self._namespace.unwrap(data.topic), data.sub_string, data.expression_type
            )
            for data in sorted(datas, key=lambda data: data.topic)
        )


def _no_group(group: str) -> NotFound:
    hint = "A group is there once a member has joined it, or create_group has made it"
    return NotFound(f"there is no group {group}", hint=hint)


def _changed(
    config: SubscriptionGroupConfig, changes: Mapping[str, int | bool | None]
) -> SubscriptionGroupConfig:
    given = {name: value for name, value in changes.items() if value is not None}
    return replace_fields(config, **given)


def _settings(broker: str, config: SubscriptionGroupConfig) -> GroupSettings:
    return GroupSettings(
        broker=broker,
        consume_enabled=config.consume_enable,
        broadcast_enabled=config.consume_broadcast_enable,
        from_min_enabled=config.consume_from_min_enable,
        retry_queues=config.retry_queue_nums,
        max_retries=config.retry_max_times,
        notify_members=config.notify_consumer_ids_changed_enable,
        orderly=config.is_orderly,
        broker_id=config.broker_id,
        broker_id_when_slow=config.which_broker_when_consume_slowly,
    )


def _gather(found: Found, broker: str, rows: list[ConnectionBody]) -> None:
    for row in rows:
        found.setdefault(row.client_id, (row, []))[1].append(broker)


def _connections(found: Found) -> tuple[Connection, ...]:
    return tuple(
        Connection(client_id, row.client_addr, row.language or "OTHER", row.version, tuple(brokers))
        for client_id, (row, brokers) in sorted(found.items())
    )
