"""The commands `skylarkmq config ...`: settings of brokers and name servers that run."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from skylarkmq.client.admin import Admin, Unanswered
from skylarkmq.client.admin.base import ask_brokers
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.tools.connection import (
    Change,
    Command,
    Session,
    Where,
    changes,
    online,
    targeted,
)
from skylarkmq.tools.output import Columns, Row
from skylarkmq.tools.running import EXIT_CODES, REFUSED, fail, removed
from skylarkmq.tools.secret_options import masked, pairs_of

T = TypeVar("T")
VALUES: Final[Columns] = {"OF": "of", "KEY": "key", "VALUE": "value"}


@click.group(epilog=EXIT_CODES)
def config() -> None:
    """Settings of brokers and name servers that run: look, change."""


def _name_servers(command: Command) -> Command:
    return click.option(
        "--name-servers", is_flag=True, help="Of the name servers in place of the brokers."
    )(command)


@config.command("list", epilog=EXIT_CODES)
@click.option("--match", metavar="TEXT", help="Keys with this text alone, in any case.")
@_name_servers
@targeted
@online
def list_settings(session: Session, where: Where, name_servers: bool, match: str | None) -> None:
    """List all settings with their values, those of every broker or of those named."""

    async def work(admin: Admin) -> None:
        rows = [
            row
            for row in await _settings(admin, where, name_servers, session.output.unanswered)
            if match is None or match.lower() in row["key"].lower()
        ]
        session.output.rows(rows, VALUES, none="no setting has such a key")

    session.look(work)


@config.command("get", epilog=EXIT_CODES)
@click.argument("keys", nargs=-1, required=True)
@_name_servers
@targeted
@online
def get(session: Session, where: Where, name_servers: bool, keys: tuple[str, ...]) -> None:
    """Show settings by key, broker by broker, so that differences are seen."""

    async def work(admin: Admin) -> None:
        found = await _settings(admin, where, name_servers, session.output.unanswered)
        absent = [key for key in keys if key not in {row["key"] for row in found}]
        if absent:
            near = _near(absent[0], [row["key"] for row in found])
            raise NotFound(f"there is no setting {', '.join(absent)}{near}")
        rows = [row for key in keys for row in found if row["key"] == key]
        session.output.rows(rows, VALUES)

    session.look(work)


@config.command("set", epilog=EXIT_CODES)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--all", "everywhere", is_flag=True, help="On all brokers of all clusters.")
@_name_servers
@targeted
@changes
@online
def set_settings(
    session: Session,
    change: Change,
    where: Where,
    name_servers: bool,
    everywhere: bool,
    settings: tuple[str, ...],
) -> None:
    """Change settings while servers run; they write them into their own files.

    A key that takes effect at the next start is taken all the same. One that may not be changed, or
    that is not known, is refused by SkylarkMQ. RocketMQ says nothing of such a key or of a bad
    value, so the settings are read again: exit code 5 when one is not as it was wanted.
    """
    wanted = pairs_of(settings, "KEY=VALUE")
    named = [where.brokers is not None, where.cluster is not None, everywhere, name_servers]
    if sum(named) != 1:
        raise click.UsageError("give one of --broker, --cluster, --all and --name-servers")

    async def work(admin: Admin) -> int:
        rows = changes_of(await _settings(admin, where, name_servers), wanted)
        told = "; ".join(
            f"{row['key']} of {row['of']}: {row['before']} -> {row['value']}" for row in rows
        )
        if not change.allowed(f"set {told}"):
            return 0
        if name_servers:
            await admin.set_name_server_config(wanted)
        else:
            await _set_on_brokers(admin, [*dict.fromkeys(row["of"] for row in rows)], wanted)
        after = {
            (row["of"], row["key"]): row["value"]
            for row in await _settings(admin, where, name_servers)
        }
        ignored = [row for row in rows if is_ignored(row, after.get((row["of"], row["key"])))]
        for row in ignored:
            row["value"] = row["before"]
        columns = {"OF": "of", "KEY": "key", "BEFORE": "before", "NOW": "value"}
        session.output.rows(rows, columns)
        if ignored:
            named = ", ".join(f"{row['key']} of {row['of']}" for row in ignored)
            return fail(
                f"not changed: {named}. The server did not refuse it, and did not take it: is it a "
                "setting there, and the value one of its kind?",
                REFUSED,
            )
        return 0

    session.administer(work)


def changes_of(settings: Iterable[Row], wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each wanted setting of each server, with its value before; secrets hidden.

    Args:
        settings: all settings of the servers.
    """
    old = {(row["of"], row["key"]): row["value"] for row in settings}
    return [
        {
            "of": server,
            "key": key,
            "before": old.get((server, key)),
            "value": masked(key, value),
        }
        for server in dict.fromkeys(server for server, _ in old)
        for key, value in wanted.items()
    ]


