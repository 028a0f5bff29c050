"""Consumer groups: create, change, delete, describe; who is in them; where they stand; moving them.

A group with members holds its offsets in them, so the broker tells them where to go on (222, then
220); a group without any is moved by commits in its name (15). By time both work on every broker.
To an exact offset, a group with members is moved by brokers that take 5.x's `offset` in 222: ours,
and Apache's with `useServerSideResetOffset`.

A member takes what it is told within some seconds (Java's waits ten) and commits it then. A broker
that moves groups itself tells their members with the next answer to a pull, which Apache's 5.3 may
hold back for twenty seconds.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/consumer/ (UpdateSubGroupSubCommand,
DeleteSubscriptionGroupCommand, ConsumerProgressSubCommand), broker/.../client/net/
Broker2Client.java (resetOffset), tools/.../admin/DefaultMQAdminExtImpl.java
(examineConsumerConnectionInfo, examineProducerConnectionInfo, getConsumerRunningInfo,
consumeMessageDirectly, resetOffsetByTimestampOld);
apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/AdminBrokerProcessor.java (resetOffset)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace as replace_fields

from skylarkmq.client.admin.base import TopicPlace, each, from_ms
from skylarkmq.client.admin.cluster import parse_properties
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    MemberInfo,
    MemberQueue,
    OffsetReset,
    QueueProgress,
    QueueReset,
    SubscriptionSummary,
)
from skylarkmq.client.admin.topics import TopicAdmin
from skylarkmq.client.clock import floor_ms
from skylarkmq.client.consumer.offset_store import first_since
from skylarkmq.client.errors import AlreadyExists, NotFound, NotSupported
from skylarkmq.client.wire.ask import read_body
from skylarkmq.protocol.bodies.group import (
    ConnectionBody,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProducerConnection,
    ProducerTableInfo,
    ResetOffsetBody,
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
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    InvokeBrokerToResetOffsetRequestHeader,
)
from skylarkmq.protocol.headers.topic import GetConsumeStatsInBrokerHeader
from skylarkmq.protocol.message import MessageQueue
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
PRODUCERS_OR_NONE: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
Found = dict[str, tuple[ConnectionBody, list[str]]]
NEWEST: Final = -1
SERVER_SIDE_KEY: Final = "useServerSideResetOffset"
Edge = Literal["begin", "end"]
How = Literal["members", "broker", "written"]


@dataclass(frozen=True, slots=True)
class _Wish:
    """A reset as it was asked for, with names as brokers know them."""

    group: str
    topic: str
    when: datetime | Edge | None
    offset: int | Mapping[MessageQueue, int] | None

    @property
    def timestamp(self) -> int:
        """What 222 is asked for; a ms earlier, so that its nearest message skips none."""
        if self.when == "end":
            return NEWEST
        return max(0, floor_ms(self.when) - 1) if isinstance(self.when, datetime) else 0


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
            retry_queues: of its retry topic; 0: a message that is handed back is gone.
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
        targets = await self._masters()
        tables = await each(self._group_table, targets.values())
        return sorted(
            {
                self._namespace.unwrap(name)
                for table in tables
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
        tables = await each(
            lambda one: self._consume_stats(one[1], name, one[0]),
            [(each_topic, address) for each_topic in wanted for address in targets.values()],
        )
        found = self._progress(group, tables)
        if not found.queues:
            await self._require_group(group)
        return replace(found, tps=sum(table.consume_tps for table in tables[: len(targets)]))

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

    async def _group_table(self, address: str) -> Mapping[str, SubscriptionGroupConfig]:
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
        tables = await each(self._group_table, targets.values())
        return {broker: table.get(group) for broker, table in zip(targets, tables, strict=True)}

    async def _put_group(self, wanted: Sequence[tuple[str, SubscriptionGroupConfig]]) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await each(lambda one: self._api.call(one[0], code, body=encode_body(one[1])), wanted)

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
        header = GetProducerConnectionListRequestHeader(producer_group=self._namespace.wrap(group))
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

    async def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | Edge | None = None,
        offset: int | Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> OffsetReset:
        """Move a group to another place in a topic, with or without members at work.

        Nothing stored at `when` or later is skipped. Members that are told by their broker may get
        one message from before `when` as well, take some seconds (on 5.x up to twenty), and drop
        what they hold. On RocketMQ 4.9, and on ours by time, a group with members must have
        committed in every queue before. When one of several brokers fails, those before it have
        moved; repeat the call then.

        Args:
            when: to the first message stored then or later, or to the queues'
                first message ("begin") or after their last one ("end").
            offset: to that offset of every queue, or of those given; moved into the queue's
                bounds.
            dry_run: tell from where to where each queue would go, and change nothing.

        Raises:
            ValueError: not exactly one of `when` and `offset`.
            RouteNotFound: there is no such topic.
            NotFound: there is no such group, or no such queue in the topic.
            NotSupported: an exact offset, and a broker that moves a group with members by time
                alone (RocketMQ 4.9); or a queue that is read but not written to any more, in which
                brokers do not move members. Nothing has changed then.
        """
        if (when is None) == (offset is None):
            raise ValueError("one of when and offset is wanted")
        if when not in (None, "begin", "end") and not hasattr(when, "tzinfo"):
            raise ValueError(f'when is a datetime, "begin" or "end", not {when!r}')
        place = await self._place(self._topic(topic))
        await self._require_group(group)
        if isinstance(offset, Mapping):
            offset = {self._namespace.wrap_queue(queue): at for queue, at in offset.items()}
        wish = _Wish(self._group(group), place.topic, when, offset)
        queues = _queues_of(place, offset)
        hows: dict[str, How] = {
            broker: await self._how(wish, place.masters[broker])
            for broker in dict.fromkeys(queue.broker_name for queue in queues)
        }
        writes = {data.broker_name: data.write_queue_nums for data in place.data.queue_datas}

        async def plan(queue: MessageQueue) -> QueueReset:
            address, how = place.masters[queue.broker_name], hows[queue.broker_name]
            if queue.queue_id >= writes.get(queue.broker_name, 0):
                how = await self._how_unwritten(address, queue, how)
            before = await self._services.consumer_api.query_offset(
                address, wish.group, queue, self._timeout_s
            )
            return QueueReset(queue, before, await self._target(wish, address, queue, how), how)

        plans = await each(plan, queues)
        if not dry_run:
            plans = await self._carry_out(wish, place, plans)
        rows = [replace(one, queue=self._namespace.unwrap_queue(one.queue)) for one in plans]
        return OffsetReset(group, topic, dry_run, tuple(sorted(rows, key=lambda row: row.queue)))

    async def skip_accumulated(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> OffsetReset:
        """Move a group to the end of a topic: it never consumes the messages that wait now.

        Raises:
            RouteNotFound: there is no such topic.
        """
        return await self.reset_offset(group, topic, when="end", dry_run=dry_run)

    async def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Give group `target` the offsets of `source`, in one topic or in all it has consumed.

        The members of `target`, if it has any, commit over it: stop them before.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: there is no group `source`.
        """
        await self._require_group(source)
        header = CloneGroupOffsetRequestHeader(
            src_group=self._group(source),
            dest_group=self._group(target),
            topic=None if topic is None else self._topic(topic),
            offline=True,
        )
        if topic is None:
            masters = await self._masters()
        else:
            masters = (await self._place(self._topic(topic))).masters
        code = RequestCode.CLONE_GROUP_OFFSET
        await each(lambda address: self._api.call(address, code, header), masters.values())

    # Inside: offsets

    async def _how(self, wish: _Wish, address: str) -> How:
        """Return how a broker's queues are moved.

        Raises:
            NotSupported: they cannot be moved so while the group has members.
        """
        peer = await self._services.peer(address)
        if not peer.ours and await self._moves_itself(address):
            return "broker"
        header = GetConsumerConnectionListRequestHeader(consumer_group=wish.group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._api.call(address, code, header, accepted=MEMBERS_OR_NONE)
        if answer.code != ResponseCode.SUCCESS:
            return "broker" if peer.ours else "written"
        if wish.offset is not None and not peer.ours:
            raise NotSupported(
                f"group {wish.group} has members, and {address} moves it by time alone",
                hint="Give when= instead, or stop the members",
            )
        return "members"

    async def _how_unwritten(self, address: str, queue: MessageQueue, how: How) -> How:
        """Return how a queue is moved that is read but not written to any more.

        Raises:
            NotSupported: its broker leaves such a queue out.
        """
        if how == "written":
            return how
        if how == "broker" and (await self._services.peer(address)).ours:
            return "written"
        raise NotSupported(
            f"{address} moves groups only in queues that are written to, not in {queue}",
            hint="Stop the members, or give offset= for the other queues",
        )

    async def _moves_itself(self, address: str) -> bool:
        answer = await self._api.call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body).get(SERVER_SIDE_KEY) == "true"

    async def _target(self, wish: _Wish, address: str, queue: MessageQueue, how: How) -> int:
        services, timeout_s = self._services, self._timeout_s
        api = services.consumer_api
        begin = await api.min_offset(address, queue, timeout_s)
        end = await api.max_offset(address, queue, timeout_s)
        if isinstance(wish.when, datetime):
            if how == "members":
                return await api.search_offset(address, queue, wish.timestamp, timeout_s)
            since_ms = floor_ms(wish.when)
            return await first_since(
                services, address, TOOLS_CONSUMER_GROUP, queue, since_ms, timeout_s
            )
        if wish.when is not None:
            return begin if wish.when == "begin" else end
        wanted = wish.offset[queue] if isinstance(wish.offset, Mapping) else wish.offset
        assert wanted is not None, "one of when and offset is given"
        return min(max(wanted, begin), end)

    async def _carry_out(
        self, wish: _Wish, place: TopicPlace, plans: list[QueueReset]
    ) -> list[QueueReset]:
        """Do what was planned, broker after broker; return what became of each queue."""
        parts: dict[tuple[str, How], list[QueueReset]] = {}
        for one in plans:
            parts.setdefault((one.queue.broker_name, one.how), []).append(one)
        done: list[QueueReset] = []
        for (broker, how), mine in parts.items():
            done += await self._move(wish, place.masters[broker], mine, how)
        return done

    async def _move(
        self, wish: _Wish, address: str, plans: list[QueueReset], how: How
    ) -> list[QueueReset]:
        """Move the queues of one broker; return what became of each."""
        if how == "written":
            # Alone, the first: RocketMQ's brokers make the group's table with it, and lose some of
            # several first ones that come at once.
            for some in (plans[:1], plans[1:]):
                await each(
                    lambda one: self._services.consumer_api.update_offset(
                        address, wish.group, one.queue, one.after, self._timeout_s
                    ),
                    some,
                )
            return plans
        if how == "broker":
            await each(
                lambda one: self._invoke(wish, address, one.queue.queue_id, one.after), plans
            )
            return plans
        if wish.offset is None:
            table = await self._invoke(wish, address)
        elif isinstance(wish.offset, int):
            table = await self._invoke(wish, address, offset=wish.offset)
        else:
            tables = [
                await self._invoke(wish, address, one.queue.queue_id, one.after) for one in plans
            ]
            table = {queue: at for found in tables for queue, at in found.items()}
        return [replace(one, after=table.get(one.queue, one.after)) for one in plans]

    async def _invoke(
        self, wish: _Wish, address: str, queue_id: int = -1, offset: int | None = None
    ) -> dict[MessageQueue, int]:
        header = InvokeBrokerToResetOffsetRequestHeader(
            topic=wish.topic,
            group=wish.group,
            timestamp=wish.timestamp,
            is_force=True,
            queue_id=queue_id,
            offset=offset,
        )
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        body = await self._api.body(ResetOffsetBody, address, code, header)
        return {
            MessageQueue(queue.topic, queue.broker_name, queue.queue_id): at
            for queue, at in body.offset_table
        }


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


def _queues_of(
    place: TopicPlace, offset: int | Mapping[MessageQueue, int] | None
) -> list[MessageQueue]:
    if not isinstance(offset, Mapping):
        return list(place.read_queues)
    absent = [queue for queue in offset if queue not in place.read_queues]
    if absent:
        raise NotFound(f"topic {place.topic} has no queue {absent[0]}")
    return list(offset)
