"""The commands `skylarkmq store ...`: look at stores, repair them, copy them.

Results go to standard output, everything else to standard error. Exit codes: 0 sound or done,
1 findings, 2 wrong use, or refused.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Literal, get_args

import click

from skylarkmq.client.message_json import BodyForm
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.output import ProgressBar, as_json
from skylarkmq.tools.running import removed
from skylarkmq.tools.store import backup as backups
from skylarkmq.tools.store import cat as cats
from skylarkmq.tools.store import dump as dumps
from skylarkmq.tools.store import info as infos
from skylarkmq.tools.store import rebuild as rebuilds
from skylarkmq.tools.store import truncate as truncations
from skylarkmq.tools.store.options import (
    EXIT_CODES,
    FINDINGS,
    common,
    errors,
    json_option,
    levels_option,
    show,
    time_option,
)
from skylarkmq.tools.store.ownership import reading, refuse_running
from skylarkmq.tools.store.salvage import Salvage
from skylarkmq.tools.store.salvage import lines as salvage_lines
from skylarkmq.tools.store.verify import Verification


@click.group(epilog=EXIT_CODES)
def store() -> None:
    """Look at, check, repair and copy stores, ours or Apache RocketMQ's, and backups of them.

    Nothing is changed without --write, and a backup never. All but `info` and
    `backup` refuse a store that a broker runs on.
    """


@store.command(epilog=EXIT_CODES, short_help="Print what a store holds, and who runs on it.")
@common
@json_option
def info(opened: StoppedStore, json_output: bool) -> None:
    """Print what a store holds: files, sizes, offsets, queues, marks, tables, who runs it.

    It also looks at a store in use.
    """
    found = infos.gather(opened)
    show([as_json(found)] if json_output else infos.lines(found))


@store.command(epilog=EXIT_CODES, short_help="Print the layout of one file, row by row.")
@common
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["log", "queue", "ext", "index", "checkpoint", "json", "own", "pop"]),
    help="What the file is, if its name does not tell.",
)
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Begin at this byte.")
@click.option("--max", "max_rows", type=click.IntRange(1), help="Stop after this many rows.")
@click.option("--with-slots", is_flag=True, help="Also print the slots in use of an index file.")
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

    The folder skylarkmq/pop stands for all of its files: what each group has in flight.

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
    place, kind = row.get("position", ""), row["kind"]
    rest = " ".join(
        f"{name}={value}"
        for name, value in row.items()
        if name not in ("position", "kind") and value is not None
    )
    return f"{place:>12}  {kind:<10} {rest}"


@store.command(epilog=EXIT_CODES, short_help="Check all files against each other.")
@common
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Print at most this many findings of each kind; all are counted.",
)
@levels_option
@json_option
def verify(opened: StoppedStore, limit: int, levels: DelayLevels, json_output: bool) -> None:
    """Check all files of the store in DIR against each other.

    Checked are every record of the log, each unit of each queue, each entry of the index, the
    checkpoint and the tables. Each finding names file, byte, cause and cure. An error is lost or
    damaged data, or keeps a broker from starting; brokers repair or work around a warning.
    """
    with reading(opened.files, opened.paths), ProgressBar() as progress:
        found = Verification(opened, levels, limit=limit, progress=progress).run()
    show([as_json(found.as_dict())] if json_output else found.lines())
    if not found.findings.is_sound:
        raise SystemExit(FINDINGS)


@store.command(epilog=EXIT_CODES, short_help="Print messages by offset, queue, key or time.")
@common
@click.option("--offset", type=click.IntRange(0), help="The message at this physical offset.")
@click.option("--id", "message_id", metavar="HEX", help="The message with this offset message id.")
@click.option("--topic", help="Messages of this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Of this queue of the topic.")
@click.option("--from", "first", type=click.IntRange(0), default=0, help="First queue offset.")
@click.option("--to", "last", type=click.IntRange(0), help="Last queue offset.")
@click.option("--key", help="With this key or unique key, by the key index; needs --topic.")
@click.option("--scan", is_flag=True, help="Look for the key in the whole log, not in the index.")
@time_option("--begin", "begin_ms", text="Stored at this time or later; ms, or ISO 8601.")
@time_option("--end", "end_ms", text="Stored at this time or earlier.")
@click.option("--max", "max_count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "--body",
    type=click.Choice([*get_args(BodyForm), "raw"]),
    default="auto",
    show_default=True,
    help="How bodies are shown, auto as other commands do; raw prints them alone, byte by byte.",
)
@click.option(
    "-o", "--output", type=click.Choice(["json"]), expose_value=False,
    help="No effect: the output is JSON already.",
)  # fmt: skip
@click.option("--json", is_flag=True, expose_value=False, help="The same as -o json.")
def cat(
    opened: StoppedStore,
    message_id: str | None,
    max_count: int | None,
    body: BodyForm | Literal["raw"],
    offset: int | None,
    **wanted: Any,
) -> None:
    """Print messages, one JSON object a line; without any option all messages of the log.

    A message that cannot be shown because its record is damaged is named on standard error. The
    exit code is 1 when that happens, or when there is no such message.
    """
    if message_id is not None:
        offset = _offset_of(message_id)
    with reading(opened.files, opened.paths), ProgressBar() as progress:
        shown, damaged = 0, 0
        for chosen in cats.select(opened, cats.Selection(offset=offset, **wanted), progress):
            if shown == max_count:
                break
            if chosen.record is None:
                damaged += 1
                click.echo(f"offset {chosen.physical_offset}: {chosen.why}", err=True)
                continue
            shown += 1
            progress.clear()
            _print_message(chosen.record, body)
    if damaged or not shown:
        raise SystemExit(FINDINGS)


def _offset_of(message_id: str) -> int:
    try:
        return decode_offset_message_id(message_id)[1]
    except RemoteProtocolError as error:
        raise click.UsageError(error.remark) from error


def _print_message(record: bytes, body: BodyForm | Literal["raw"]) -> None:
    if body == "raw":
        sys.stdout.buffer.write(cats.opened_body(decode_message(record)))
    else:
        click.echo(as_json(cats.message_of(record).to_json(body), indent=None))


write_option = click.option(
    "--write", is_flag=True, help="Make the change; without this option it is only shown."
)


def _done(
    opened: StoppedStore, work: rebuilds.Rebuild | truncations.Truncation, write: bool
) -> dict[str, Any]:
    """Return what a change did, or would do without `write`."""
    if write:
        return work.write()
    with reading(opened.files, opened.paths):
        return work.plan()


@store.command(epilog=EXIT_CODES, short_help="Build queues and index again from the log.")
@common
@click.option("--only", type=click.Choice(["queues", "index"]), help="Build only this one.")
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
    """Build consume queues and key index of the store in DIR again from its log.

    Units of expired messages stay. Extension files of queues are removed: the units then hold the
    tags codes themselves. Damaged parts of the log are skipped and reported (exit code 1).
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


