"""mqadmin's commands for consumer groups, their members and their offsets, and for producers.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/ (consumer/, connection/, offset/),
common/.../protocol/body/ConsumerRunningInfo.java (formatString)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.client.admin import (
    GroupMembers,
    GroupSettings,
    MemberInfo,
    OffsetReset,
    QueueReset,
    TopicDescription,
)
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX, validate_group
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.mqadmin.java_text import (
    group_fields,
    group_text,
    java,
    parsed_time,
    seconds_text,
)
from skylarkmq.tools.mqadmin.table import Call, Letter, OldCommand
from skylarkmq.tools.mqadmin.topics import WHERE
from skylarkmq.tools.output import version_text

ACTIVELY: Final = "CONSUME_ACTIVELY"
OLD_RESET: Final = "{:<20}  {:<20}  {:<20}  {:<20}  {:<20}  {:<20}"
NEW_RESET: Final = "{:<40}  {:<40}  {:<40}"


async def consumer_progress(call: Call) -> None:
    """Show how far a group is in each queue, or in all for every group."""
    if call.has("g"):
        await _progress_of(call, call.text("g"))
        return
    form = "{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}"
    heads = ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    click.echo(form.format(*heads))
    for topic in await call.admin.list_topics(groups=True):
        if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            continue
        group = topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
        if validate_group(group) is not None:  # of pop: group and topic, with a `+` in between
            continue
        try:
            found = await call.admin.progress(group)
            tps, behind = int(found.tps), sum(row.end - row.committed for row in found.queues)
        except RocketMQError:  # as 4.9's: the row stays
            tps = behind = 0
        members = await call.admin.consumers(group)
        count = len(members.members)
        versions = [each.version for each in members.members]
        passive = members.kind != ACTIVELY
        click.echo(
            form.format(
                group[:64], count, version_text(min(versions)) if count else "OFFLINE",
                ("PUSH" if passive else "PULL") if count else "",
                members.model if count and passive else "", tps, behind,
            )
        )  # fmt: skip


async def _progress_of(call: Call, group: str) -> None:
    found = await call.admin.progress(group)
    shows_ip = call.true("s", False)
    holders = await _holders(call, group) if shows_ip else {}
    form = (
        "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  " + ("{:<20} " if shows_ip else "") + "{:<20}  {}"
    )
    ip = ("#Client IP",) if shows_ip else ()
    heads = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", *ip, "#Diff")
    click.echo(form.format(*heads, "#LastTime"))
    for row in found.queues:
        queue, last = row.queue, seconds_text(row.consumed_at) or "N/A"
        holder = (holders.get(queue, "N/A"),) if shows_ip else ()
        cells = (queue.topic[:64], queue.broker_name[:32], queue.queue_id, row.end, row.committed)
        click.echo(form.format(*cells, *holder, row.end - row.committed, last))
    click.echo(f"\nConsume TPS: {found.tps:.2f}")
    click.echo(f"Diff Total: {sum(row.end - row.committed for row in found.queues)}")


async def _holders(call: Call, group: str) -> dict[MessageQueue, str]:
    """Return the address that each queue's holder names itself by."""
    found: dict[MessageQueue, str] = {}
    for member in (await call.admin.consumers(group)).members:
        try:
            info = await call.admin.member_info(group, member.client_id)
        except RocketMQError:
            continue
        found.update({row.queue: member.client_id.split("@")[0] for row in info.queues})
    return found


