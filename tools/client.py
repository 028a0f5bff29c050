"""The commands `skylarkmq client ...`: who is connected, and what a consumer is doing."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import click

from skylarkmq.client.admin import Admin, Connection
from skylarkmq.client.errors import BrokerError, NotFound
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.output import (
    Columns,
    Parts,
    ProgressBar,
    Row,
    release_text,
    version_text,
    visible,
)
from skylarkmq.tools.running import EXIT_CODES

CLIENTS: Final[Columns] = {
    "CLIENT": "client_id", "ROLE": "role", "GROUP": "group", "ADDRESS": "address",
    "LANGUAGE": "language", "VERSION": "release",
    "BROKERS": "brokers",
}  # fmt: skip
QUEUES: Final[Columns] = {
    "GROUP": "group",
    "TOPIC": lambda row: row["queue"]["topic"],
    "BROKER": lambda row: row["queue"]["broker"],
    "QUEUE": lambda row: row["queue"]["queue_id"],
    "COMMITTED": lambda row: row["values"].get("commitOffset"),
    "CACHED": lambda row: row["values"].get("cachedMsgCount"),
    "LOCKED": lambda row: row["values"].get("locked"),
}  # fmt: skip


@click.group(epilog=EXIT_CODES)
def client() -> None:
    """Clients: who is connected, what a consumer is doing."""


@client.command("list", epilog=EXIT_CODES)
@click.option("--group", metavar="NAME", help="Of this producer or consumer group only.")
@click.option("--role", type=click.Choice(["producer", "consumer"]), help="Of this kind only.")
@online
def list_clients(session: Session, group: str | None, role: str | None) -> None:
    """List the producers and consumers that are connected, with the brokers that know them.

    Exit code 3: there is no consumer group --group, and no producer of it is connected.
    """

    async def work(admin: Admin) -> None:
        rows: list[Row] = []
        if role != "consumer":
            rows += await _producers(admin, group)
        if role != "producer":
            rows += await _consumers(admin, group)
        if group is not None and not rows:
            await _require_group(admin, group, role)
        session.output.rows(rows, CLIENTS, none="no clients")

    session.look(work)


@client.command("show", epilog=EXIT_CODES)
@click.argument("client_id")
@click.option("--group", metavar="NAME", help="As a member of this group; else in all its groups.")
@click.option("--stack", is_flag=True, help="With the stacks of its threads, from Java clients.")
@online
def show(session: Session, client_id: str, group: str | None, stack: bool) -> None:
    """Show what a client is doing: its groups, subscriptions, queues and rates.

    A consumer is asked through its broker, which waits ten seconds for its answer.
    """

    async def work(admin: Admin) -> None:
        listed = await _producers(admin, group) + await _consumers(admin, group)
        mine = [row for row in listed if row["client_id"] == client_id]
        if not mine:
            known = ", ".join(sorted({row["client_id"] for row in listed})) or "none"
            raise NotFound(f"no client {client_id} is connected; connected: {known}")
        told: list[dict[str, Any]] = []
        for row in mine:
            if row["role"] == "consumer":
                info = await admin.member_info(row["group"], client_id, stack=stack)
                told.append({"group": row["group"], **info.to_json()})
        fields = {"client_id": client_id, "connections": mine, "consumers": told}
        queues = [{"group": one["group"], **queue} for one in told for queue in one["queues"]]
        rates = [
            {"group": one["group"], "topic": topic, **values}
            for one in told
            for topic, values in one["topics"].items()
        ]
        parts: Parts = {
            "Connections": (mine, CLIENTS),
            "Queues": (queues, QUEUES),
            "Rates": (rates, None),
        }
        session.output.parts(fields, parts)
        for one in told:
            if session.output.is_table and one["stack"]:
                click.echo("\n" + visible(one["stack"], "\n\t"))

    session.look(work)


async def _require_group(admin: Admin, group: str, role: str | None) -> None:
    """Raise NotFound where no clients are found, as there is no such group: its name is wrong."""
    if role == "producer":  # such a group is known only while a producer is connected
        raise NotFound(f"no producer of the group {group} is connected")
    if role == "consumer" and await admin.producers(group):
        return
    with contextlib.suppress(BrokerError):  # the account may not ask
        await admin.describe_group(group)


async def _producers(admin: Admin, group: str | None) -> list[Row]:
    if group is not None:
        return _rows("producer", group, await admin.producers(group))
    groups = await admin.producer_groups()
    return [row for name, found in groups.items() for row in _rows("producer", name, found)]


async def _consumers(admin: Admin, group: str | None) -> list[Row]:
    names = [group] if group is not None else await admin.list_groups()
    rows: list[Row] = []
    with ProgressBar() as bar:
        for count, name in enumerate(names, 1):
            rows += _rows("consumer", name, (await admin.consumers(name)).members)
            bar("groups", count, len(names))
    return rows


def _rows(role: str, group: str, found: list[Connection] | tuple[Connection, ...]) -> list[Row]:
    return [
        {
            "role": role,
            "group": group,
            **each.to_json(),
            "release": release_text(version_text(each.version)),
        }
        for each in found
    ]
