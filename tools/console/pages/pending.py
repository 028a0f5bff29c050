"""What waits: delayed messages, messages with a time of their own, open transactions."""

from __future__ import annotations

from starlette.responses import Response

from skylarkmq.client.errors import IllegalState
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.text import moment
from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.console.waiting import READ_MAX, SHOWN_MAX, waiting
from skylarkmq.tools.delay import take_back, waiting_message


async def pending(visit: Visit) -> Response:
    """Show what waits, and what cannot be known of it."""
    found = await waiting(await visit.admin())
    return visit.page("pending.html", found=found, read_max=READ_MAX, shown_max=SHOWN_MAX)


async def cancel(visit: Visit) -> Plan:
    """Take back a message that waits for a time of its own."""
    message = await waiting_message(await visit.admin(), await visit.field("id"))

    async def do() -> Response:
        if not await take_back(visit.access.client, message, visit.settings.timeout):
            raise IllegalState(f"the time of {message.msg_id} has come, it is delivered")
        return visit.go("/pending", done="cancelled")

    what = (
        f"Take back the message {message.msg_id}, which is due at {moment(message.due_at)} UTC in "
        f"the topic {message.topic}"
    )
    notes = ("It is never delivered then.",)
    return Plan("message.cancel", message.msg_id, what, do, "/pending", notes, danger=True)
