"""What waits: delayed messages, messages with a time of their own, open transactions."""

from __future__ import annotations

from starlette.responses import Response

from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.console.waiting import READ_MAX, SHOWN_MAX, waiting


async def pending(visit: Visit) -> Response:
    """Show what waits, and what cannot be known of it."""
    found = await waiting(await visit.admin())
    return visit.page("pending.html", found=found, read_max=READ_MAX, shown_max=SHOWN_MAX)
