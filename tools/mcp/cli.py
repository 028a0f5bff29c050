"""The command `skylarkmq mcp`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Final

import click

from skylarkmq.common.extras import how_to_install
from skylarkmq.tools.connection import Session, connected
from skylarkmq.tools.mcp.changing import CHANGING
from skylarkmq.tools.running import FAILED, fail, run

MISSING: Final = f"the tools for agents need their library: {how_to_install('mcp')}"
BY_HAND: Final = (
    "an agent starts this command and speaks the Model Context Protocol to it over standard input; "
    "Ctrl-C ends it"
)


@click.command()
@click.option(
    "--allow", "allowed", multiple=True, type=click.Choice([tool.name for tool in CHANGING]),
    help="Allow a tool that changes something; repeatable. Each call has a dry run before.",
)  # fmt: skip
@click.option(
    "--bodies", is_flag=True, help="Let the agent see bodies of messages: their beginnings."
)
@connected
def mcp(session: Session, allowed: tuple[str, ...], bodies: bool) -> None:
    """Let an agent look at a cluster: tools of the Model Context Protocol over standard input.

    Brokers, topics, groups with lag, messages by key, id and time, traces, dead letters, doctor.
    It only reads, unless --allow names a tool that changes something, and may do what the account
    may. Each change leaves a line of JSON on standard error. It works on SkylarkMQ and on Apache
    RocketMQ.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        from skylarkmq.tools.mcp.server import AgentServer
    except ImportError as error:
        sys.exit(fail(f"{MISSING} ({error})", FAILED))
    if sys.stdin.isatty():
        click.echo(BY_HAND, err=True)

    async def work() -> None:
        server = AgentServer(
            session, allowed, shows_bodies=bodies, audit=partial(click.echo, err=True)
        )
        await server.serve()

    run(work, open_ended=True)