@store.command(epilog=EXIT_CODES, short_help="End the log at an offset.")
@common
@click.option(
    "--to",
    "end",
    type=click.IntRange(0),
    required=True,
    help="Physical offset at which the log is to end; a record must begin there.",
)
@levels_option
@write_option
@json_option
def truncate(
    opened: StoppedStore, end: int, levels: DelayLevels, write: bool, json_output: bool
) -> None:
    """Cut the log of the store in DIR at an offset, and queues and index with it.

    Messages after it are lost for good; without --write they are only counted, by queue.
    """
    with ProgressBar() as progress:
        refuse_running(opened.files, opened.paths)  # the look at the log comes first
        work = truncations.Truncation(opened, end, levels, progress)
        result = _done(opened, work, write)
    show([as_json(result)] if json_output else truncations.lines(result))


removed(store, "diff", "`skylarkmq store cat` of each store, and `diff` of both outputs")


@store.command(epilog=EXIT_CODES, short_help="Copy all sound messages into a new store.")
@common
@click.argument("target", metavar="NEW", type=click.Path(path_type=Path))
@levels_option
@json_option
def salvage(opened: StoppedStore, target: Path, levels: DelayLevels, json_output: bool) -> None:
    """Copy every sound message of the store in DIR into a sound store in the new folder NEW.

    DIR is only read. Messages keep their offsets. Where a message is lost and others of its queue
    follow, a message with an empty body and the property SKYLARKMQ_LOST takes its place. The exit
    code is 1 when something was lost; the output names all of it.
    """
    with reading(opened.files, opened.paths), ProgressBar() as progress:
        result = Salvage(opened, target, levels, progress).run()
    show([as_json(result)] if json_output else salvage_lines(result))
    if not result["complete"]:
        raise SystemExit(FINDINGS)


@store.command(epilog=EXIT_CODES, short_help="Copy a store, also while a broker runs on it.")
@common
@click.argument("target", metavar="BACKUP", type=click.Path(path_type=Path))
@json_option
def backup(opened: StoppedStore, target: Path, json_output: bool) -> None:
    """Copy the store in DIR to the folder BACKUP, or bring the backup that is there up to date.

    A broker may run on the store meanwhile. The copy is then what a crash of the machine would
    have left at that time: the first start after `restore` recovers it. Files that have not changed
    since the last backup are not copied again.
    """
    with ProgressBar() as progress:
        result = backups.Backup(opened.paths, target, _now_ms, progress).run()
    show([as_json(result)] if json_output else backups.backup_lines(result))


def _now_ms() -> int:
    return round(time.time() * 1000)


@store.command(epilog=EXIT_CODES, short_help="Make a store from a backup.")
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def restore(source: Path, target: Path, json_output: bool) -> None:
    """Make a store in the new or empty folder DIR from a backup, and compare every file.

    A commit log that lay elsewhere (storePathCommitLog) comes to DIR/commitlog.
    """
    with errors(), ProgressBar() as progress:
        result = backups.Restore(source, target, progress).run()
    show([as_json(result)] if json_output else backups.restore_lines(result))
