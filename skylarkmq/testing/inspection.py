"""What a test asks of a broker's inside, past the network. Runs in the broker's loop."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from msgspec import UNSET

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.tables.persist import durable
from skylarkmq.broker.topics.topic_config import REPLY_TOPIC_POSTFIX
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.flags import is_system_topic
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages

READ_COUNT: Final = 1024
READ_SIZE: Final = 4 << 20
BODY_MAX: Final = 64 << 20
"""Bytes that a body may have once it is inflated."""
SHOWN_BODY: Final = 60
SHOWN_MESSAGES: Final = 20


async def create_topic(controller: BrokerController, topic: str, queues: int, order: bool) -> None:
    """Make or change a topic; routes have it on return."""
    topics = controller.parts.topics
    known = topics.get(topic)
    topics.update(
        TopicConfig(
            attributes=UNSET if known is None else known.attributes,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            order=order,
        )
    )
    await durable(topics)


async def create_group(controller: BrokerController, group: str, retry_max: int) -> None:
    """Make or change a consumer group."""
    groups = controller.parts.groups
    groups.update(SubscriptionGroupConfig(group_name=group, retry_max_times=retry_max))
    await durable(groups)


async def messages(
    controller: BrokerController, topic: str, queue_id: int | None
) -> list[MessageExt]:
    """Return the messages of a topic or queue that consumers can pull, in the log's order."""
    found: list[MessageExt] = []
    for number in _queues_of(controller, topic):
        if queue_id is None or number == queue_id:
            found += await _messages_of(controller, topic, number)
    found.sort(key=lambda message: message.physical_offset)
    return found


async def _messages_of(controller: BrokerController, topic: str, queue_id: int) -> list[MessageExt]:
    store = controller.parts.store
    offset, found = store.min_offset(topic, queue_id), list[MessageExt]()
    while offset < store.max_offset(topic, queue_id):
        result = store.get_message(topic, queue_id, offset, READ_COUNT, READ_SIZE)
        for view in result.views:
            found += decode_messages(bytes(view))
        if result.next_begin_offset <= offset:
            break
        offset = result.next_begin_offset
        await asyncio.sleep(0)
    for message in found:
        message.body = decompress(message.body, message.sys_flag, BODY_MAX)
    return found


def _queues_of(controller: BrokerController, topic: str) -> list[int]:
    queues = controller.parts.store.queues.queues
    return sorted(queue_id for name, queue_id in queues if name == topic)


class QueueLag(NamedTuple):
    """What a group has still to consume of a queue."""

    topic: str
    queue_id: int
    committed: int  # next offset to consume, -1 for none
    end: int  # the offset that the next message gets

    @property
    def behind(self) -> int:
        """Messages; all of them where nothing was committed."""
        return max(0, self.end - max(self.committed, 0))

    @property
    def text(self) -> str:
        """One line for a human."""
        at = self.committed if self.committed >= 0 else "no offset"
        return f"{self.topic} {self.queue_id}: at {at} of {self.end}, lag {self.behind}"


def lags(controller: BrokerController, group: str) -> list[QueueLag]:
    """Return where a group stands in each queue that it subscribes to or ever committed."""
    state = controller.parts
    topics = {*state.offsets.topics_of(group), *_subscribed(controller, group)}
    rows: list[QueueLag] = []
    for topic in sorted(topics):
        committed = state.offsets.of(group, topic)
        for queue_id in sorted({*committed, *_queues_of(controller, topic)}):
            low = state.store.min_offset(topic, queue_id)
            at = committed.get(queue_id, low if low else -1)
            rows.append(QueueLag(topic, queue_id, at, state.store.max_offset(topic, queue_id)))
    return rows


def knows_group(controller: BrokerController, group: str) -> bool:
    """Return whether a group ever committed an offset here, or has a member now."""
    return bool(controller.parts.offsets.topics_of(group) or _subscribed(controller, group))


def member_count(controller: BrokerController, group: str) -> int:
    """Return how many clients a consumer group has, and a producer group of that name."""
    state = controller.parts
    producers = {info.client_id for info in state.producers.clients(group).values()}
    return len({*state.consumers.client_ids(group), *producers})


def _subscribed(controller: BrokerController, group: str) -> list[str]:
    info = controller.parts.consumers.group(group)
    return [] if info is None else list(info.subscriptions)


async def dump(controller: BrokerController) -> str:
    """Return what the broker holds, for a human; system topics only where messages are in them."""
    state, store = controller.parts, controller.parts.store
    lines = [
        f"broker {controller.advertised}, name server {controller.namesrv_address}, store "
        f"{store.state.value}, log {store.commit_log.min_offset}..{store.commit_log.max_offset}, "
        f"flushed {store.commit_log.flushed_offset}"
    ]
    stored = {topic for topic, _ in store.queues.queues}
    for topic in sorted({*state.topics.table, *stored}):
        if topic in stored or not _is_own(controller, topic):
            lines += await _topic_lines(controller, topic)
    groups = {group for _, group in state.offsets.table} | set(state.consumers.groups)
    for group in sorted(groups):
        members = ", ".join(state.consumers.client_ids(group)) or "no members"
        lines.append(f"group {group}: {members}")
        lines += [f"  {row.text}" for row in lags(controller, group)]
    for group in sorted(state.producers.groups):
        ids = sorted({info.client_id for info in state.producers.clients(group).values()})
        lines.append(f"producer group {group}: {', '.join(ids)}")
    delayed, timed = state.schedule.waiting_count, state.timer.waiting_count
    lines.append(
        f"waiting: {delayed} delayed, {timed} timed, {state.transactions.pending_count} "
        f"transactions, {state.holding.count} held pulls"
    )
    return "\n".join(lines)


async def _topic_lines(controller: BrokerController, topic: str) -> list[str]:
    store = controller.parts.store
    queues = _queues_of(controller, topic)
    ends = (f"{n}: {store.min_offset(topic, n)}..{store.max_offset(topic, n)}" for n in queues)
    lines = [f"topic {topic}: {', '.join(ends) or 'no messages'}"]
    if not _is_own(controller, topic):
        found = await messages(controller, topic, None)
        if len(found) > SHOWN_MESSAGES:
            lines.append(f"  (the last {SHOWN_MESSAGES} of {len(found)})")
        lines += [f"  {_shown(message)}" for message in found[-SHOWN_MESSAGES:]]
    return lines


def _is_own(controller: BrokerController, topic: str) -> bool:
    config = controller.config
    cluster = config.broker_cluster_name
    own = (cluster, config.broker_name, f"{cluster}_{REPLY_TOPIC_POSTFIX}")
    return is_system_topic(topic) or topic in own


def _shown(message: MessageExt) -> str:
    body = message.body[:SHOWN_BODY]
    more = "..." if len(message.body) > SHOWN_BODY else ""
    rest = f" {message.properties}" if message.properties else ""
    return f"{message.queue_id}@{message.queue_offset} {body!r}{more}{rest}"