async def consumer_status(call: Call) -> None:
    """Show what the members of a group are doing; each one's account goes into a file."""
    group, stack = call.text("g"), call.has("s")
    if call.has("i"):
        info = await call.admin.member_info(group, call.text("i"), stack=stack)
        click.echo(running_text(info), nl=False)
        return
    members = await _members(call, group)
    form = "{:<10} {:<40} {:<20} {}"
    click.echo(form.format("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    folder = Path(tempfile.mkdtemp(prefix="mqadmin-consumer-status-"))
    for number, member in enumerate(members.members, 1):
        info = await call.admin.member_info(group, member.client_id, stack=stack)
        file = folder / str(number)
        file.write_text(running_text(info), encoding="utf-8")
        click.echo(form.format(number, member.client_id, version_text(member.version), file))
    if members.differing:
        click.echo("\n\nWARN: Different subscription in the same group of consumer!!!")
    else:
        click.echo("\n\nSame subscription in the same group of consumer", nl=False)
        click.echo("\n\nRebalance OK")


async def _members(call: Call, group: str) -> GroupMembers:
    """Return the members of a group.

    Raises:
        NotFound: it has none.
    """
    members = await call.admin.consumers(group)
    if not members.members:
        raise NotFound(f"the consumer group[{group}] not online: it has no members now")
    return members


def running_text(info: MemberInfo) -> str:
    """Return what a member says of itself."""
    parts = ["#Consumer Properties#"]
    parts += [f"{key:<40}: {value}" for key, value in info.properties.items()]
    parts += ["", "", "#Consumer Subscription#"]
    parts += [
        f"{number:03d} Topic: {each.topic:<40} ClassFilter: {'false':<8} "
        f"SubExpression: {each.expression}"
        for number, each in enumerate(info.subscriptions, 1)
    ]
    heads = f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  "
    parts += ["", "", "#Consumer Offset#", heads + f"{'#Consumer Offset':<20}"]
    parts += [
        f"{row.queue.topic:<32}  {row.queue.broker_name:<32}  {row.queue.queue_id:<4}  "
        f"{row.values.get('commitOffset', 0):<20}"
        for row in info.queues
    ]
    parts += ["", "", "#Consumer MQ Detail#", heads + f"{'#ProcessQueueInfo':<20}"]
    parts += [
        f"{row.queue.topic:<64}  {row.queue.broker_name:<32}  {row.queue.queue_id:<4}  "
        f"ProcessQueueInfo [{java(row.values)[1:-1]}]"
        for row in info.queues
    ]
    rates = "{:<32}  {:>14.2f} {:>14.2f} {:>14.2f} {:>14.2f} {:>18.2f} {:>25}"
    parts += [
        "", "", "#Consumer RT&TPS#",
        f"{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} {'#Consume RT':>14} "
        f"{'#ConsumeOK TPS':>14} {'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}",
    ]  # fmt: skip
    for topic, row in info.topics.items():
        names = ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS")
        values = [float(row.get(name, 0)) for name in names]
        parts.append(rates.format(topic, *values, int(row.get("consumeFailedMsgs", 0))))
    if info.stack:
        parts += ["", "", "#Consumer jstack#", info.stack]
    return "\n".join(parts) + "\n"


async def consumer_connection(call: Call) -> None:
    """Show the members of a group and what they want."""
    members = await _members(call, call.text("g"))
    click.echo(f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version")
    broker = await call.name_of(call.text("b")) if call.has("b") else None
    for each in members.members:
        if broker is None or broker in each.brokers:
            click.echo(
                f"{each.client_id:<36} {each.address:<22} {each.language:<10} "
                f"{version_text(each.version)}"
            )
    click.echo("\nBelow is subscription:")
    click.echo(f"{'#Topic':<20} #SubExpression")
    for wanted in members.subscriptions:
        click.echo(f"{wanted.topic:<20} {wanted.expression}")
    click.echo(f"\nConsumeType: {members.kind}")
    click.echo(f"MessageModel: {members.model}")
    click.echo(f"ConsumeFromWhere: {members.start_from}")


async def producer_connection(call: Call) -> None:
    """Show the clients of a producer group."""
    group = call.text("g")
    found = await call.admin.producers(group)
    if not found:
        raise NotFound(f"the producer group[{group}] not exist")
    for number, each in enumerate(found, 1):
        click.echo(
            f"{number:04d}  {each.client_id:<32} {each.address:<22} {each.language:<8} "
            f"{version_text(each.version)}"
        )


# Settings


async def update_sub_group(call: Call) -> None:
    """Write all settings of a group; what is not given has mqadmin's default."""
    group = call.text("g")
    settings: dict[str, Any] = {
        "consume_enabled": call.true("s", True),
        "from_min_enabled": call.true("m", False),
        "broadcast_enabled": call.true("d", False),
        "retry_queues": call.number("q", 1),
        "max_retries": call.number("r", 16),
        "broker_id": call.number("i", 0),
        "broker_id_when_slow": call.number("w", 1),
        "notify_members": call.true("a", True),
    }
    masters = await call.masters()
    await call.admin.create_group(group, brokers=[*masters.values()], exist_ok=True, **settings)
    await call.admin.update_group(group, brokers=[*masters.values()], **settings)
    for address in masters:
        click.echo(f"create subscription group to {address} success.")
    click.echo(group_text(group, GroupSettings(broker="", **settings)))


async def delete_sub_group(call: Call) -> None:
    """Delete a group; from a cluster, its retries and dead letters, too."""
    group, cluster = call.text("g"), call.text("c")
    masters = await call.masters()
    await call.admin.delete_group(
        group,
        remove_offsets=call.true("r", False),
        remove_messages=not call.has("b"),
        **call.targets,
    )
    for address in masters:
        place = "" if call.has("b") else f" in cluster [{cluster}]"
        click.echo(f"delete subscription group [{group}] from broker [{address}]{place} success.")
    if not call.has("b"):
        for mark in ("%RETRY%", "%DLQ%"):
            click.echo(f"delete topic [{mark}{group}] from cluster [{cluster}] success.")
            click.echo(f"delete topic [{mark}{group}] from NameServer success.")


async def get_consumer_config(call: Call) -> None:
    """Show the settings of a group on each broker."""
    group = call.text("g")
    clusters = {each.name: each.cluster for each in (await call.admin.cluster()).brokers}
    for settings in (await call.admin.describe_group(group)).settings:
        line = "=" * 29
        click.echo(f"{line}{clusters.get(settings.broker)}:{settings.broker}{line}")
        for name, value in group_fields(group, settings).items():
            click.echo(f"{name:<40}=  {value}")


# Offsets


async def reset_offset_by_time(call: Call) -> None:
    """Move a group to a time, with or without members."""
    group, topic, text = call.text("g"), call.text("t"), call.text("s")
    when = "end" if text in ("now", "-1") else parsed_time(text)
    millis = -1 if when == "end" else round(parsed_time(text).timestamp() * 1000)
    force = call.true("f", True)
    found = await _reset(call, group, topic, when, force)
    by_members = all(row.how == "members" for row in found.queues)
    of = f"{'group' if by_members else 'consumerGroup'}[{group}]"
    click.echo(
        f"rollback consumer offset by specified {of}, topic[{topic}], "
        f"force[{java(force)}], timestamp(string)[{text}], timestamp(long)[{millis}]"
    )
    _print_reset(await call.admin.describe_topic(topic), found)


async def skip_accumulated_message(call: Call) -> None:
    """Move a group to the end of a topic."""
    group, topic = call.text("g"), call.text("t")
    found = await _reset(call, group, topic, "end", call.true("f", True))
    _print_reset(await call.admin.describe_topic(topic), found)


async def _reset(call: Call, group: str, topic: str, when: Any, force: bool) -> OffsetReset:
    """Move a group; without `force` not in queues where that would be forward."""
    if force:
        return await call.admin.reset_offset(group, topic, when=when)
    plan = await call.admin.reset_offset(group, topic, when=when, dry_run=True)
    back = {row.queue: row.after for row in plan.queues if row.after <= (row.before or 0)}
    if len(back) == len(plan.queues):
        return await call.admin.reset_offset(group, topic, when=when)
    moved: Mapping[MessageQueue, QueueReset] = {}
    if back:
        done = await call.admin.reset_offset(group, topic, offset=back)
        moved = {row.queue: row for row in done.queues}
    return OffsetReset(
        group, topic, False, tuple(moved.get(row.queue, _kept(row)) for row in plan.queues)
    )


def _kept(row: QueueReset) -> QueueReset:
    return QueueReset(row.queue, row.before, row.before or 0, row.how)


def _print_reset(topic: TopicDescription, found: OffsetReset) -> None:
    if all(row.how == "members" for row in found.queues):
        click.echo(NEW_RESET.format("#brokerName", "#queueId", "#offset"))
        for row in found.queues:
            click.echo(NEW_RESET.format(row.queue.broker_name[:32], row.queue.queue_id, row.after))
        return
    ends = {each.queue: each.end for each in topic.queues}
    heads = (
        "#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset",
        "#rollbackOffset",
    )  # fmt: skip
    click.echo(OLD_RESET.format(*heads))
    for row in found.queues:
        queue, before = row.queue, row.before or 0
        cells = (queue.broker_name[:32], queue.queue_id, ends.get(queue, 0), before)
        click.echo(OLD_RESET.format(*cells, row.after, row.after))


async def clone_group_offset(call: Call) -> None:
    """Give a group the offsets of another one."""
    source, target, topic = call.text("s"), call.text("d"), call.text("t")
    await call.admin.clone_offsets(source, target, topic)
    click.echo(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    )


GROUP: Final = Letter("g", "consumerGroup", "Consumer group name.", needed=True)
NAMED_GROUP: Final = Letter("g", "groupName", "Consumer group name.", needed=True)
RESET_GROUP: Final = Letter("g", "group", "The consumer group.", needed=True)
TOPIC: Final = Letter("t", "topic", "Topic name.", needed=True)
FORCE: Final = Letter("f", "force", "Also forward: true (the default) or false.")
COMMANDS: Final = (
    OldCommand(
        "consumerProgress", "Query consumers's progress, speed",
        (
            NAMED_GROUP._replace(needed=False),
            Letter("s", "showClientIP", "Who holds each queue: true or false."),
        ),
        consumer_progress,
    ),
    OldCommand(
        "consumerStatus", "Query consumer's internal data structure",
        (
            GROUP, WHERE[0], Letter("i", "clientId", "One member alone."),
            Letter("s", "jstack", "With the stacks of its threads.", bare=True),
        ),
        consumer_status,
    ),
    OldCommand("consumerConnection", "Query consumer's connections, versions and subscription",
               (GROUP, WHERE[0]), consumer_connection),
    OldCommand(
        "producerConnection", "Query producer's socket connection and client version",
        (Letter("g", "producerGroup", "Producer group name.", needed=True), TOPIC),
        producer_connection,
    ),
    OldCommand(
        "updateSubGroup", "Update or create subscription group",
        (
            *WHERE, NAMED_GROUP,
            Letter("s", "consumeEnable", "May consume: true (the default) or false."),
            Letter("m", "consumeFromMinEnable", "true or false (the default)."),
            Letter("d", "consumeBroadcastEnable", "May broadcast: true or false (the default)."),
            Letter("q", "retryQueueNums", "Queues of its retry topic; default 1."),
            Letter("r", "retryMaxTimes", "Tries before a dead letter; default 16."),
            Letter("i", "brokerId", "Broker id to read from; default 0."),
            Letter("w", "whichBrokerWhenConsumeSlowly", "Broker id when slow; default 1."),
            Letter("a", "notifyConsumerIdsChanged", "true (the default) or false."),
        ),
        update_sub_group, one_of="bc", would="update or create the group",
    ),
    OldCommand(
        "deleteSubGroup", "Delete subscription group from broker",
        (*WHERE, NAMED_GROUP, Letter("r", "removeOffset", "Its offsets, too: true or false.")),
        delete_sub_group, one_of="bc", would="delete the group",
    ),
    OldCommand("getConsumerConfig", "Get consumer config by subscription group name",
               (NAMED_GROUP,), get_consumer_config),
    OldCommand(
        "resetOffsetByTime", "Reset consumer offset by timestamp (without client restart)",
        (
            RESET_GROUP, TOPIC,
            Letter("s", "timestamp", "now, ms, or yyyy-MM-dd#HH:mm:ss:SSS.", needed=True), FORCE,
            Letter("c", "cplus", "No effect: C++ clients, too.", bare=True),
        ),
        reset_offset_by_time, would="move the group",
    ),
    OldCommand("skipAccumulatedMessage", "Skip all messages that are accumulated currently",
               (RESET_GROUP, TOPIC, FORCE), skip_accumulated_message,
               would="move the group to the end"),
    OldCommand(
        "cloneGroupOffset", "Clone offset from other group",
        (
            Letter("s", "srcGroup", "Source consumer group.", needed=True),
            Letter("d", "destGroup", "Destination consumer group.", needed=True), TOPIC,
            Letter("o", "offline", "No effect: members are not looked at."),
        ),
        clone_group_offset, would="clone the offsets",
    ),
)  # fmt: skip
