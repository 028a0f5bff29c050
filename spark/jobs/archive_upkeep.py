"""Care for an archive: messages that expire or are erased, and Delta's own upkeep.

    archive expire   /data/archive --before 90d               whole dates
    archive expire   /data/archive --topic orders             whole topics
    archive erase    /data/archive --key customer-17          single messages, and their bytes
    archive optimize /data/archive                            small files into larger ones
    archive vacuum   /data/archive                            files that no version needs any more

All of it runs in this process, by deltalake, without Spark and without a broker, also while a job
archives. `archive.removal` says what goes, and what an older version of the table still shows.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.spark.archive import removal
from skylarkmq.spark.archive.durability import LogSync, sync_files
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.jobs.common import (
    Duration,
    JobSettings,
    UsageError,
    argument,
    job_command,
    option,
)
from skylarkmq.spark.jobs.reporting import Summary, Table

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
MIB: Final = 1024 * 1024
_DAYS: Final = re.compile(r"([0-9]{1,6})d", re.ASCII)


class ArchiveGroup(click.Group):
    """The commands of an archive; what is none of them is a topic or a table for `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before what names no command."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class DayBound(click.ParamType[str]):
    """A date, or an age in whole days: the date so many days ago, in UTC."""

    name = "date"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the date as 2026-01-31."""
        age = _DAYS.fullmatch(value)
        try:
            if age is None:
                return datetime.date.fromisoformat(value).isoformat()
            now_s = SystemClock().now_ms() / 1000
            today = datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
            return (today - datetime.timedelta(days=int(age[1]))).isoformat()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no date as 2026-01-31 and no age as 90d", param, ctx)


def dry_run_option(what: str) -> Any:
    """Return the field of --dry-run."""
    return option("--dry-run", is_flag=True, help=f"Tell what would {what}, and change nothing.")


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    """What is to go as a whole."""

    table: str = argument("TABLE")
    before: str | None = option(
        "--before",
        type=DayBound(),
        metavar="DATE",
        help="Messages stored before this date (UTC), as 2026-01-31, or an age, as 90d.",
    )
    topics: tuple[str, ...] = option(
        "--topic", multiple=True, metavar="TOPIC", help="Of this topic alone; repeatable."
    )
    dry_run: bool = dry_run_option("expire")


@dataclass(frozen=True, slots=True)
class EraseOptions:
    """Which messages are to go."""

    table: str = argument("TABLE")
    keys: tuple[str, ...] = option(
        "--key", multiple=True, metavar="KEY", help="Messages that have this key; repeatable."
    )
    keys_file: str | None = option(
        "--keys-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Keys, one a line: keeps them off the command line.",
    )
    where: str = option(
        "--where",
        default="",
        show_default=False,
        metavar="SQL",
        help="Messages that a condition on the columns selects, as \"properties['user'] = '17'\".",
    )
    topics: tuple[str, ...] = option(
        "--topic", multiple=True, metavar="TOPIC", help="Of this topic alone; repeatable."
    )
    keep_versions: bool = option(
        "--keep-versions",
        is_flag=True,
        help="Leave the bytes to older versions of the table until a vacuum.",
    )
    dry_run: bool = dry_run_option("be erased")


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """How files are to be put together."""

    table: str = argument("TABLE")
    z_order: tuple[str, ...] = option(
        "--z-order",
        multiple=True,
        metavar="COLUMN",
        help="Rows that are near in this column come into one file; repeatable.",
    )
    file_mib: int = option(
        "--file-mib",
        type=click.IntRange(min=1, max=4096),
        default=128,
        help="About how large files are to be.",
    )


@dataclass(frozen=True, slots=True)
class VacuumOptions:
    """Which files are to be deleted."""

    table: str = argument("TABLE")
    retention_ms: int | None = option(
        "--retention",
        type=Duration(),
        metavar="TIME",
        help="Files that have been out of the table for so long. Readers of older versions need "
        "them.  [default: what the table says, else 168h]",
    )
    full: bool = option(
        "--full",
        is_flag=True,
        help="Also files that no version names, as killed jobs leave them; from 6h on.",
    )


def run_expire(options: ExpireOptions, settings: JobSettings) -> Summary:
    """Remove whole dates or topics.

    Raises:
        JobError: neither a date nor a topic.
        ArchiveError: no archive there.
    """
    if not options.before and not options.topics:
        raise UsageError("say what is to expire: --before, --topic, or both")
    table = opened(options.table, settings)
    refuse_unknown(table, options.topics)
    before, topics = options.before or "", options.topics
    if options.dry_run:
        chosen = removal.expired(table.files(), before=before, topics=topics)
        gone = table.find(removal.expired_where(before=before, topics=topics))
        return of_gone(table, gone, {"files": len(chosen)}, dry_run=True)
    count = len(table.files())
    gone = removal.expire(table, before=before, topics=topics)
    notes = (
        (
            "Older versions of the table still have them, and the space is taken, until a vacuum "
            "a week from now or later: archive vacuum."
        ),
    )
    return of_gone(table, gone, {"files": count - len(table.files())}, notes)


def run_erase(options: EraseOptions, settings: JobSettings) -> Summary:
    """Erase messages, and what older versions of the table have of them.

    Raises:
        JobError: no key and no condition.
        ArchiveError: no archive there, or no condition on its columns.
    """
    where = condition(options)
    table = opened(options.table, settings)
    refuse_unknown(table, options.topics)
    if options.dry_run:
        gone = table.find(where)
        files = removal.touched(table.files(), gone)
        return of_gone(table, gone, {"files_to_look_at": len(files)}, dry_run=True)
    progress = settings.progress("erasing", "files")
    gone = removal.erase(table, where, on_file=progress.show)
    figures: dict[str, Any] = {}
    if options.keep_versions:
        notes = ["Older versions of the table still have them: archive vacuum --retention 0."]
    else:
        # Also when nothing was found: an erasure that was killed here is completed by the same one.
        figures["files_vacuumed"] = len(removal.vacuum(table, retention_hours=0))
        notes = [
            "Older versions of the table can be read no more where they had files that are deleted "
            "now; a query that has just begun may fail once."
        ]
    notes.append(
        "Files that killed jobs have left may hold some as well: archive vacuum --full --retention "
        "6h. Brokers, their stores and backups are for you to see to."
    )
    return of_gone(table, gone, figures, notes)


def condition(options: EraseOptions) -> str:
    """Return the condition that selects what is to be erased.

    Raises:
        JobError: no key and no condition.
    """
    keys = list(options.keys)
    if options.keys_file is not None:
        lines = Path(options.keys_file).read_text(encoding="utf-8").splitlines()
        keys += [line.strip() for line in lines if line.strip()]
    if any(" " in key for key in keys):
        raise UsageError("a key has no space: the keys of a message are separated by spaces")
    parts = [f"({removal.key_where(keys)})"] if keys else []
    if options.where.strip():
        parts.append(f"({options.where})")
    if not parts:
        raise UsageError("say what is to be erased: --key, --keys-file or --where")
    if options.topics:
        parts.append(removal.expired_where(topics=options.topics))
    return " AND ".join(parts)


def run_optimize(options: OptimizeOptions, settings: JobSettings) -> Summary:
    """Put small files together: Delta's own OPTIMIZE.

    Raises:
        ArchiveError: no archive there.
    """
    table = opened(options.table, settings)
    before = set(table.files())
    optimize, target_size = table.log.table.optimize, options.file_mib * MIB
    with table.location.errors():
        if options.z_order:
            done = optimize.z_order(list(options.z_order), target_size=target_size)
        else:
            done = optimize.compact(target_size=target_size)
    table.reload()
    files = table.files()
    # A vacuum may delete the old files one day: the new ones must be there then.
    sync_files(table.location, [file.name for file in files if file not in before])
    LogSync(table.location).sync()
    figures = {
        "files_removed": done["numFilesRemoved"],
        "files_added": done["numFilesAdded"],
        "files": len(files),
        "messages": sum(file.rows or 0 for file in files),
        "table": str(table.location),
        "version": table.log.version,
    }
    return Summary("archive optimize", figures)


def run_vacuum(options: VacuumOptions, settings: JobSettings) -> Summary:
    """Delete files that no version needs any more: Delta's own VACUUM.

    Raises:
        ArchiveError: no archive there, or a full vacuum that could hurt a running job.
    """
    table = opened(options.table, settings)
    hours = None if options.retention_ms is None else -(-options.retention_ms // HOUR_MS)
    found = removal.vacuum(table, retention_hours=hours, full=options.full)
    return Summary(
        "archive vacuum", {"files_vacuumed": len(set(found)), "table": str(table.location)}
    )


def opened(place: str, settings: JobSettings) -> ArchiveTable:
    """Return an archive to be changed."""
    return ArchiveTable.open(settings.location(place), to_write=True)


def refuse_unknown(table: ArchiveTable, topics: Iterable[str]) -> None:
    """Refuse topics that the archive does not have.

    Raises:
        JobError: which one.
    """
    known = table.state.topics()
    for topic in topics:
        if topic not in known:
            has = ", ".join(known) or "none yet"
            raise UsageError(f"the archive has no topic {topic}; it has {has}")


def of_gone(
    table: ArchiveTable,
    gone: Spans,
    figures: dict[str, Any],
    notes: Iterable[str] = (),
    *,
    dry_run: bool = False,
) -> Summary:
    """Return a summary of messages that have gone."""
    counts: Counter[str] = Counter()
    for key, start, end in gone.items():
        counts[key.topic] += end - start
    figures = {
        "messages": gone.count(),
        **figures,
        "table": str(table.location),
        "version": table.log.version,
    }
    rows = [(topic, count) for topic, count in sorted(counts.items())]
    tables = (Table("by topic", ("topic", "messages"), rows),)
    return Summary("archive", figures, tables, tuple(notes), dry_run=dry_run)


COMMANDS: Final = (
    job_command(
        "archive expire",
        ExpireOptions,
        run_expire,
        name="expire",
        help="Remove whole dates and topics from TABLE. They are not archived again.",
    ),
    job_command(
        "archive erase",
        EraseOptions,
        run_erase,
        name="erase",
        help="""Erase single messages from TABLE, for good: also from older versions of it.

    They are not archived again. What is to be erased is not written down anywhere.
    """,
    ),
    job_command(
        "archive optimize",
        OptimizeOptions,
        run_optimize,
        name="optimize",
        help="Put small files of TABLE together: OPTIMIZE of Delta Lake.",
    ),
    job_command(
        "archive vacuum",
        VacuumOptions,
        run_vacuum,
        name="vacuum",
        help="Delete files that TABLE needs no more: VACUUM of Delta Lake.",
    ),
)
