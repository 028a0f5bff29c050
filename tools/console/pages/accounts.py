"""Accounts of the brokers' access control, without their secrets."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from skylarkmq.client.admin import AccessRules, Admin
from skylarkmq.client.admin.base import each
from skylarkmq.client.errors import AuthError, RocketMQError
from skylarkmq.tools.acl import asked, rights_text
from skylarkmq.tools.console.visit import Visit


async def accounts(visit: Visit) -> Response:
    """Show accounts and white lists, broker by broker: each has its own."""
    admin = await visit.admin()
    brokers = [broker.name for broker in (await admin.cluster()).brokers]
    rows = await each(partial(_rules, admin), brokers)
    refused = [rules for _, rules in rows if isinstance(rules, AuthError)]
    if refused and len(refused) == len(rows):
        raise refused[0]
    return visit.page("accounts.html", rows=rows, rights_text=rights_text)


async def _rules(admin: Admin, broker: str) -> tuple[str, AccessRules | RocketMQError]:
    """Return the rules of a broker, or why they are not known."""
    try:
        return broker, await asked(admin, admin.access_rules, broker)
    except RocketMQError as error:
        return broker, error
