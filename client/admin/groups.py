"""Consumer groups: create, change, delete, list, describe; who is in them and how far they are.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/consumer/ (UpdateSubGroupSubCommand,
DeleteSubscriptionGroupCommand, ConsumerProgressSubCommand)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from skylarkmq.client.admin.base import from_ms
from skylarkmq.client.admin.bounded import each
from skylarkmq.client.admin.connections import ConnectionsAdmin
from skylarkmq.client.admin.results import (
    GroupDescription,
    GroupProgress,
    GroupSettings,
    QueueProgress,
)
from skylarkmq.client.errors import AlreadyExists, NotFound
from skylarkmq.client.wire.api_admin import json_body
from skylarkmq.protocol.bodies.group_admin import ConsumeStats
from skylarkmq.protocol.bodies.subscription import SubscriptionGroupConfig, SubscriptionGroupWrapper
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_PREFIX,
    FILTERSRV_CONSUMER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    TOOLS_CONSUMER_GROUP,
    dlq_topic,
    retry_topic,
)
from skylarkmq.protocol.headers.group_admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
)

OWN_GROUPS: Final = frozenset(
    {TOOLS_CONSUMER_GROUP, FILTERSRV_CONSUMER_GROUP, SELF_TEST_CONSUMER_GROUP, "__MONITOR_CONSUMER"}
)
OWN_PREFIXES: Final = (CID_RMQ_SYS_PREFIX, "CID_ONS")


class GroupAdmin(ConnectionsAdmin):
    """The part of Admin for consumer groups."""

    async def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a consumer group; needed only where brokers create none on demand.

        Args:
            retry_queues: of its retry topic; 0: a message that is handed back is gone.
            max_retries: for members that do not name a number of their own.
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
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the group or on those named.

        Raises:
            NotFound: no broker, or one of `brokers`, has it.
        """
        name = self._group(group)
        targets = await self._masters(None, brokers)
        configs = await self._configs(name, targets)
        absent = [broker for broker, config in configs.items() if config is None]
        if len(absent) == len(configs) or (brokers is not None and absent):
            raise NotFound(f"broker {absent[0]} has no group {group}")
        changes = {
            "retry_queue_nums": retry_queues,
            "retry_max_times": max_retries,
            "consume_enable": consume_enabled,
            "consume_broadcast_enable": broadcast_enabled,
        }
        await self._put_group(
            [
                (targets[broker], _changed(config, changes))
                for broker, config in configs.items()
                if config is not None
            ]
        )

    async def delete_group(
        self, group: str, *, remove_offsets: bool = True, remove_messages: bool = False
    ) -> None:
        """Delete a group from all brokers. Nothing happens to one that is not there.

        A member that is connected brings it back with its next heartbeat.

        Args:
            remove_offsets: forget where it stands, too.
            remove_messages: delete its retry topic and its dead letters, too.
        """
        name = self._group(group)
        targets = list((await self._masters()).values())
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
                self.names.unwrap(name)
                for table in tables
                for name in table
                if self.names.holds(name)
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
        rows = {self._queue(queue): row for table in tables for queue, row in table.offset_table}
        if not rows:
            await self._require_group(group)
        return GroupProgress(
            group,
            sum(table.consume_tps for table in tables[: len(targets)]),
            tuple(
                QueueProgress(
                    queue, row.consumer_offset, row.broker_offset, from_ms(row.last_timestamp)
                )
                for queue, row in sorted(rows.items())
            ),
        )

    # Inside

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
        await each(lambda one: self._api.call(one[0], code, body=json_body(one[1])), wanted)


def _no_group(group: str) -> NotFound:
    hint = "A group is there once a member has joined it, or create_group has made it"
    return NotFound(f"there is no group {group}", hint=hint)


def _changed(
    config: SubscriptionGroupConfig, changes: Mapping[str, int | bool | None]
) -> SubscriptionGroupConfig:
    return replace(config, **{name: value for name, value in changes.items() if value is not None})


def _settings(broker: str, config: SubscriptionGroupConfig) -> GroupSettings:
    return GroupSettings(
        broker=broker,
        consume_enabled=config.consume_enable,
        broadcast_enabled=config.consume_broadcast_enable,
        from_min_enabled=config.consume_from_min_enable,
        retry_queues=config.retry_queue_nums,
        max_retries=config.retry_max_times,
        notify_members=config.notify_consumer_ids_changed_enable,
        broker_id=config.broker_id,
        broker_id_when_slow=config.which_broker_when_consume_slowly,
    )
