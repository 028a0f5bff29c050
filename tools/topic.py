"""The commands `skylarkmq topic ...`."""

from __future__ import annotations

import click

from skylarkmq.client.admin import Admin
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.running import EXIT_CODES


@click.group(epilog=EXIT_CODES)
def topic() -> None:
    """Topics: list, look at, create, change, delete."""


@topic.command("list", epilog=EXIT_CODES)
@click.option("--system", is_flag=True, help="The brokers' own topics, too.")
@online
def list_topics(session: Session, system: bool) -> None:
    """List the topics."""

    async def work(admin: Admin) -> None:
        names = await admin.list_topics(system=system)
        session.output.rows([{"topic": name} for name in names], none="no topics")

    session.administer(work)
