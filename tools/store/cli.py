"""The commands `skylarkmq store ...`: looking at stopped stores, and mending them.

Results go to standard output, everything else to standard error. Exit codes: 0 sound or done,
1 findings, 2 wrong use, or refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store import cat as cats
from skylarkmq.tools.store import dump as dumps
from skylarkmq.tools.store import info as infos
from skylarkmq.tools.store.change_commands import diff, rebuild, salvage, truncate
from skylarkmq.tools.store.options import (
    EXIT_CODES,
    FINDINGS,
    common,
    json_option,
    levels_option,
    show,
    time_option,
)
from skylarkmq.tools.store.output import as_json
from skylarkmq.tools.store.ownership import reading
from skylarkmq.tools.store.progress import ProgressBar
from skylarkmq.tools.store.verify import Verification


@click.group(epilog=EXIT_CODES)
def store() -> None:
    """Look at, check and mend stopped stores, ours or Apache RocketMQ's.

    Nothing is changed without --write. A store that a broker runs on is refused.
    """


@store.command(epilog=EXIT_CODES, short_help="Print what a store holds, and who runs on it.")
@common
@json_option
def info(opened: StoppedStore, json_output: bool) -> None:
    """Print what a store holds: files, sizes, offsets, queues, marks, tables, who runs it.

    The only command that also looks at a store in use.
    """
    found = infos.gather(opened)
    show([as_json(found)] if json_output else infos.lines(found))


@store.command(epilog=EXIT_CODES, short_help="Print the layout of one file, row by row.")
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


@store.command(epilog=EXIT_CODES, short_help="Hold everything against everything else.")
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
@click.option("--max", "max_count", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--body",
    type=click.Choice(["text", "base64", "raw", "none"]),
    default="text",
    show_default=True,
    help="How bodies are shown; raw prints them alone, byte by byte.",
)
@click.option("--json", is_flag=True, expose_value=False, help="Nothing: it is JSON already.")
def cat(
    opened: StoppedStore,
    message_id: str | None,
    max_count: int | None,
    body: str,
    offset: int | None,
    **wanted: Any,
) -> None:
    """Print messages, one JSON object a line; without any option all of the log.

    What should be shown and cannot, because its record is damaged, is told on standard error. The
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


def _print_message(record: bytes, body: str) -> None:
    if body == "raw":
        sys.stdout.buffer.write(cats.opened_body(decode_message(record)))
    else:
        click.echo(as_json(cats.row(record, body), indent=None))


for command in (rebuild, truncate, diff, salvage):
    store.add_command(command)
