"""Topics: the list, one topic, and making, changing and deleting one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin, Statistic, TopicDescription
from skylarkmq.client.admin.base import each
from skylarkmq.client.errors import RocketMQError, RouteNotFound
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
)
from skylarkmq.protocol.topic_attributes import (
    ANY_MESSAGE_TYPE,
    MESSAGE_TYPE,
    MESSAGE_TYPES,
    PRIORITY_TYPE,
    MessageType,
)
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.sorting import ordered
from skylarkmq.tools.console.text import BadInput, exists, parse_number, segment
from skylarkmq.tools.console.visit import Visit

QUEUES_MAX: Final = 1024
ROWS_MAX: Final = 200
SAMPLED: Final = 16
"""Messages of which the average size of a topic's is taken."""
PERMS: Final = {
    "rw": "read and write",
    "r": "read only",
    "w": "write only",
    "": "neither",
}
TYPES: Final[dict[str, MessageType]] = {
    each: each for each in (ANY_MESSAGE_TYPE, *MESSAGE_TYPES, PRIORITY_TYPE)
}
KINDS: Final = ("application", "retry", "dead letters", "system")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list; `error` says why nothing is known of it."""

    name: str
    put: float | None = None
    """Messages a second in, over the last minute; None: no broker has counted yet."""
    got: float | None = None
    """Messages a second out, to all groups."""
    messages: int | None = None
    size: float | None = None
    """About how many bytes these messages have."""
    groups: int | None = None
    error: str = ""


async def topics(visit: Visit) -> Response:
    """List the topics."""
    admin = await visit.admin()
    kind, wanted = visit.asked("kind", KINDS[0]), visit.asked("q").casefold()
    sort = visit.asked("sort", "name")
    names, own = await asyncio.gather(
        admin.list_topics(system=True, groups=True),
        admin.list_topics(groups=True),  # without the brokers' own
    )
    kinds = {name: kind_of(name) for name in names}
    kinds |= {name: "system" for name in set(names) - set(own)}
    shown = [name for name in names if kinds[name] == kind and wanted in name.casefold()]
    rows = await each(partial(_row, visit, admin), shown[:ROWS_MAX], ASKED_AT_ONCE)
    return visit.page(
        "topics.html",
        rows=ordered(rows, sort),
        sort=sort,
        left=len(shown) - len(rows),
        kind=kind,
        counts={each: sum(found == each for found in kinds.values()) for each in KINDS},
        q=visit.asked("q"),
        kinds=KINDS,
    )


async def _row(visit: Visit, admin: Admin, name: str) -> TopicRow:
    wrap = services_of(visit.access.client).namespace.wrap
    try:
        found = await admin.describe_topic(name)
        puts, *gots = await asyncio.gather(
            admin.statistic("TOPIC_PUT_NUMS", wrap(name)),
            *(
                admin.statistic("GROUP_GET_NUMS", f"{wrap(name)}@{wrap(group)}")
                for group in found.groups
            ),
        )
        size = await _size(visit, admin, found)
    except RocketMQError as error:
        return TopicRow(name, error=str(error))
    got = [each for per_group in gots for each in per_group]
    return TopicRow(
        name, _rate(puts), _rate(got), found.message_count, size, len(found.groups)
    )  # fmt: skip


def _rate(found: tuple[Statistic, ...] | list[Statistic]) -> float | None:
    return sum(each.minute.per_second for each in found) if found else None


async def _size(visit: Visit, admin: Admin, topic: TopicDescription) -> float | None:
    """Return about how many bytes a topic's messages have in the log: brokers do not tell."""
    if not topic.message_count:
        return 0
    sizes, name = visit.access.history.sizes, topic.topic
    if name not in sizes:
        fullest = max(topic.queues, key=lambda queue: queue.end - queue.begin)
        after = {fullest.queue: max(fullest.begin, fullest.end - SAMPLED)}
        found: list[int] = []
        async for message in admin.scan(name, after=after):
            found.append(message.size)
            if len(found) == SAMPLED:
                break
        if not found:
            return None
        sizes[name] = sum(found) / len(found)
    return topic.message_count * sizes[name]


def kind_of(name: str) -> str:
    """Return what a topic is for, by its name."""
    bare = name.rpartition("%")[0]
    if name.startswith(RETRY_GROUP_TOPIC_PREFIX) or bare.endswith("RETRY"):
        return "retry"
    if name.startswith(DLQ_GROUP_TOPIC_PREFIX) or bare.endswith("DLQ"):
        return "dead letters"
    return "system" if is_system_topic(name) else "application"


async def topic(visit: Visit) -> Response:
    """Show one topic: its brokers, its queues, who consumes it."""
    name, admin, history = visit.path("topic"), await visit.admin(), visit.access.history
    found, attributes, cluster = await asyncio.gather(
        admin.describe_topic(name), admin.topic_attributes(name), admin.cluster()
    )
    lags = {group: history.last("group", group) for group in found.groups}
    return visit.page(
        "topic.html",
        topic=found,
        types={broker: named.get(MESSAGE_TYPE) for broker, named in attributes.items()},
        addresses={broker.name: broker.addresses for broker in cluster.brokers},
        last=max(
            (each.last_stored_at for each in found.queues if each.last_stored_at), default=None
        ),
        lags=lags,
        kind=kind_of(name),
        may_change=visit.settings.is_writing and not is_system_topic(name),
    )


