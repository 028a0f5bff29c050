"""Topics: the list, one topic, and making, changing and deleting one."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
)
from skylarkmq.tools.console.text import BadInput, parse_number, segment
from skylarkmq.tools.console.visit import Visit

QUEUES_MAX: Final = 1024
PERMS: Final = {
    "rw": "read and write",
    "r": "read only",
    "w": "write only",
    "": "neither",
}
KINDS: Final = ("application", "retry", "dead letters", "system")


async def topics(visit: Visit) -> Response:
    """List the topics."""
    admin = await visit.admin()
    kind, wanted = visit.asked("kind", KINDS[0]), visit.asked("q").casefold()
    names = await admin.list_topics(system=True, groups=True)
    kinds = {name: kind_of(name) for name in names}
    own = await admin.list_topics(groups=True)  # without the brokers' own
    kinds |= {name: "system" for name in set(names) - set(own)}
    shown = [name for name in names if kinds[name] == kind and wanted in name.casefold()]
    counts = {each: sum(found == each for found in kinds.values()) for each in KINDS}
    return visit.page(
        "topics.html", topics=shown, kind=kind, counts=counts, q=visit.asked("q"), kinds=KINDS
    )


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
    found, cluster = await asyncio.gather(admin.describe_topic(name), admin.cluster())
    lags = {group: history.last("group", group) for group in found.groups}
    return visit.page(
        "topic.html",
        topic=found,
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
    visit.require_write()
    cluster = await (await visit.admin()).cluster()
    return visit.page(
        "topic_edit.html", topic=None, clusters=sorted(cluster.clusters), perms=PERMS, before=None
    )


async def create_topic(visit: Visit) -> Response:
    """Make a topic."""
    name = await visit.field("topic")
    if not name:
        raise BadInput("A topic needs a name.")
    await (await visit.admin()).create_topic(
        name,
        queues=await _queues(visit),
        perm=await _perm(visit),
        cluster=await visit.field("cluster") or None,
    )
    return visit.go(f"/topics/{segment(name)}", done="created")


async def edit_topic(visit: Visit) -> Response:
    """Show the form that changes a topic."""
    visit.require_write()
    name = visit.path("topic")
    found = await (await visit.admin()).describe_topic(name)
    return visit.page(
        "topic_edit.html", topic=name, clusters=[], perms=PERMS, before=found.settings[0]
    )


async def update_topic(visit: Visit) -> Response:
    """Change a topic on all its brokers."""
    name = visit.path("topic")
    queues, reads = await _queues(visit), await _queues(visit, "read_queues")
    admin = await visit.admin()
    await admin.update_topic(name, queues=queues, read_queues=reads, perm=await _perm(visit))
    return visit.go(f"/topics/{segment(name)}", done="updated")


async def ask_delete(visit: Visit) -> Response:
    """Say what a deletion does, and ask for the name."""
    visit.require_write()
    found = await (await visit.admin()).describe_topic(visit.path("topic"))
    return visit.page("topic_delete.html", topic=found)


async def delete_topic(visit: Visit) -> Response:
    """Delete a topic, whose name was written once more."""
    name = visit.path("topic")
    if await visit.field("name") != name:
        raise BadInput(f"To delete the topic, its name has to be written as it is: {name}")
    await (await visit.admin()).delete_topic(name)
    return visit.go("/topics", done="deleted")


async def _queues(visit: Visit, name: str = "queues") -> int:
    return parse_number(await visit.field(name), "The number of queues", 1, QUEUES_MAX)


async def _perm(visit: Visit) -> str:
    perm = await visit.field("perm", "rw")
    if perm not in PERMS:
        raise BadInput(f"A permission is one of {', '.join(PERMS)}, not {perm[:20]!r}")
    return perm
