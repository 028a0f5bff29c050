"""Consumer groups: lag over time, members, what a member does; moving one, and its settings."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin
from skylarkmq.client.admin.base import each
from skylarkmq.client.admin.results import GroupProgress, GroupSettings, QueueProgress
from skylarkmq.client.errors import NotFound, RocketMQError, RouteNotFound
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.sorting import ordered
from skylarkmq.tools.console.text import BadInput, exists, parse_number, parse_time, segment
from skylarkmq.tools.console.visit import Visit

ROWS_MAX: Final = 500
OFFSET_MAX: Final = (1 << 63) - 1
COUNT_MAX: Final = 10_000
SWITCHES: Final = ("consume_enabled", "broadcast_enabled", "orderly")
NEW: Final = GroupSettings("")
PLACES: Final = {
    "end": "the end: skip what waits",
    "begin": "the beginning: all that is stored",
    "time": "a time",
    "offset": "an offset, in every queue",
}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list; `error` says why nothing is known of it."""

    name: str
    lag: int | None = None
    tps: float | None = None
    members: int | None = None
    differing: bool = False
    error: str = ""


async def groups(visit: Visit) -> Response:
    """List the groups, those with the most lag first."""
    admin, wanted = await visit.admin(), visit.asked("q").casefold()
    names = [name for name in await admin.list_groups() if wanted in name.casefold()]
    rows = await each(partial(_row, admin), names[:ROWS_MAX], ASKED_AT_ONCE)
    sort = visit.asked("sort", "-lag")
    return visit.page(
        "groups.html", rows=ordered(rows, sort), sort=sort, left=len(names) - len(rows),
        history=visit.access.history, q=visit.asked("q"),
    )  # fmt: skip


async def _row(admin: Admin, name: str) -> GroupRow:
    try:
        progress, members = await asyncio.gather(admin.progress(name), admin.consumers(name))
    except RocketMQError as error:
        return GroupRow(name, error=str(error))
    return GroupRow(name, progress.lag, progress.tps, len(members.members), bool(members.differing))


async def group(visit: Visit) -> Response:
    """Show one group: how far it is in each topic, and who is in it."""
    name, admin, history = visit.path("group"), await visit.admin(), visit.access.history
    found, progress = await asyncio.gather(admin.describe_group(name), admin.progress(name))
    samples = history.of("group", name)
    return visit.page(
        "group.html",
        group=found,
        progress=progress,
        topics=by_topic(progress),
        samples=samples,
        most=max((sample.value for sample in samples), default=None),
    )


def by_topic(progress: GroupProgress) -> dict[str, list[QueueProgress]]:
    """Return the queues by topic: the one with the most lag first, that of retries last."""
    found: dict[str, list[QueueProgress]] = {}
    for queue in progress.queues:
        found.setdefault(queue.queue.topic, []).append(queue)

    def rank(item: tuple[str, list[QueueProgress]]) -> tuple[bool, int]:
        return RETRY_GROUP_TOPIC_PREFIX in item[0], -sum(queue.lag for queue in item[1])

    return dict(sorted(found.items(), key=rank))


async def member(visit: Visit) -> Response:
    """Show what one member says that it does."""
    name, client_id = visit.path("group"), visit.path("client_id")
    found = await (await visit.admin()).member_info(name, client_id)
    return visit.page("member.html", group=name, member=found)


# Moving a group


async def reset(visit: Visit) -> Response:
    """Ask where to, and show what would happen, by a dry run that changes nothing."""
    name, admin = visit.path("group"), await visit.admin()
    wanted = {key: await visit.field(key) for key in ("topic", "to", "time", "offset")}
    plan = None
    if wanted["topic"] and not visit.failed:
        try:
            topic, place = wanted["topic"], place_of(wanted)
            plan = await admin.reset_offset(name, topic, dry_run=True, **place)
        except (BadInput, RouteNotFound) as error:
            visit.shows_again(error)
    topics = by_topic(await admin.progress(name))
    return visit.page(
        "reset.html",
        group=name,
        wanted=wanted,
        places=PLACES,
        topics=[topic for topic in topics if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)],
        plan=plan,
    )


async def do_reset(visit: Visit) -> Plan:
    """Move the group."""
    name = visit.path("group")
    wanted = {key: await visit.field(key) for key in ("topic", "to", "time", "offset")}
    topic, place = wanted["topic"], place_of(wanted)
    if not topic:
        raise BadInput("A topic is wanted: a group stands somewhere in each of its topics.")

    async def do() -> Response:
        await (await visit.access.admin()).reset_offset(name, topic, **place)
        return visit.go(f"/groups/{segment(name)}", done="reset")

    to = ", ".join(f"{key} {value}" for key, value in place.items())
    back = f"/groups/{segment(name)}"
    what = f"Move the group {name} in {topic}: {to}"
    return Plan("group.reset", name, what, do, back, danger=True)


