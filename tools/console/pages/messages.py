"""Messages: search by key, id, time or place; one message with its body; its trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin
from skylarkmq.client.errors import NotFound, RouteNotFound
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.console.bodies import FORMS, body_of, preview
from skylarkmq.tools.console.text import BadInput, parse_time
from skylarkmq.tools.console.visit import Visit

LIMIT: Final = 64
WAYS: Final = {
    "latest": "the latest",
    "key": "key",
    "id": "message id",
    "time": "time",
}


@dataclass(frozen=True, slots=True)
class Search:
    """What was looked for."""

    topic: str
    way: str
    value: str
    start: datetime | None
    stop: datetime | None


@dataclass(frozen=True, slots=True)
class Found:
    """A message in a list."""

    message: StoredMessage
    preview: str = field(default="")


async def messages(visit: Visit) -> Response:
    """Show the form of the search, and what was found."""
    search = Search(
        visit.asked("topic"),
        visit.asked("by", "latest"),
        visit.asked("value"),
        parse_time(visit.asked("from"), "From"),
        parse_time(visit.asked("to"), "Until"),
    )
    admin = await visit.admin()
    is_asked = bool(search.topic) or (search.way == "id" and bool(search.value))
    found = await _find(admin, search) if is_asked else []
    return visit.page(
        "messages.html",
        search=search,
        is_asked=is_asked,
        found=[Found(message, preview(message)) for message in reversed(found)],
        limit=LIMIT,
        ways=WAYS,
        topics=await admin.list_topics(groups=True),
    )


async def _find(admin: Admin, search: Search) -> list[StoredMessage]:
    """Return what the search finds, the oldest first.

    Raises:
        BadInput: a part of it is missing.
    """
    if search.way == "latest":
        return await latest(admin, search.topic, LIMIT)
    if search.way == "time":
        if search.start is None and search.stop is None:
            raise BadInput("A search by time wants a beginning, an end, or both.")
        return await admin.query(search.topic, start=search.start, stop=search.stop, limit=LIMIT)
    if search.way not in WAYS:
        raise BadInput(f"A search goes by {', '.join(WAYS)}, not by {search.way[:20]!r}")
    if not search.value:
        raise BadInput(f"A search by {WAYS[search.way]} wants one.")
    if search.way == "key":
        return await admin.query(
            search.topic, key=search.value, start=search.start, stop=search.stop, limit=LIMIT
        )
    found: list[StoredMessage] = []
    if search.topic:
        found = await admin.query(search.topic, msg_id=search.value, limit=LIMIT)
    if not found and (at_place := await at(admin, search.value)) is not None:
        found = [at_place]
    return found


async def latest(admin: Admin, topic: str, limit: int) -> list[StoredMessage]:
    """Return the newest messages of a topic, the oldest of them first."""
    queues = (await admin.describe_topic(topic)).queues
    after = {
        each.queue: max(each.begin, each.end - limit) for each in queues if each.end > each.begin
    }
    found = await read_after(admin, topic, after)
    found.sort(key=lambda message: message.stored_at)
    return found[-limit:]


async def read_after(
    admin: Admin, topic: str, after: dict[MessageQueue, int]
) -> list[StoredMessage]:
    """Return the messages from these offsets on."""
    return [message async for message in admin.scan(topic, after=after)] if after else []


async def at(admin: Admin, offset_msg_id: str) -> StoredMessage | None:
    """Return the message that an offset id names; None: it is no such id, or it is gone."""
    try:
        return await admin.message(offset_msg_id)
    except ValueError:
        return None


async def message(visit: Visit) -> Response:
    """Show one message."""
    admin, wanted = await visit.admin(), visit.asked("id")
    found = await at(admin, wanted)
    if found is None:
        raise NotFound(
            f"no broker of the cluster has a message {wanted[:80]!r}",
            hint="It may have expired; an id that a producer made is looked for with its topic",
        )
    form = visit.asked("as")
    return visit.page(
        "message.html",
        message=found,
        body=body_of(found, form if form in FORMS else ""),
        forms=FORMS,
    )


async def trace(visit: Visit) -> Response:
    """Show what clients told of a message: sent by whom, delivered to whom."""
    wanted, topic = visit.asked("id"), visit.asked("topic", TRACE_TOPIC)
    found, is_kept = None, True
    if wanted:
        try:
            found = await (await visit.admin()).trace(wanted, topic=topic)
        except RouteNotFound:
            is_kept = False
    return visit.page(
        "trace.html", wanted=wanted, topic=topic, default=TRACE_TOPIC, trace=found, is_kept=is_kept
    )
