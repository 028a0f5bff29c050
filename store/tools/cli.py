"""The commands `skylarkmq store ...`: looking at stopped stores, and mending them.

Results go to standard output, everything else to standard error. Exit codes: 0 sound or done,
1 findings, 2 wrong use, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.store.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from skylarkmq.store.errors import StoreError
from skylarkmq.store.index_file import IndexShape
from skylarkmq.store.tools import dump as dumps
from skylarkmq.store.tools import info as infos
from skylarkmq.store.tools.output import as_json
from skylarkmq.store.tools.ownership import reading
from skylarkmq.store.tools.progress import ProgressBar
from skylarkmq.store.tools.reader import StoppedStore
from skylarkmq.store.tools.verify import Verification

FINDINGS: Final = 1
REFUSED: Final = 2
EXIT_CODES: Final = "Exit codes: 0 sound or done, 1 findings, 2 wrong use or refused."

Command = Callable[..., Any]


@click.group(epilog=EXIT_CODES)
def store() -> None:
    """Look at, check and mend stopped stores, ours or Apache RocketMQ's.

    Nothing is changed without --write. A store that a broker runs on is refused.
    """


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
            command(StoppedStore(root, commit_log=commit_log, index_shape=shape), **options)

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
json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON.")


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


@store.command(epilog=EXIT_CODES)
@common
@json_option
def info(opened: StoppedStore, json_output: bool) -> None:
    """Print what a store holds: files, sizes, offsets, queues, marks, tables, who runs it.

    The only command that also looks at a store in use.
    """
    found = infos.gather(opened)
    show([as_json(found)] if json_output else infos.lines(found))


@store.command(epilog=EXIT_CODES)
@common
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["log", "queue", "ext", "index", "checkpoint", "json", "own"]),
    help="What the file is, where its name does not tell.",
)
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Byte to begin at.")
@click.option("--max", "max_rows", type=click.IntRange(1), help="End after so many rows.")
@click.option("--with-slots", is_flag=True, help="Of an index file print the slots in use too.")
@json_option
def dump(
    opened: StoppedStore,
    file: Path,
    kind: str | None,
    start: int,
    max_rows: int | None,
    with_slots: bool,
    json_output: bool,
) -> None:
    """Print the layout of FILE, one of the store in DIR (or a path below it), row by row.

    With --json each row is a JSON object on a line.
    """
    with reading(opened.files, opened.paths):
        if not opened.files.exists(file):
            file = opened.paths.root / file
        kind = kind or dumps.kind_of(file.resolve())
        rows = dumps.rows(opened, file, kind, start=start, slots=with_slots)
        for count, row in enumerate(rows):
            if count == max_rows:
                break
            click.echo(as_json(row, indent=None) if json_output else _row_text(row))


def _row_text(row: dict[str, Any]) -> str:
    place, kind = row["position"], row["kind"]
    rest = " ".join(
        f"{name}={value}"
        for name, value in row.items()
        if name not in ("position", "kind") and value is not None
    )
    return f"{place:>12}  {kind:<10} {rest}"


@store.command(epilog=EXIT_CODES)
@common
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Findings of each kind that are printed; all are counted.",
)
@levels_option
@json_option
def verify(opened: StoppedStore, limit: int, levels: DelayLevels, json_output: bool) -> None:
    """Hold everything in the store in DIR against everything else.

    Every record of the log, each unit of each queue, each entry of the index, the checkpoint and
    the tables. Each finding names file, byte, cause and cure. An error is lost or damaged data or
    keeps a broker from starting; a warning is mended or worked around by brokers.
    """
    with reading(opened.files, opened.paths), ProgressBar() as progress:
        found = Verification(opened, levels, limit=limit, progress=progress).run()
    show([as_json(found.as_dict())] if json_output else found.lines())
    if not found.findings.is_sound:
        raise SystemExit(FINDINGS)
