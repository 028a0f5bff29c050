"""The tools that only look. Each says what a command says, in the same form."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from skylarkmq.tools.cluster import status_json
from skylarkmq.tools.dlq import groups_with_letters, letters_of, require_group
from skylarkmq.tools.doctor.cli import LOOKS, Look, examined, findings_json
from skylarkmq.tools.group import all_lags
from skylarkmq.tools.mcp.call import Call
from skylarkmq.tools.mcp.tools import (
    Bodies,
    Fields,
    Group,
    Limit,
    Since,
    Text,
    Tool,
    Topic,
    Until,
    fields_of,
    unreported,
)
from skylarkmq.tools.msg import find
from skylarkmq.tools.topic import described

SKEW_S: Final = 5.0
Name = Annotated[str, Meta(description="Only names that have this in them.")]
SomeId = Annotated[
    str, Meta(min_length=1, description="Its offset_msg_id, or with `topic` its msg_id.")
]


async def cluster(call: Call) -> Fields:
    """Show all name servers and broker processes as they answer now, and what is wrong with them,
    each with its cure."""
    async with call.looking() as admin:
        found = await admin.cluster_status()
    problems = [each.to_json() for each in found.problems()]
    return {**status_json(found), "problems": problems}


async def topics(call: Call, *, contains: Name = "", system: bool = False) -> Fields:
    """List the names of topics; with `system` also those of brokers, retries and dead letters."""
    async with call.looking() as admin:
        names = await admin.list_topics(system=system, groups=system)
    return {"topics": [name for name in names if contains in name]}


async def topic(call: Call, *, topic: Topic) -> Fields:
    """Show a topic: its settings on each broker, its queues with their offsets, its groups."""
    async with call.looking() as admin:
        return await described(admin, topic)


async def groups(call: Call, *, contains: Name = "", system: bool = False) -> Fields:
    """List the names of consumer groups; with `system` also those of brokers and tools."""
    async with call.looking() as admin:
        names = await admin.list_groups(system=system)
    return {"groups": [name for name in names if contains in name]}


async def group(call: Call, *, group: Group) -> Fields:
    """Show a consumer group: its settings on each broker, its members, their subscriptions."""
    async with call.looking() as admin:
        return fields_of(await admin.describe_group(group))


async def lag(call: Call, *, group: Group | None = None, topic: Topic | None = None) -> Fields:
    """Show how many messages wait for a group, queue by queue; without `group` for all groups, the
    one that lags most first."""
    async with call.looking() as admin:
        if group is None:
            if topic is not None:
                raise ValueError("topic needs a group")
            return {"groups": await all_lags(admin, unreported)}
        return fields_of(await admin.progress(group, topic))


async def messages(
    call: Call,
    *,
    topic: Topic,
    key: Annotated[str, Meta(min_length=1, description="One of their keys.")] | None = None,
    msg_id: Annotated[str, Meta(description="The id that the producer gave.")] | None = None,
    since: Since | None = None,
    until: Until | None = None,
    limit: Limit = 20,
    bodies: Bodies = False,
) -> Fields:
    """Find messages of a topic by key, by the producer's id, or by time, the oldest first: of more
    than `limit` the newest by key or id, the first ones by time alone."""
    start, stop = call.moment(since), call.moment(until)
    if key is None and msg_id is None and start is None and stop is None:
        raise ValueError("messages needs key, msg_id, since or until")
    async with call.looking() as admin:
        found = await admin.query(
            topic, key=key, msg_id=msg_id, start=start, stop=stop, limit=limit
        )
    return {"messages": [call.message_json(each, bodies=bodies) for each in found]}


async def message(
    call: Call, *, id: SomeId, topic: Topic | None = None, bodies: Bodies = False
) -> Fields:
    """Show one message by its id: properties, times, where it lies."""
    async with call.looking() as admin:
        return call.message_json(await find(admin, id, topic), bodies=bodies)


async def trace(call: Call, *, msg_id: Text) -> Fields:
    """Show what clients told of a message, by the id that its producer gave: who sent it, who
    handled it and how. Only clients with tracing tell."""
    async with call.looking() as admin:
        return fields_of(await admin.trace(msg_id))


async def dead_letters(
    call: Call,
    *,
    group: Group | None = None,
    since: Since | None = None,
    until: Until | None = None,
    limit: Limit = 20,
    bodies: Bodies = False,
) -> Fields:
    """List messages that a group gave up after its last try, queue after queue, the oldest of each
    first; the property DEAD_LETTER_REASON says why. Without `group`: the groups that have such
    messages, with their number (null: this account may not look), the one with most first."""
    if group is None and (since is not None or until is not None):
        raise ValueError("since and until need a group")
    start, stop = call.moment(since), call.moment(until)
    rows: list[Fields] = []
    async with call.looking() as admin:
        if group is None:
            return {"groups": (await groups_with_letters(admin))[:limit]}
        scan = letters_of(call.client, admin, group, start, stop)
        async for letter in scan:
            rows.append(call.message_json(letter, bodies=bodies))
            if len(rows) == limit:
                break
        if not rows:
            await require_group(admin, group)
        return {"dead_letters": rows}


async def doctor(call: Call, *, only: list[Look] | None = None) -> Fields:
    """Look for what is wrong with the cluster, as clients on this machine see it: addresses,
    clocks, disks, slaves, registrations, topics that differ, members that subscribe differently,
    lag that nobody works on. Each finding has its cause and its cure."""
    wanted = only or LOOKS
    found = await examined(call.session, call.client, wanted, SKEW_S, unreported)
    return findings_json(wanted, found)


READING: Final = tuple(
    Tool[Fields].of(run)
    for run in (
        cluster, topics, topic, groups, group, lag, messages, message, trace, dead_letters, doctor,
    )
)  # fmt: skip
