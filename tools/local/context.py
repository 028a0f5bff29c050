"""The commands `skylarkmq context ...`: clusters that the command line knows by a name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import click

from skylarkmq.client.instance import Client
from skylarkmq.tools.local.contexts import (
    Context,
    Contexts,
    contexts_file,
    load_contexts,
    save_contexts,
)
from skylarkmq.tools.output import FORMATS, Columns, Output, Row
from skylarkmq.tools.running import EXIT_CODES, NOT_FOUND, fail
from skylarkmq.tools.secret_options import MASK, with_secret

COLUMNS: Final[Columns] = {
    "CURRENT": lambda row: "*" if row["current"] else "",
    "NAME": "name", "NAME SERVERS": "namesrv", "ACCESS KEY": "access_key", "NAMESPACE": "namespace",
    "TLS": "tls",
}  # fmt: skip
FILE: Final = click.Path(dir_okay=False)
form_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS),
    help="Default: table on a terminal, json elsewhere.",
)  # fmt: skip


@click.group(epilog=EXIT_CODES)
def context() -> None:
    """Clusters by name: add, choose, list, remove.

    The chosen one counts where neither --namesrv, --context nor NAMESRV_ADDR is given.
    """


@context.command("add", epilog=EXIT_CODES)
@click.argument("name")
@click.option("--namesrv", required=True, metavar="HOST:PORT", help="Separated by semicolons.")
@click.option("--access-key", help="Account of the brokers' access control.")
@click.option("--namespace", metavar="NAME", help="Tenant of topics and groups.")
@click.option("--tls", is_flag=True, help="Use TLS; --tls-ca and --tls-cert imply it.")
@click.option("--tls-ca", type=FILE, help="Issuers to trust instead of the system's, PEM.")
@click.option("--tls-cert", type=FILE, help="This client's certificate and key, PEM.")
@click.option("--use", "chooses", is_flag=True, help="Choose it, too.")
@click.option("--replace", "replaces", is_flag=True, help="In the place of one of that name.")
@with_secret
@form_option
def add(
    name: str,
    secret: str | None,
    chooses: bool,
    replaces: bool,
    output: str | None,
    **given: Any,
) -> None:
    """Save a cluster under a name; the first one is chosen at once.

    The secret of --access-key comes from --ask-secret, --secret-stdin or --secret-env, and is kept
    in a file that only you can read.
    """
    try:
        Client(given["namesrv"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--namesrv") from error
    contexts = load_contexts()
    if name in contexts.by_name and not replaces:
        raise click.UsageError(f"there is a context {name}; --replace takes its place")
    if (given["access_key"] is None) != (secret is None):
        raise click.UsageError("--access-key and a secret go together, as --ask-secret")
    contexts.by_name[name] = Context(secret_key=secret, **given)
    if chooses or contexts.current is None:
        contexts.current = name
    save_contexts(contexts)
    row = {"action": "saved", **_row(contexts, name)}
    is_used = ", and chosen" if contexts.current == name else ""
    Output(output).done(row, f"context {name} is saved in {contexts_file()}{is_used}")


@context.command("use", epilog=EXIT_CODES)
@click.argument("name")
@form_option
def use(name: str, output: str | None) -> None:
    """Choose a context."""
    contexts = _with(name)
    contexts.current = name
    save_contexts(contexts)
    Output(output).done({"action": "chosen", **_row(contexts, name)}, f"context {name} is chosen")


@context.command("list", epilog=EXIT_CODES)
@form_option
def list_contexts(output: str | None) -> None:
    """List the saved contexts; secrets are not shown."""
    contexts = load_contexts()
    rows = [_row(contexts, name) for name in sorted(contexts.by_name)]
    Output(output).rows(rows, COLUMNS, none="no contexts; `skylarkmq context add` saves one")


@context.command("show", epilog=EXIT_CODES)
@click.argument("name", required=False)
@form_option
def show(name: str | None, output: str | None) -> None:
    """Show a context, or the chosen one; its secret is masked."""
    contexts = load_contexts()
    if name is None and contexts.current is None:
        raise SystemExit(fail("no context is chosen; `skylarkmq context use` does it", NOT_FOUND))
    Output(output).one(_row(_with(name or str(contexts.current)), name or str(contexts.current)))


@context.command("remove", epilog=EXIT_CODES)
@click.argument("name")
@form_option
def remove(name: str, output: str | None) -> None:
    """Forget a context, and its secret."""
    contexts = _with(name)
    row = {"action": "removed", **_row(contexts, name)}
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = None
    save_contexts(contexts)
    Output(output).done(row, f"context {name} is removed")


def _with(name: str) -> Contexts:
    """Return the contexts; ends the command when none has that name."""
    contexts = load_contexts()
    if name not in contexts.by_name:
        known = ", ".join(sorted(contexts.by_name)) or "none"
        raise SystemExit(fail(f"no context {name} is saved; saved: {known}", NOT_FOUND))
    return contexts


def _row(contexts: Contexts, name: str) -> Row:
    shown = contexts.by_name[name]
    if shown.secret_key is not None:
        shown = replace(shown, secret_key=MASK)
    values = {each.name: getattr(shown, each.name) for each in fields(shown)}
    return {"name": name, "current": contexts.current == name, **values}
