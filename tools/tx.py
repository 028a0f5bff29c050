"""The commands `skylarkmq tx ...`: transactions that have not ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import click

from skylarkmq.client.instance import Client
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.moments import Span, age_text, now
from skylarkmq.tools.output import Columns, moment
from skylarkmq.tools.running import EXIT_CODES

COLUMNS: Final[Columns] = {
    "BORN": moment("born_at"), "AGE": lambda row: age_text(timedelta(seconds=row["age_s"])),
    "TOPIC": "topic", "PRODUCER GROUP": "group", "CHECKS": "checks", "BROKER": "broker",
    "KEYS": "keys", "MESSAGE ID": "msg_id",
}  # fmt: skip


@click.group(epilog=EXIT_CODES)
def tx() -> None:
    """Transactions: list those that are open."""


@tx.command("list", epilog=EXIT_CODES)
@click.option("--topic", metavar="TOPIC", help="Only those of messages to it.")
@click.option(
    "--older", type=Span(), metavar="SPAN", help="Only those that are open that long: 5m."
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@online
def list_open(session: Session, topic: str | None, older: timedelta | None, limit: int) -> None:
    """List the transactions that are neither committed nor rolled back, the oldest first.

    CHECKS says how often the broker has asked the producer group how it ended; a group that does
    not answer has no producer with a check running, or an old one. Exit code 3: there is
    no such topic.
    """

    async def work(client: Client) -> None:
        async with session.looking(client) as admin:
            found = await admin.open_transactions(topic=topic, limit=limit)
            if topic is not None and not found:
                await admin.topic_route(topic)  # which says so when there is no such topic
        at = now(client)
        rows = [
            {**one.to_json(), "age_s": round((at - one.born_at).total_seconds(), 1)}
            for one in found
            if older is None or at - one.born_at >= older
        ]
        session.output.rows(rows, COLUMNS, none="no open transactions")

    session.run(work)
