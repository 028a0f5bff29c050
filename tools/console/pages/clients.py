"""Clients that are connected: members of consumer groups, and producers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from skylarkmq.client.admin import Admin
from skylarkmq.client.admin.base import each
from skylarkmq.client.admin.results import Connection, GroupMembers
from skylarkmq.client.errors import NotSupported, RocketMQError
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.console.visit import Visit

GROUPS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client in one group."""

    group: str
    connection: Connection
    model: str = ""


async def clients(visit: Visit) -> Response:
    """List consumers and producers."""
    admin, wanted = await visit.admin(), visit.asked("q").casefold()
    consumers, (producers, why) = await asyncio.gather(_consumers(admin), _producers(admin))

    def is_wanted(row: ClientRow) -> bool:
        texts = (row.group, row.connection.client_id, row.connection.address)
        return any(wanted in text.casefold() for text in texts)

    return visit.page(
        "clients.html",
        consumers=[row for row in consumers if is_wanted(row)],
        producers=[row for row in producers if is_wanted(row)],
        why_no_producers=why,
        q=visit.asked("q"),
    )


async def _consumers(admin: Admin) -> list[ClientRow]:
    async def members(group: str) -> GroupMembers:
        try:
            return await admin.consumers(group)
        except RocketMQError:  # it went away; the page of the group says more
            return GroupMembers(group, ())

    names = await admin.list_groups()
    found = await each(members, names[:GROUPS_MAX], ASKED_AT_ONCE)
    return [ClientRow(one.group, each, one.model) for one in found for each in one.members]


async def _producers(admin: Admin) -> tuple[list[ClientRow], str]:
    """Return the producers, or why they are not known."""
    try:
        groups = await admin.producer_groups()
    except NotSupported as error:
        return [], str(error)
    except RocketMQError as error:
        return [], f"A broker does not list its producers: {error}"
    return [ClientRow(group, each) for group, found in groups.items() for each in found], ""
