"""The command `skylarkmq`: puts the servers' and the clients' commands under one name."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from skylarkmq import __version__

# Command -> module and attribute. Loaded when it is named, so that `--help` stays quick.
COMMANDS: Final = {
    "serve": ("skylarkmq.broker.cli", "serve", "Run a broker and a name server."),
    "broker": ("skylarkmq.broker.cli", "broker", "Run a broker alone."),
    "namesrv": ("skylarkmq.broker.cli", "namesrv", "Run a name server alone."),
    "send": ("skylarkmq.tools.messages", "send", "Send messages to a topic."),
    "consume": (
        "skylarkmq.tools.messages",
        "consume",
        "Print a topic's messages as JSON lines.",
    ),
    "topic": ("skylarkmq.tools.topic", "topic", "Topics: list, look at, create, change, delete."),
    "group": (
        "skylarkmq.tools.group",
        "group",
        "Consumer groups: list, look at, lag, move, create, change, delete.",
    ),
    "client": (
        "skylarkmq.tools.client",
        "client",
        "Clients: who is connected, what a consumer is doing.",
    ),
    "cluster": (
        "skylarkmq.tools.cluster",
        "cluster",
        "The cluster: how it is, who leads, taking load off a broker.",
    ),
    "config": (
        "skylarkmq.tools.config",
        "config",
        "Settings of brokers and name servers that run: look, change.",
    ),
    "acl": ("skylarkmq.tools.acl", "acl", "Access control: accounts, rights, white lists."),
    "msg": ("skylarkmq.tools.msg", "msg", "Messages: find one, its trace, send a copy."),
    "tail": ("skylarkmq.tools.tail", "tail", "Print a topic's messages as they come, no group."),
    "peek": ("skylarkmq.tools.tail", "peek", "List some messages of a topic, no group."),
    "request": ("skylarkmq.tools.tail", "request", "Ask a topic's consumer, print its reply."),
    "delay": ("skylarkmq.tools.delay", "delay", "Delayed messages: list, take back."),
    "tx": ("skylarkmq.tools.tx", "tx", "Transactions: list the open ones."),
    "dlq": ("skylarkmq.tools.dlq", "dlq", "Dead letters: list, show, redrive, export."),
    "doctor": (
        "skylarkmq.tools.doctor.cli",
        "doctor",
        "Find what is wrong with a cluster, with cause and cure.",
    ),
    "drain": ("skylarkmq.tools.drain", "drain", "Move clients away before a broker is stopped."),
    "health": ("skylarkmq.tools.health", "health", "Say whether one broker is ready, for probes."),
    "console": ("skylarkmq.tools.console.cli", "console", "Show a cluster as web pages."),
    "mcp": ("skylarkmq.tools.mcp.cli", "mcp", "Let an agent look at a cluster."),
    "store": ("skylarkmq.tools.store.cli", "store", "Look at, check, repair and copy stores."),
    "context": (
        "skylarkmq.tools.local.context",
        "context",
        "Clusters by name: add, choose, list, remove.",
    ),
    "completion": (
        "skylarkmq.tools.local.completion",
        "completion",
        "Print the script with which a shell completes commands.",
    ),
    "mqadmin": (
        "skylarkmq.tools.mqadmin.cli",
        "mqadmin",
        "RocketMQ 4.9's mqadmin: its names, its letters, its columns.",
    ),
}

# Command that earlier releases had -> what to use.
REMOVED: Final = {
    "record": "`skylarkmq tail TOPIC -o ndjson` prints messages, `tcpdump` what passes on a port",
    "replay": "`skylarkmq send TOPIC --input json` sends what `skylarkmq tail` has printed",
    "bench": "`time seq 10000 | skylarkmq send TOPIC`, or RocketMQ's own `benchmark`",
    "top": "`group lag --watch`, `cluster status --watch`, `topic stats TOPIC --watch`, `console`",
}

# Heading of the help -> its commands, in the order shown; those that are not in COMMANDS are left
# out, and what no heading has comes last.
SECTIONS: Final = {
    "Servers": ("serve", "broker", "namesrv", "console", "mcp"),
    "Messages": ("send", "consume", "tail", "peek", "request", "msg", "delay", "tx", "dlq"),
    "Administration": ("topic", "group", "client", "cluster", "config", "acl"),
    "Diagnosis": ("health", "drain", "doctor"),
    "Stores": ("store",),
    "This command line": ("context", "completion", "mqadmin"),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command; what the machine refuses, such as a full disk, is one line and 1."""
        try:
            return super().main(*args, **extra)
        except OSError as error:
            # What the output still holds would be an error once more, at the exit.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            where = f"{error.filename}: " if error.filename is not None else ""
            with contextlib.suppress(OSError):
                click.echo(f"error: {where}{error.strerror or error}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in REMOVED:
            raise click.UsageError(f"{cmd_name} was removed: {REMOVED[cmd_name]}")
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in COMMANDS if name not in named)
        for title, names in {**SECTIONS, "Other commands": others}.items():
            rows = [(name, COMMANDS[name][2]) for name in names if name in COMMANDS]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow; click's own way would load every command for its help."""
        found = [
            CompletionItem(name, help=text)
            for name, (_, _, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="skylarkmq")
def main() -> None:
    """A message broker that speaks Apache RocketMQ's protocol and keeps its store files.

    Each command has a --help of its own. Those that talk to a cluster work on Apache RocketMQ's.
    """


if __name__ == "__main__":
    main()
