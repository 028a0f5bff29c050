"""The tools that change something. Each returns what it would do; the server has it done later."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from skylarkmq.client.admin import RedriveTarget
from skylarkmq.client.errors import AlreadyExists, NotFound, RouteNotFound
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.topic_attributes import MessageType
from skylarkmq.tools.dlq import Redrive, letters_of, require_group
from skylarkmq.tools.group import make_group, pinned, reset_json, reset_text, target_of
from skylarkmq.tools.local.ledger import Ledger, ledger_path
from skylarkmq.tools.mcp.call import Call
from skylarkmq.tools.mcp.reading import SomeId
from skylarkmq.tools.mcp.tools import Fields, Group, Plan, Since, Tool, Topic, Until, unreported
from skylarkmq.tools.msg import find, resend_text, send_copy
from skylarkmq.tools.output import counted
from skylarkmq.tools.topic import make_topic

Token = Annotated[
    str, Meta(description="Without it the call is a dry run, which returns one; with it, it acts.")
]
Place = Annotated[
    str,
    Meta(description="first, last (the end as it is when it acts), or a time: to the first message "
         "stored then or later. A time is 2026-01-31T12:00:00Z, ms since the epoch, or 10m for ten "
         "minutes ago."),
]  # fmt: skip
Cluster = Annotated[str, Meta(description="On the brokers of this cluster alone.")]


async def resend(
    call: Call, *, id: SomeId, topic: Topic | None = None, to: Topic | None = None
) -> Plan:
    """Send a copy of one message to its topic, or to the topic `to`: every group that consumes the
    topic gets it."""
    async with call.changing() as admin:
        message = await find(admin, id, topic)
    target = to or message.origin_topic
    return Plan(
        resend_text(message, id, target),
        {"message": call.message_json(message, bodies=False)},
        partial(send_copy, call.session, call.client, message, target),
    )


async def redrive(
    call: Call,
    *,
    group: Group,
    to: RedriveTarget = "group",
    since: Since | None = None,
    until: Until | None = None,
    limit: Annotated[int, Meta(ge=1, le=1000, description="At most so many.")] = 100,
) -> Plan:
    """Send dead letters of a group again, each once, to the group alone, in no order of priority,
    or to all groups of their first topics. The letters stay where they are; a ledger on this
    machine knows what was sent."""
    start, stop = call.moment(since), call.moment(until)
    path = ledger_path(call.session.namesrv, group, to)

    async def run(limit: int, *, dry_run: bool) -> tuple[int, Fields]:
        opened = Ledger.open(path, group, to, call.session.namesrv, write=not dry_run)
        with opened as ledger:
            async with call.changing() as admin:
                work = Redrive(
                    admin, ledger, services_of(call.client).clock, group, to,
                    rate=None, resend_unknown=False, dry_run=dry_run,
                )  # fmt: skip
                letters = letters_of(call.client, admin, group, start, stop)
                count = await work.count(letters, limit)
                if not count:
                    await require_group(admin, group)
                    raise NotFound(work.nothing_to_send)
                letters = letters_of(call.client, admin, group, start, stop)
                await work.run(letters, count, unreported)
        return count, work.to_json(path)

    count, shown = await run(limit, dry_run=True)

    async def carry_out() -> Fields:
        return (await run(count, dry_run=False))[1]

    where = f"the group {group}" if to == "group" else "their first topics"
    return Plan(f"send {counted(count, 'dead letter')} of {group} to {where}", shown, carry_out)


async def reset(
    call: Call,
    *,
    group: Group,
    topic: Topic,
    to: Place | None = None,
    offset: Annotated[int, Meta(ge=0, description="This one of every queue.")] | None = None,
) -> Plan:
    """Move a group to another place in a topic, by `to` or by `offset`, with or without members at
    work. Messages are skipped, or come again."""
    if (to is None) == (offset is None):
        raise ValueError("give one of to and offset")
    when = None if to is None else pinned(target_of(to), call.client)

    async def run(*, dry_run: bool) -> Fields:
        async with call.changing() as admin:
            return reset_json(
                await admin.reset_offset(group, topic, when=when, offset=offset, dry_run=dry_run)
            )

    what = reset_text(group, topic, when, offset)
    return Plan(what, await run(dry_run=True), partial(run, dry_run=False))


async def create_topic(
    call: Call,
    *,
    topic: Topic,
    queues: Annotated[int, Meta(ge=1, le=1024, description="On each broker.")] = 8,
    message_type: MessageType | None = None,
    cluster: Cluster | None = None,
) -> Plan:
    """Create a topic on all brokers, or on those of a cluster."""
    settings = {"queues": queues, "message_type": message_type, "cluster": cluster}
    async with call.changing() as admin:
        try:
            there = (await admin.topic_route(topic)).settings
        except RouteNotFound:
            there = ()
    if there:
        names = ", ".join(each.broker for each in there)
        raise AlreadyExists(f"topic {topic} exists on {names}")

    async def carry_out() -> Fields:
        async with call.changing() as admin:
            return await make_topic(admin, topic, **settings)

    what = f"create the topic {topic} on {await _where(call, cluster)}"
    return Plan(what, {**settings, "topic": topic}, carry_out)


async def create_group(
    call: Call,
    *,
    group: Group,
    max_retries: Annotated[int, Meta(ge=0, description="Before a dead letter.")] = 16,
    cluster: Cluster | None = None,
) -> Plan:
    """Create a consumer group on all brokers, or on those of a cluster; needed only where brokers
    create none on demand."""
    settings = {"max_retries": max_retries, "cluster": cluster}
    async with call.changing() as admin:
        try:
            there = (await admin.describe_group(group)).settings
        except NotFound:
            there = ()
    if there:
        raise AlreadyExists(f"group {group} exists on {', '.join(each.broker for each in there)}")

    async def carry_out() -> Fields:
        async with call.changing() as admin:
            return await make_group(admin, group, **settings)

    what = f"create the group {group} on {await _where(call, cluster)}"
    return Plan(what, {**settings, "group": group}, carry_out)


async def _where(call: Call, cluster: str | None) -> str:
    """Return the names of the brokers of a cluster, or of all.

    Raises:
        NotFound: there is no such cluster.
    """
    async with call.changing() as admin:
        clusters = (await admin.cluster()).clusters
    if cluster is not None and cluster not in clusters:
        raise NotFound(f"there is no cluster {cluster}; known: {', '.join(clusters)}")
    found = clusters.values() if cluster is None else [clusters[cluster]]
    return ", ".join(sorted({name for names in found for name in names}))


CHANGING: Final = tuple(
    Tool[Plan].of(run, token=Token | None)
    for run in (resend, redrive, reset, create_topic, create_group)
)
