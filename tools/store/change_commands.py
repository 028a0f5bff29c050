"""The commands `skylarkmq store ...` that change a store, make one, or compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import click

from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store import rebuild as rebuilds
from skylarkmq.tools.store import truncate as truncations
from skylarkmq.tools.store.diff import Comparison
from skylarkmq.tools.store.options import (
    EXIT_CODES,
    FINDINGS,
    common,
    json_option,
    levels_option,
    show,
)
from skylarkmq.tools.store.output import as_json
from skylarkmq.tools.store.ownership import reading, refuse_running
from skylarkmq.tools.store.progress import ProgressBar
from skylarkmq.tools.store.salvage import Salvage
from skylarkmq.tools.store.salvage import lines as salvage_lines

write_option = click.option("--write", is_flag=True, help="Do it; without, only show what would.")


class _Change(Protocol):
    def plan(self) -> dict[str, Any]: ...
    def write(self) -> dict[str, Any]: ...


def _done(opened: StoppedStore, work: _Change, write: bool) -> dict[str, Any]:
    """What a change did, or would do."""
    if write:
        return work.write()
    with reading(opened.files, opened.paths):
        return work.plan()


@click.command(epilog=EXIT_CODES, short_help="Make queues and index again from the log.")
@common
@click.option("--only", type=click.Choice(["queues", "index"]), help="Leave the other as it is.")
@levels_option
@write_option
@json_option
def rebuild(
    opened: StoppedStore,
    only: Literal["queues", "index"] | None,
    levels: DelayLevels,
    write: bool,
    json_output: bool,
) -> None:
    """Make consume queues and key index of the store in DIR again from its log.

    Units of expired messages stay, extensions of queues go: their units then hold the tags codes
    themselves. Damage in the log is passed over and told (exit code 1).
    """
    with ProgressBar() as progress:
        work = rebuilds.Rebuild(
            opened,
            levels,
            queues=only != "index",
            index=only != "queues",
            progress=progress,
        )
        result = _done(opened, work, write)
    show([as_json(result)] if json_output else rebuilds.lines(result))
    if result["damages"] or result["passed_over"]:
        raise SystemExit(FINDINGS)


@click.command(epilog=EXIT_CODES, short_help="End the log at an offset.")
@common
@click.option(
    "--to",
    "end",
    type=click.IntRange(0),
    required=True,
    help="Physical offset at which the log ends then: where a record begins.",
)
@levels_option
@write_option
@json_option
def truncate(
    opened: StoppedStore, end: int, levels: DelayLevels, write: bool, json_output: bool
) -> None:
    """Cut the log of the store in DIR at an offset, and queues and index with it.

    Messages behind it are gone for good; without --write they are only counted, by queue.
    """
    with ProgressBar() as progress:
        refuse_running(opened.files, opened.paths)  # the look at the log comes first
        work = truncations.Truncation(opened, end, levels, progress)
        result = _done(opened, work, write)
    show([as_json(result)] if json_output else truncations.lines(result))


@click.command(epilog=EXIT_CODES, short_help="Compare the messages of two stores.")
@common
@click.argument("other", metavar="OTHER", type=click.Path(path_type=Path))
@json_option
def diff(opened: StoppedStore, other: Path, json_output: bool) -> None:
    """Compare the messages of the stores in DIR and OTHER, queue by queue.

    Body, properties, flags, times, producer and retries count; the place in the log does not. The
    exit code is 1 when they differ; the first difference of each queue is shown.
    """
    right = StoppedStore(other)
    with (
        reading(opened.files, opened.paths),
        reading(right.files, right.paths),
        ProgressBar() as progress,
    ):
        found = Comparison(opened, right, progress).run()
    show([as_json(found.as_dict())] if json_output else found.lines())
    if not found.is_same:
        raise SystemExit(FINDINGS)


@click.command(epilog=EXIT_CODES, short_help="Save what is sound into a new store.")
@common
@click.argument("target", metavar="NEW", type=click.Path(path_type=Path))
@levels_option
@json_option
def salvage(opened: StoppedStore, target: Path, levels: DelayLevels, json_output: bool) -> None:
    """Save every sound message of the store in DIR into the new folder NEW, as a sound store.

    DIR is only read. Messages keep their offsets; in the place of a lost one that others of its
    queue follow stands a message with an empty body and the property SKYLARKMQ_LOST. The exit code
    is 1 when something was lost, and all of it is told.
    """
    with reading(opened.files, opened.paths), ProgressBar() as progress:
        result = Salvage(opened, target, levels, progress).run()
    show([as_json(result)] if json_output else salvage_lines(result))
    if not result["complete"]:
        raise SystemExit(FINDINGS)