async def _set_on_brokers(admin: Admin, servers: list[str], wanted: Mapping[str, str]) -> None:
    """Change settings broker after broker; when one fails, tell which have changed before it."""
    for count, server in enumerate(servers):
        try:
            await admin.set_broker_config(server, wanted)
        except RocketMQError:
            changed = ", ".join(servers[:count]) or "none"
            click.echo(f"{server} failed; changed before it: {changed}", err=True)
            raise


def is_ignored(row: Row, after: str | None) -> bool:
    """Return whether a server that refused nothing has left a setting as it was."""
    return after is None or (after == row["before"] and not _is_same(after, str(row["value"])))


def _is_same(one: str, other: str) -> bool:
    """Return whether two texts are one value, as servers write it in a form of their own."""
    with contextlib.suppress(ValueError):
        return float(one) == float(other)
    return one.casefold() == other.casefold()


removed(config, "kv-list", "`Admin.kept_texts(namespace)` of the SDK")
removed(config, "kv-set", "`skylarkmq mqadmin updateKvConfig`")
removed(config, "kv-delete", "`skylarkmq mqadmin deleteKvConfig`")


async def _settings(
    admin: Admin,
    where: Where,
    name_servers: bool,
    unanswered: dict[str, Unanswered] | None = None,
) -> list[Row]:
    """Return the settings of all that are meant, by server and key; secrets are masked."""
    tables: dict[str, Mapping[str, str]] = {}
    if name_servers:
        tables.update(await admin.name_server_config())
    else:
        tables.update(await asked_of(admin, where, admin.broker_config, unanswered))
    return [
        {"of": server, "key": key, "value": masked(key, value)}
        for server, table in tables.items()
        for key, value in sorted(table.items())
    ]


async def asked_of(
    admin: Admin,
    where: Where,
    ask: Callable[[str], Awaitable[T]],
    unanswered: dict[str, Unanswered] | None = None,
) -> dict[str, T]:
    """Return what `ask` gives for each broker that is meant, by name or as it was named.

    Args:
        unanswered: see `ask_brokers`.

    Raises:
        NotFound: there is none, or no such cluster.
    """
    if where.brokers is not None:
        places = {each: each for each in where.brokers}
        return await ask_brokers(lambda name, _: ask(name), places, unanswered)
    summary = await admin.cluster()
    if where.cluster is not None and where.cluster not in summary.clusters:
        known = ", ".join(summary.clusters) or "none"
        raise NotFound(f"there is no cluster {where.cluster}; known: {known}")
    places = {
        each.name: next(iter(each.addresses.values()), "")
        for each in summary.brokers
        if where.cluster in (None, each.cluster)
    }
    if not places:
        raise NotFound(f"no broker is registered with {', '.join(summary.name_servers)}")
    return await ask_brokers(lambda name, _: ask(name), places, unanswered)


def _near(key: str, known: list[str]) -> str:
    found = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {found[0]}?" if found else "; `skylarkmq config list` has all"
