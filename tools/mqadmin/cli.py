"""The command `skylarkmq mqadmin`: all commands of the table, and `help`."""

from __future__ import annotations

from typing import Final

import click

from skylarkmq.tools.mqadmin import consumers, messages, servers, topics
from skylarkmq.tools.mqadmin.table import OldCommand, made
from skylarkmq.tools.running import EXIT_CODES

ROWS: Final[tuple[OldCommand, ...]] = (
    *topics.COMMANDS, *servers.COMMANDS, *consumers.COMMANDS, *messages.COMMANDS,
)  # fmt: skip


class OldNames(click.Group):
    """The commands by their names, in any case, as mqadmin finds them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(row.name for row in ROWS), "help"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        wanted = cmd_name.lower()
        if wanted == "help":
            return show_help
        for row in ROWS:
            if wanted in (row.name.lower(), row.alias.lower()):
                return made(row)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, f"{row.text}.") for row in ROWS])


@click.group(cls=OldNames, epilog=EXIT_CODES)
def mqadmin() -> None:
    """RocketMQ 4.9's mqadmin: its names, its letters, its columns.

    It asks nothing, as scripts expect; what changes something has --dry-run. The name servers come
    from -n, or as everywhere from --context and NAMESRV_ADDR. Times are in the machine's zone.
    """


@click.command("help")
@click.argument("command", required=False)
@click.pass_context
def show_help(context: click.Context, command: str | None) -> None:
    """Show all commands, or the letters of one."""
    parent = context.parent
    assert parent is not None
    if command is None:
        click.echo("The most commonly used mqadmin commands are:")
        for row in ROWS:
            click.echo(f"   {row.name:<20} {row.text}.")
        click.echo("\nSee 'mqadmin help <command>' for more information on a specific command.")
        return
    group = parent.command
    found = group.get_command(parent, command) if isinstance(group, click.Group) else None
    if found is None:
        raise click.UsageError(f"The sub command {command} not exist.")
    click.echo(found.get_help(click.Context(found, parent=parent, info_name=found.name)))
