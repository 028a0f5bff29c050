"""What changes something: it asks first, is done once, and is noted.

A planner reads the fields of a form and returns a `Plan`. Without an answer to its question the
page shows the plan, and nothing has changed: what can be found wrong before is found there, and the
form is shown again. These routes exist with `--write` alone.

Each change becomes one line of JSON of the logger `skylarkmq.audit`, also one that failed:

    {"ts":"2024-01-31T12:00:00.123Z","who":"operator","from":"10.0.0.7","action":"topic.delete",
     "resource":"orders","what":"delete the topic orders ...","result":"done"}

`who` is the account, empty without one. No secret and no message is in it. The brokers' own audit
log has the same change by its requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from skylarkmq.client.errors import AuthError, RocketMQError
from skylarkmq.tools.console.text import BadInput
from skylarkmq.tools.console.visit import Visit, Work

audit_log = logging.getLogger("skylarkmq.audit")
OWN_FIELDS: Final = frozenset({"token", "sure", "typed", "done"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change would do."""

    action: str
    """For programs that read the audit log: `topic.delete`."""
    resource: str
    what: str
    """An imperative: "Delete the topic orders and its 12 messages"."""
    do: Callable[[], Awaitable[Response]]
    """Changes it; it may set the visit's `outcome` to something else than "done"."""
    back: str
    """The page to go to instead."""
    notes: tuple[str, ...] = ()
    """What somebody should know before."""
    typed: str = ""
    """Has to be written once more: there is no way back."""
    danger: bool = False
    """It takes something away."""


Planner = Callable[[Visit], Awaitable[Plan]]


def changing(planner: Planner, form: Work | None = None) -> Work:
    """Return the work of a page that asks, and does what was asked once it is told to.

    Args:
        form: the page before; it is shown again when something is wrong with what was entered.
    """

    async def work(visit: Visit) -> Response:
        try:
            return await asked_or_done(visit)
        except AuthError:
            raise
        except (RocketMQError, ValueError) as error:
            if form is None or not visit.is_post:
                raise
            visit.shows_again(error)
            return await form(visit)

    async def asked_or_done(visit: Visit) -> Response:
        plan, fields = await planner(visit), await visit.fields()
        if not visit.is_sure:
            kept = [(name, value) for name, values in fields.items() for value in values]
            kept = [pair for pair in kept if pair[0] not in OWN_FIELDS]
            return visit.page("confirm.html", plan=plan, kept=kept)
        if plan.typed and await visit.field("typed") != plan.typed:
            raise BadInput(f"To confirm, the name has to be written as it is: {plan.typed}")
        try:
            answer = await plan.do()
        except Exception as error:
            _note(visit, plan, str(error))
            raise
        except asyncio.CancelledError:
            _note(visit, plan, "unknown: it was interrupted")
            raise
        _note(visit, plan, visit.outcome)
        return answer

    return work


def _note(visit: Visit, plan: Plan, result: str) -> None:
    account = visit.session.credentials or visit.settings.credentials
    peer = visit.request.client
    row = {
        "ts": visit.console.now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "who": account.access_key if account else "",
        "from": peer.host if peer else "",
        "action": plan.action,
        "resource": plan.resource,
        "what": plan.what,
        "result": result,
    }
    audit_log.info("%s", json.dumps(row, ensure_ascii=False))
