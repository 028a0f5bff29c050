"""Where groups stand, and moving them.

A group with members holds its offsets in them, so the broker tells them where to go on (222, then
220); a group without any is moved by commits in its name (15). By time both work on every broker.
To an exact offset, a group with members is moved by brokers that take 5.x's `offset` in 222: ours,
and Apache's with `useServerSideResetOffset`. Offsets of a group that pops are the broker's own, and
ours moves them at once.

A member takes what it is told within some seconds (Java's waits ten) and commits it then. A broker
that moves groups itself tells their members with the next answer to a pull, which Apache's 5.3 may
hold back for twenty seconds.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/net/Broker2Client.java (resetOffset),
tools/.../admin/DefaultMQAdminExtImpl.java (resetOffsetByTimestampOld);
apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/AdminBrokerProcessor.java (resetOffset)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from skylarkmq.client.admin.base import TopicPlace, each
from skylarkmq.client.admin.cluster import parse_properties
from skylarkmq.client.admin.groups import MEMBERS_OR_NONE, GroupAdmin
from skylarkmq.client.admin.results import OffsetReset, QueueReset
from skylarkmq.client.clock import floor_ms
from skylarkmq.client.consumer.offset_search import first_since
from skylarkmq.client.errors import NotFound, NotSupported
from skylarkmq.client.wire.ask import read_body
from skylarkmq.protocol.bodies.group import ConsumerConnection, ResetOffsetBody
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP
from skylarkmq.protocol.headers.group import (
    CloneGroupOffsetRequestHeader,
    GetConsumerConnectionListRequestHeader,
    InvokeBrokerToResetOffsetRequestHeader,
)
from skylarkmq.protocol.message import MessageQueue

NEWEST: Final = -1
SERVER_SIDE_KEY: Final = "useServerSideResetOffset"
Edge = Literal["begin", "end"]
How = Literal["members", "broker", "written"]


class _Way(NamedTuple):
    """How a broker's queues are moved, and whether the group has members there, or may have."""

    how: How
    has_members: bool


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


class OffsetAdmin(GroupAdmin):
    """The part of Admin for where groups stand."""

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
        what they hold. On RocketMQ 4.9, and on ours by time, a group with such members must have
        committed in every queue before. A group that pops is moved at once; what its members hold
        cannot be acknowledged any more. When one of several brokers fails, those before it have
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
        _require_one(when, offset)
        place = await self._place(self._topic(topic))
        await self._require_group(group)
        if isinstance(offset, Mapping):
            offset = {self._namespace.wrap_queue(queue): at for queue, at in offset.items()}
        wish = _Wish(self._group(group), place.topic, when, offset)
        plans = await self._plan(wish, place)
        if not dry_run:
            plans = await self._carry_out(wish, place, plans)
        rows = [replace(one, queue=self._namespace.unwrap_queue(one.queue)) for one in plans]
        return OffsetReset(group, topic, dry_run, tuple(sorted(rows, key=lambda row: row.queue)))

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

    async def _plan(self, wish: _Wish, place: TopicPlace) -> list[QueueReset]:
        """Return from where to where each queue is to go, and how; nothing is changed.

        Raises:
            As `reset_offset`.
        """
        queues = _queues_of(place, wish.offset)
        ways = {
            broker: await self._way(wish, place.masters[broker])
            for broker in dict.fromkeys(queue.broker_name for queue in queues)
        }
        writes = {data.broker_name: data.write_queue_nums for data in place.data.queue_datas}

        async def plan(queue: MessageQueue) -> QueueReset:
            address, way = place.masters[queue.broker_name], ways[queue.broker_name]
            how = way.how
            # A broker tells members of the queues that are written to, and of no other.
            if queue.queue_id >= writes.get(queue.broker_name, 0):
                how = _how_unwritten(address, queue, way)
            before = await self._services.consumer_api.query_offset(
                address, wish.group, queue, self._timeout_s
            )
            return QueueReset(queue, before, await self._target(wish, address, queue, how), how)

        return await each(plan, queues)

    async def _way(self, wish: _Wish, address: str) -> _Way:
        """Return how a broker's queues are moved.

        Raises:
            NotSupported: they cannot be moved so while the group has members.
        """
        peer = await self._services.peer(address)
        if not peer.ours and await self._moves_itself(address):
            return _Way("broker", has_members=True)
        header = GetConsumerConnectionListRequestHeader(consumer_group=wish.group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._api.call(address, code, header, accepted=MEMBERS_OR_NONE)
        if answer.code != ResponseCode.SUCCESS:
            return _Way("broker" if peer.ours else "written", has_members=False)
        if read_body(ConsumerConnection, answer, address).pops is True:
            return _Way("broker", has_members=True)
        if wish.offset is not None and not peer.ours:
            raise NotSupported(
                f"group {wish.group} has members, and {address} moves it by time alone",
                hint="Give when= instead, or stop the members",
            )
        return _Way("members", has_members=True)

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


def _require_one(when: object, offset: object) -> None:
    if (when is None) == (offset is None):
        raise ValueError("one of when and offset is wanted")
    if when not in (None, "begin", "end") and not hasattr(when, "tzinfo"):
        raise ValueError(f'when is a datetime, "begin" or "end", not {when!r}')


def _how_unwritten(address: str, queue: MessageQueue, way: _Way) -> How:
    """Return how a queue is moved that is read but not written to any more.

    Raises:
        NotSupported: its broker leaves such a queue out.
    """
    if not way.has_members:
        return "written"
    raise NotSupported(
        f"{address} moves groups only in queues that are written to, not in {queue}",
        hint="Stop the members, or give offset= for the other queues",
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