def place_of(wanted: dict[str, str]) -> dict[str, Any]:
    """Return a place as `reset_offset` takes it.

    Raises:
        BadInput: it is none.
    """
    to = wanted["to"] or "end"
    if to in ("begin", "end"):
        return {"when": to}
    if to == "time":
        when: datetime | None = parse_time(wanted["time"], "The time")
        if when is None:
            raise BadInput("A time is wanted, in UTC, such as 2026-11-26 09:30")
        return {"when": when}
    if to == "offset":
        return {"offset": parse_number(wanted["offset"], "The offset", 0, OFFSET_MAX)}
    raise BadInput(f"A place is one of {', '.join(PLACES)}, not {to[:20]!r}")


# Making, changing and deleting one


async def new_group(visit: Visit) -> Response:
    """Show the form of a new group."""
    clusters = sorted((await (await visit.admin()).cluster()).clusters)
    return visit.page("group_edit.html", group=None, clusters=clusters, before=NEW)


async def edit_group(visit: Visit) -> Response:
    """Show the form that changes a group."""
    name = visit.path("group")
    found = await (await visit.admin()).describe_group(name)
    return visit.page("group_edit.html", group=name, clusters=[], before=found.settings[0])


async def create_group(visit: Visit) -> Plan:
    """Make a group."""
    name, wanted = await visit.field("group"), await _settings(visit)
    cluster = await visit.field("cluster")
    if not name:
        raise BadInput("A group needs a name.")
    if not visit.is_sure:
        await _refuse_existing(await visit.admin(), name, cluster)

    async def do() -> Response:
        admin = await visit.access.admin()
        await admin.create_group(name, cluster=cluster or None, **wanted)
        return visit.go(f"/groups/{segment(name)}", done="created")

    return Plan(
        "group.create", name, f"Create the group {name} with {_told(wanted)}", do, "/groups"
    )


async def _refuse_existing(admin: Admin, name: str, cluster: str) -> None:
    with suppress(NotFound):
        found = (await admin.describe_group(name)).settings
        targets = (await admin.cluster()).clusters
        there = [
            one.broker for one in found if not cluster or one.broker in targets.get(cluster, ())
        ]
        if there:
            raise exists("group", name, there)


async def update_group(visit: Visit) -> Plan:
    """Change a group on all brokers that have it."""
    name, wanted, admin = visit.path("group"), await _settings(visit), await visit.admin()
    notes = [
        f"{one.broker} has {_told({key: getattr(one, key) for key in wanted})} now."
        for one in (await admin.describe_group(name)).settings
    ]
    back = f"/groups/{segment(name)}"

    async def do() -> Response:
        await (await visit.access.admin()).update_group(name, **wanted)
        return visit.go(back, done="updated")

    return Plan(
        "group.update", name, f"Give the group {name} {_told(wanted)}", do, back, tuple(notes)
    )  # fmt: skip


async def delete_group(visit: Visit) -> Plan:
    """Delete a group with its offsets, whose name is to be written once more."""
    name, admin = visit.path("group"), await visit.admin()
    found = await admin.describe_group(name)
    notes = [
        "Where it stands is forgotten. This cannot be undone.",
        "Its retries and dead letters stay; they are topics of their own.",
    ]
    if count := len(found.members.members):
        notes.append(f"{count} members are connected: their next heartbeat brings the group back.")

    async def do() -> Response:
        await (await visit.access.admin()).delete_group(name)
        return visit.go("/groups", done="deleted")

    brokers = ", ".join(one.broker for one in found.settings)
    what, back = f"Delete the group {name} from {brokers}", f"/groups/{segment(name)}"
    return Plan("group.delete", name, what, do, back, tuple(notes), typed=name, danger=True)


async def _settings(visit: Visit) -> dict[str, Any]:
    """Return the settings of the form, as `create_group` takes them."""
    numbers = {
        "max_retries": parse_number(await visit.field("max_retries"), "Retries", 0, COUNT_MAX),
        "retry_queues": parse_number(await visit.field("retry_queues"), "Retry queues", 0, 1024),
    }
    return {**numbers, **{name: bool(await visit.field(name)) for name in SWITCHES}}


def _told(settings: dict[str, Any]) -> str:
    words = {True: "yes", False: "no"}
    return ", ".join(
        f"{name.replace('_', ' ')} {words[value] if isinstance(value, bool) else value}"
        for name, value in settings.items()
    )
