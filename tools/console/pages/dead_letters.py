"""Dead letters: which groups have some, which ones, and sending them again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin, RedriveOutcome, RedriveTarget
from skylarkmq.client.admin.base import each
from skylarkmq.client.consumer.retry import DEAD_LETTER_REASON
from skylarkmq.client.errors import RocketMQError, RouteNotFound
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.search import Search, find
from skylarkmq.tools.console.text import BadInput, segment
from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.output import counted

SHOWN: Final = 50
RESENT_MAX: Final = 1_000
"""Of one click; the page says what is left."""
GROUPS_MAX: Final = 200
TARGETS: Final[dict[str, RedriveTarget]] = {"group": "group", "topic": "topic"}


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A group with dead letters; counts are None when its topic cannot be asked."""

    group: str
    count: int | None
    last: datetime | None = None


async def dead_letters(visit: Visit) -> Response:
    """List the groups that have dead letters."""
    admin = await visit.admin()
    topics = await admin.list_topics(groups=True)
    groups = [
        name.removeprefix(DLQ_GROUP_TOPIC_PREFIX)
        for name in topics
        if name.startswith(DLQ_GROUP_TOPIC_PREFIX)
    ]
    rows = await each(partial(_row, admin), groups[:GROUPS_MAX], ASKED_AT_ONCE)
    rows.sort(key=lambda one: (-(one.count or 0), one.group))
    return visit.page("dead_letters.html", rows=rows)


async def _row(admin: Admin, group: str) -> LetterRow:
    try:
        found = await admin.describe_topic(f"{DLQ_GROUP_TOPIC_PREFIX}{group}")
    except RocketMQError:
        return LetterRow(group, None)
    times = [queue.last_stored_at for queue in found.queues if queue.last_stored_at]
    return LetterRow(group, found.message_count, max(times, default=None))


async def letters_of(visit: Visit) -> Response:
    """Show a page of the dead letters of a group, the newest ones first."""
    group, admin = visit.path("group"), await visit.admin()
    row = await _row(admin, group)
    topic, found, older = f"{DLQ_GROUP_TOPIC_PREFIX}{group}", [], ""
    try:
        pages = await find(admin, Search(topic), visit.asked("cursor"), visit.unanswered)
        found, older = await pages.page(SHOWN), pages.cursor
    except RouteNotFound:
        pass
    return visit.page(
        "letters.html",
        group=group,
        topic=topic,
        count=row.count or 0,
        found=[(letter, reason_of(letter)) for letter in found],
        is_first=not visit.asked("cursor"),
        older=older,
    )


def reason_of(letter: StoredMessage) -> str:
    """Return why a message was given up, as far as it says so itself."""
    told = letter.properties.get(DEAD_LETTER_REASON, "")
    return told or "no reason is told"


async def resend(visit: Visit) -> Plan:
    """Send the letters that were chosen again, or all of them."""
    group = visit.path("group")
    to = TARGETS.get(await visit.field("to", "group"))
    if to is None:
        raise BadInput("Letters go to the group or to the topic.")
    is_all = await visit.field("which") == "all"
    names = (await visit.fields()).get("letter", [])
    if not is_all and not names:
        raise BadInput("No letter was chosen.")

    async def do() -> Response:
        admin, is_cut = await visit.access.admin(), False
        if is_all:
            outcomes, is_cut = await _resend_all(admin, group, to)
        else:  # all are found before one is sent, so that a wrong one ends it with nothing done
            letters = [await _letter(admin, group, name) for name in names]
            outcomes = [await admin.redrive_dead_letter(each, group, to=to) for each in letters]
        sent = sum(one.status == "sent" for one in outcomes)
        visit.outcome = f"{sent} of {len(outcomes)} sent"
        return visit.page("resent.html", group=group, to=to, outcomes=outcomes, is_cut=is_cut)

    chosen = counted(len(names), "dead letter")
    count = f"all dead letters (at most {RESENT_MAX:,})" if is_all else chosen
    where = "to this group alone" if to == "group" else "to the topics they were sent to first"
    what = f"Send {count} of {group} again, {where}"
    note = "The letters stay here until they expire: sent twice, they are consumed twice."
    return Plan(
        "dead_letters.resend", group, what, do, f"/dead-letters/{segment(group)}", (note,)
    )  # fmt: skip


async def _resend_all(
    admin: Admin, group: str, to: RedriveTarget
) -> tuple[list[RedriveOutcome], bool]:
    """Return the outcomes, and whether letters are left that were not tried."""
    outcomes: list[RedriveOutcome] = []
    scan = admin.dead_letters(group)
    async for letter in scan:
        outcomes.append(await admin.redrive_dead_letter(letter, group, to=to))
        if len(outcomes) >= RESENT_MAX:
            break
    return outcomes, scan.progress.scanned < scan.progress.total


async def _letter(admin: Admin, group: str, name: str) -> StoredMessage:
    """Return the letter at a place, `broker/queue/offset`.

    Raises:
        BadInput: there is none.
    """
    broker, _, rest = name.rpartition("/")[0].rpartition("/")
    place = name.rpartition("/")[2]
    if not broker or not rest.isdigit() or not place.isdigit():
        raise BadInput(f"{name[:80]!r} names no dead letter.")
    queue = MessageQueue(f"{DLQ_GROUP_TOPIC_PREFIX}{group}", broker, int(rest))
    async for letter in admin.dead_letters(group, after={queue: int(place)}):
        if letter.queue_offset == int(place):
            return letter
        break
    raise BadInput(f"The letter {name[:80]} is not there any more. Load the page again.")
