"""What the commands `skylarkmq store ...` share: their argument, options, errors, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.common.errors import StoreError
from skylarkmq.store.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from skylarkmq.store.index.file import IndexShape
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.ownership import store_in

FINDINGS: Final = 1
REFUSED: Final = 2
EXIT_CODES: Final = "Exit codes: 0 sound or done, 1 findings, 2 wrong use or refused."

Command = Callable[..., Any]


def common(command: Command) -> Command:
    """The argument and options of every command, which hand it a `StoppedStore`; and its errors."""

    def run(
        root: Path,
        commit_log: Path | None,
        slots: int | None,
        items: int | None,
        **options: Any,
    ) -> None:
        if (slots is None) != (items is None):
            raise click.UsageError("--slots and --items go together")
        shape = IndexShape(slots, items) if slots is not None and items is not None else None
        with errors():
            command(
                StoppedStore(store_in(root), commit_log=commit_log, index_shape=shape), **options
            )

    update_wrapper(run, command)
    wrapped: Command = run
    for option in (
        click.option(
            "--items", type=click.IntRange(2), help="maxIndexNum, where nothing tells it."
        ),
        click.option(
            "--slots", type=click.IntRange(1), help="maxHashSlotNum, where nothing tells it."
        ),
        click.option(
            "--commit-log",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Where the commit log lies, if not in DIR/commitlog (storePathCommitLog).",
        ),
        click.argument("root", metavar="DIR", type=click.Path(path_type=Path)),
    ):
        wrapped = option(wrapped)
    return wrapped


def _levels(_context: click.Context, _parameter: click.Parameter, text: str) -> DelayLevels:
    try:
        return DelayLevels(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


levels_option = click.option(
    "--delay-levels",
    "levels",
    default=DEFAULT_DELAY_LEVELS,
    callback=_levels,
    help="The broker's messageDelayLevel, if not RocketMQ's default.",
)


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        why = f"{text!a} is no time; use ms since the epoch, or 2026-01-31T12:00:00Z"
        raise click.BadParameter(why, context, parameter) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def time_option(*names: str, text: str) -> Callable[[Command], Command]:
    """An option for a time: ms since the epoch, or ISO 8601, UTC where it names no zone."""
    return click.option(*names, metavar="TIME", callback=_moment, help=text)


def json_option(command: Command) -> Command:
    """The options for the form of the output: the command gets `json_output`."""

    def run(*values: Any, as_json: bool, form: str | None, **options: Any) -> None:
        if as_json and form == "table":
            raise click.UsageError("--json or --output table, not both")
        for_programs = form == "json" if form else as_json or not sys.stdout.isatty()
        command(*values, json_output=for_programs, **options)

    update_wrapper(run, command)
    wrapped: Command = run
    wrapped = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")(wrapped)
    return click.option(
        "-o", "--output", "form", type=click.Choice(["table", "json"]),
        help="Default: text for people on a terminal, JSON elsewhere.",
    )(wrapped)  # fmt: skip


@contextmanager
def errors() -> Generator[None]:
    """Turn what keeps a command from its work into one line and an exit code."""
    try:
        yield
    except (StoreError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(REFUSED) from None


def show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
