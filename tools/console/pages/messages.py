"""Messages: search, export, one message and who has consumed it, its trace; sending one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Final

from starlette.responses import Response, StreamingResponse

from skylarkmq.client.admin import Admin, MessageTrack
from skylarkmq.client.admin.base import each
from skylarkmq.client.errors import IllegalState, NotFound, RocketMQError, RouteNotFound
from skylarkmq.client.message_json import message_to_send, own_properties
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.client.send_result import SendStatus
from skylarkmq.protocol.properties import PRIORITY_MAX, SHARDING_KEY
from skylarkmq.protocol.topic_attributes import has_priorities
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.console.bodies import FORMS, body_of
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.search import KEY_MAX, WAYS, Found, Search, at, find
from skylarkmq.tools.console.text import BadInput, address, parse_number, parse_time
from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.output import counted

LIMIT: Final = KEY_MAX
EXPORTED_MAX: Final = 10_000
ENCODINGS: Final = ("text", "json", "base64", "hex")


async def messages(visit: Visit) -> Response:
    """Show the form of the search, and a page of what was found."""
    search, admin = _search(visit), await visit.admin()
    found: list[StoredMessage] = []
    older = ""
    if search.is_asked:
        pages = await find(admin, search, visit.asked("cursor"), visit.unanswered)
        found, older = await pages.page(LIMIT), pages.cursor
    return visit.page(
        "messages.html",
        search=search,
        is_first=not visit.asked("cursor"),
        found=found,
        older=older,
        is_cut=search.way == "key" and len(found) == KEY_MAX,
        exported_max=EXPORTED_MAX,
        export=address("/messages/export", **visit.request.query_params),
        ways=WAYS,
        topics=await admin.list_topics(groups=True),
    )


async def export(visit: Visit) -> Response:
    """Answer with what was found as JSON lines, which `skylarkmq produce --input json` takes.

    All brokers have to answer: nothing may be missing unseen.
    """
    search = _search(visit)
    if not search.is_asked:
        raise BadInput("Choose a topic first.")
    await visit.admin()  # which looks for who is gone
    if visit.gone:
        raise IllegalState(
            f"the export would be without {visit.gone[0]}", hint="The overview says what to do"
        )
    pages = await find(await visit.access.admin(), search)
    first = await pages.page(LIMIT)  # an error is a page still
    return StreamingResponse(
        _lines(first, pages),
        media_type="application/x-ndjson",
        headers={"Content-Disposition": 'attachment; filename="messages.ndjson"'},
    )


async def _lines(page: list[StoredMessage], pages: Found) -> AsyncGenerator[str]:
    count = 0
    while page:
        yield "".join(f"{json.dumps(one.to_json(), ensure_ascii=False)}\n" for one in page)
        count += len(page)
        page = await pages.page(min(LIMIT, EXPORTED_MAX - count))


def _search(visit: Visit) -> Search:
    return Search(
        visit.asked("topic"),
        visit.asked("by", "latest"),
        visit.asked("value"),
        parse_time(visit.asked("from"), "From"),
        parse_time(visit.asked("to"), "Until"),
    )


async def message(visit: Visit) -> Response:
    """Show one message."""
    admin, wanted = await visit.admin(), visit.asked("id")
    found = await at(admin, wanted)
    if found is None:
        raise NotFound(
            f"no broker of the cluster has a message {wanted[:80]!r}",
            hint="It may have expired; an id that a producer made is looked for with its topic",
        )
    try:
        groups = await admin.topic_groups(found.topic)
    except RouteNotFound:  # it is deleted, or one of the brokers' own that has no route
        groups = []
    form = visit.asked("as")
    return visit.page(
        "message.html",
        message=found,
        body=body_of(found, form if form in FORMS else ""),
        forms=FORMS,
        tracks=await each(partial(_track, admin, found), groups, ASKED_AT_ONCE),
    )


async def _track(admin: Admin, found: StoredMessage, group: str) -> MessageTrack | str:
    """Return how a group stands to a message, or why that is not known."""
    try:
        return await admin.track(found, group)
    except RocketMQError as error:
        return f"{group}: {error}"


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


# Sending


async def new_message(visit: Visit) -> Response:
    """Show the form of a message."""
    admin, topic = await visit.admin(), visit.asked("topic")
    may_have_priority = True
    with suppress(RocketMQError, ValueError):  # there is no such topic, or it may not be asked for
        found = await admin.topic_attributes(topic)
        may_have_priority = any(map(has_priorities, found.values()))
    return visit.page(
        "send.html",
        topics=await admin.list_topics(),
        topic=topic,
        may_have_priority=may_have_priority,
        encodings=ENCODINGS,
    )


async def send(visit: Visit) -> Plan:
    """Send a message."""
    fields = await visit.fields()
    topic, encoding = await visit.field("topic"), await visit.field("encoding", "text")
    body = fields.get("body", [""])[0].replace("\r\n", "\n")  # as browsers send it
    pairs = [line.partition("=") for line in (await visit.field("properties")).splitlines()]
    if any(not (name.strip() and equals) for name, equals, _ in pairs):
        raise BadInput("Properties are lines of name=value.")
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    for name in properties.keys() - own_properties(properties).keys() - {SHARDING_KEY}:
        raise BadInput(
            f"{name[:80]!r} has no value, or is a name of RocketMQ's own: tag, keys and priority "
            "have fields of their own."
        )
    if encoding == "json":
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"The body is no JSON: {error}") from None
    priority = await visit.field("priority")
    row = {
        "body": body,
        "body_encoding": "text" if encoding == "json" else encoding,  # stays as it is written
        "tags": await visit.field("tags") or None,
        "keys": await visit.field("keys"),
        "priority": parse_number(priority, "A priority", 0, PRIORITY_MAX) if priority else None,
        "properties": properties,
    }
    message = message_to_send(topic, row)
    await (await visit.admin()).topic_route(topic)  # a name that is mistyped would become a topic

    async def do() -> Response:
        limit_s = visit.settings.timeout
        async with Producer(client=visit.access.client, send_timeout=limit_s) as producer:
            result = await producer.send(message)
        is_sure = result.status is SendStatus.SEND_OK
        visit.outcome = f"{result.status.value} {result.msg_id}"
        done = "sent" if is_sure else "unconfirmed"
        return visit.go("/messages/view", id=result.offset_msg_id, done=done)

    what = f"Send a message of {counted(len(message.body), 'byte')} to the topic {topic}"
    about = ("priority", "tags", "keys")
    given = ", ".join(f"{name} {row[name]}" for name in about if row[name] not in (None, ""))
    notes = (
        *([f"With {given}."] if given else []),
        "Every group that consumes the topic gets it.",
    )
    return Plan("message.send", topic, what, do, address("/messages/send", topic=topic), notes)
