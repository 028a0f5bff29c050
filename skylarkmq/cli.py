"""The command `skylarkmq`: puts the servers' and the clients' commands under one name."""

from __future__ import annotations

import importlib
from typing import Final

import click

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
    "msg": ("skylarkmq.tools.msg", "msg", "Messages: find one, its trace, send a copy."),
    "tail": ("skylarkmq.tools.tail", "tail", "Print a topic's messages as they come, no group."),
    "peek": ("skylarkmq.tools.tail", "peek", "List some messages of a topic, no group."),
    "request": ("skylarkmq.tools.tail", "request", "Ask a topic's consumer, print its reply."),
    "delay": ("skylarkmq.tools.delay", "delay", "Delayed messages: list, take back."),
    "tx": ("skylarkmq.tools.tx", "tx", "Transactions: list the open ones."),
    "dlq": ("skylarkmq.tools.dlq", "dlq", "Dead letters: list, show, replay, export."),
    "top": ("skylarkmq.tools.top", "top", "Brokers, topics and groups with their rates, live."),
    "bench": ("skylarkmq.tools.bench", "bench", "Measure sends and reads of a topic."),
    "doctor": ("skylarkmq.tools.doctor.cli", "doctor", "Find what is wrong, with cause and cure."),
    "health": ("skylarkmq.tools.health", "health", "Say whether a broker is ready for clients."),
    "record": (
        "skylarkmq.tools.traffic.record",
        "record",
        "Record requests and answers, secrets left out.",
    ),
    "replay": (
        "skylarkmq.tools.traffic.replay",
        "replay",
        "Send a recording's requests, compare the answers.",
    ),
    "console": ("skylarkmq.tools.console.cli", "console", "Show a cluster as web pages."),
    "store": ("skylarkmq.tools.store.cli", "store", "Look at, check and repair stopped stores."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="skylarkmq")
def main() -> None:
    """A message broker that speaks Apache RocketMQ's protocol and keeps its store files."""


if __name__ == "__main__":
    main()