# Changes


async def new_topic(visit: Visit) -> Response:
    """Show the form of a new topic."""
    cluster = await (await visit.admin()).cluster()
    return visit.page(
        "topic_edit.html",
        topic=None,
        clusters=sorted(cluster.clusters),
        perms=PERMS,
        types=TYPES,
        before=None,
    )


async def create_topic(visit: Visit) -> Plan:
    """Make a topic."""
    name, queues, perm = await visit.field("topic"), await _queues(visit), await _perm(visit)
    cluster, kind = await visit.field("cluster"), await _type(visit)
    if not name:
        raise BadInput("A topic needs a name.")
    if not visit.is_sure:
        await _refuse_existing(await visit.admin(), name, cluster)

    async def do() -> Response:
        admin = await visit.access.admin()
        await admin.create_topic(
            name, queues=queues, perm=perm, cluster=cluster or None, message_type=kind
        )
        return visit.go(f"/topics/{segment(name)}", done="created")

    what = f"Create the topic {name} with {queues} queues on each broker ({PERMS[perm]})"
    what += f" and the type {kind}" if kind else ""
    return Plan("topic.create", name, what, do, "/topics")


async def _refuse_existing(admin: Admin, name: str, cluster: str) -> None:
    with suppress(RouteNotFound):
        there = [
            one.name
            for one in (await admin.topic_route(name)).brokers
            if cluster in ("", one.cluster)
        ]
        if there:
            raise exists("topic", name, there)


async def edit_topic(visit: Visit) -> Response:
    """Show the form that changes a topic."""
    name = visit.path("topic")
    found = await (await visit.admin()).topic_route(name)
    return visit.page(
        "topic_edit.html",
        topic=name,
        clusters=[],
        perms=PERMS,
        types=TYPES,
        before=found.settings[0],
    )


async def update_topic(visit: Visit) -> Plan:
    """Change a topic on all its brokers."""
    name, admin = visit.path("topic"), await visit.admin()
    queues, reads = await _queues(visit), await _queues(visit, "read_queues")
    perm, kind = await _perm(visit), await _type(visit)
    before = (await admin.topic_route(name)).settings
    notes = [
        f"{one.broker} has {one.write_queues} write queues, {one.read_queues} read queues, "
        f"{PERMS.get(one.perm.replace('x', ''), one.perm)} now."
        for one in before
    ]
    if any(reads < one.read_queues for one in before):
        notes.append("With fewer read queues, what is stored in the others is read no more.")
    if reads < queues:
        notes.append("Messages in queues that are written and not read are seen by nobody.")

    async def do() -> Response:
        await (await visit.access.admin()).update_topic(
            name, queues=queues, read_queues=reads, perm=perm, message_type=kind
        )
        return visit.go(f"/topics/{segment(name)}", done="updated")

    what = (
        f"Give the topic {name} {queues} write queues, {reads} read queues and the permission "
        f"“{PERMS[perm]}” on each of its brokers" + (f", and the type {kind}" if kind else "")
    )
    return Plan("topic.update", name, what, do, f"/topics/{segment(name)}", tuple(notes))


async def delete_topic(visit: Visit) -> Plan:
    """Delete a topic, whose name is to be written once more."""
    name, admin = visit.path("topic"), await visit.admin()
    found = await admin.describe_topic(name)
    notes = ["This cannot be undone."]
    if found.groups:
        notes.append(f"It is consumed by {', '.join(found.groups)}.")
    notes.append("Producers that go on sending make it anew where brokers create topics on demand.")

    async def do() -> Response:
        await (await visit.access.admin()).delete_topic(name)
        return visit.go("/topics", done="deleted")

    brokers = ", ".join(one.broker for one in found.settings)
    what = f"Delete the topic {name} with its {found.message_count:,} messages from {brokers}"
    back = f"/topics/{segment(name)}"
    return Plan("topic.delete", name, what, do, back, tuple(notes), typed=name, danger=True)


async def _queues(visit: Visit, name: str = "queues") -> int:
    return parse_number(await visit.field(name), "The number of queues", 1, QUEUES_MAX)


async def _perm(visit: Visit) -> str:
    perm = await visit.field("perm", "rw")
    if perm not in PERMS:
        raise BadInput(f"A permission is one of {', '.join(PERMS)}, not {perm[:20]!r}")
    return perm


async def _type(visit: Visit) -> MessageType | None:
    kind = await visit.field("type")
    if kind and kind not in TYPES:
        raise BadInput(f"A type is one of {', '.join(TYPES)}, not {kind[:20]!r}")
    return TYPES.get(kind)
