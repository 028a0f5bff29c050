"""The command `skylarkmq doctor`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, Literal, get_args

import click

from skylarkmq.client.instance import Client
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.doctor.checks import Examination, not_looked_at
from skylarkmq.tools.doctor.findings import ORDER, Finding, arranged
from skylarkmq.tools.doctor.limits import limits
from skylarkmq.tools.output import ProgressBar, Report, refusal_of, told_once
from skylarkmq.tools.running import EXIT_CODES

Look = Literal[
    "replicas", "addresses", "clocks", "disks", "registrations", "topics", "groups", "limits"
]
LOOKS: Final[tuple[Look, ...]] = get_args(Look)
"""Methods of Examination, but `limits`, which looks at this machine."""


@click.command(epilog=f"{EXIT_CODES} 1 also stands for findings.")
@click.option("--only", multiple=True, type=click.Choice(LOOKS), help="Only this look; repeatable.")
@click.option("--ignore", multiple=True, metavar="KIND", help="Leave out findings of this kind; "
              "repeatable.")  # fmt: skip
@click.option("--skew", default=5.0, type=click.FloatRange(min=1), show_default=True,
              help="Seconds that clocks may differ.")  # fmt: skip
@online
def doctor(session: Session, only: tuple[str, ...], ignore: tuple[str, ...], skew: float) -> None:
    """Look for what is wrong with a cluster, as clients on this machine see it.

    All that `cluster health` finds, and what takes longer. `skylarkmq health` asks one broker.

    Wrong advertised addresses, clocks, full and slow disks, low limits, slaves that do not answer,
    members of a group that subscribe differently, lag that nobody works on, registrations that are
    missing, topics that differ between brokers. Each finding has its cause and its cure. Nothing is
    changed. Exit code 1 when there are findings; what could not be looked at is one.
    """
    wanted = only or LOOKS
    # Findings tell what the SDK would log as well, such as that a broker is silent.
    logging.getLogger("skylarkmq").addHandler(logging.NullHandler())

    async def work(client: Client) -> int:
        with ProgressBar() as progress:
            findings = await examined(session, client, wanted, skew, progress)
        found = [one for one in findings if one.kind not in ignore]
        _print(session, wanted, found)
        return 1 if found else 0

    session.run(work)


async def examined(
    session: Session, client: Client, wanted: Collection[str], skew: float, report: Report
) -> list[Finding]:
    """Return what these of the LOOKS find, the worst first."""

    def at(server: str) -> Client:
        return replace(session, namesrv=server).client()

    async with session.looking(client) as admin:
        look = Examination(at, client, admin, skew, report)
        found = await look.found(name for name in LOOKS if name in wanted and name != "limits")
    if "limits" in wanted:
        found += limits()
    told = [refusal_of(one.cause) for one in found if one.kind == "not_looked_at"]
    found += [
        not_looked_at(one.broker, str(one))
        for one in session.output.unanswered.values()
        if not any(refusal_of(str(one.error)) in cause for cause in told)
    ]
    session.output.told_unanswered()
    rows: Any = told_once([one.to_json() for one in found], "cause")
    return arranged(Finding(**row) for row in rows)


def findings_json(wanted: Collection[str], found: list[Finding]) -> dict[str, Any]:
    """Return findings as programs get them."""
    return {"looked_at": [*wanted], "findings": [one.to_json() for one in found]}


def _print(session: Session, wanted: tuple[str, ...], found: list[Finding]) -> None:
    if not session.output.is_table:
        session.output.one(findings_json(wanted, found))
        return
    for one in found:
        mark = click.style(one.severity, fg="red" if one.severity == "critical" else "yellow")
        click.echo(f"{mark} {one.kind}: {one.subject}\n  cause: {one.cause}\n  cure:  {one.cure}")
    counts = {name: sum(one.severity == name for one in found) for name in ORDER}
    many = {"critical": "critical", "warning": "warnings"}
    text = ", ".join(
        f"{count} {name if count == 1 else many.get(name, name)}"
        for name, count in counts.items()
        if count
    )
    click.echo(f"looked at {', '.join(wanted)}: {text or 'all is well'}")
