"""What the job `audit` finds wrong with an archive's files, before it looks at what is in them.

    gone          a commit names it, and it is not there
    unreadable    it is there, and its footer is not that of a Parquet file
    stray         it lies among the others, and no commit names it: who lists the folder, and does
                  not read by the commits, takes its messages for messages of the archive

Driver process, one thread; a writer may be at work meanwhile.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.commits import META, DataFile, open_files
from skylarkmq.spark.archive_table import ArchivedFile
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs.reporting import Cell, Table

SUFFIX: Final = ".parquet"


class FileFault(NamedTuple):
    """A file with which something is wrong."""

    kind: str
    name: str
    """Below the table."""
    rows: int | None
    """Messages that the commits say it has; None of a file that none names."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """An archive's files of some topics."""

    sound: list[ArchivedFile]
    faults: list[FileFault]

    def tables(self) -> tuple[Table, ...]:
        """Return the faults for a summary; nothing when there are none."""
        rows: list[tuple[Cell, ...]] = []
        for fault in self.faults:
            folder, _, file = fault.name.rpartition("/")
            rows.append((fault.kind, folder, file, fault.rows))
        return (Table("files", ("kind", "folder", "file", "messages"), rows),) if rows else ()

    def notes(self) -> Iterator[str]:
        """Yield what to do about them."""
        kinds = {fault.kind for fault in self.faults}
        if kinds & {"gone", "unreadable"}:
            yield "Messages of files that are gone or unreadable count as missing: restore them."
        if "stray" in kinds:
            yield (
                "Stray files are no part of the archive, but whoever lists the folder reads them: "
                "take them away."
            )


def check_files(path: str | Path, topics: Collection[str]) -> CheckedFiles:
    """Look at all files of these topics; opens each for its footer.

    Raises:
        ArchiveError: no archive there, or a damaged one.
    """
    table = open_files(path)
    # Listed first: a file that a writer has put there has its commit already.
    listed = set(_listed(table))
    found, gone = archive_table.whereabouts(path)
    faults = [
        FileFault("gone", file.name, file.rows) for file in gone if file.value("topic") in topics
    ]
    sound: list[ArchivedFile] = []
    for file in found:
        name = Path(file.path).relative_to(table.root).as_posix()
        listed.discard(name)
        if file.topic not in topics:
            continue
        if _is_parquet(file.path):
            sound.append(file)
        else:
            faults.append(FileFault("unreadable", name, file.rows))
    faults += [
        FileFault("stray", name, None)
        for name in listed
        if (DataFile(name, 0, 0, 0, 0).value("topic") or "") in {*topics, ""}
        and table.size(name) is not None  # else compaction has taken it away
    ]
    return CheckedFiles(sound, sorted(faults, key=lambda fault: fault[:2]))


def _listed(table: DurableFolder) -> Iterator[str]:
    """Yield what readers that list the folder take for data."""
    for folder in table.names(""):
        if (table.root / folder).is_dir() and folder != META:
            yield from filter(_counts, table.files_below(folder))
        elif _counts(folder):
            yield folder


def _counts(name: str) -> bool:
    return name.endswith(SUFFIX) and not any(part[0] in "._" for part in name.split("/"))


def _is_parquet(path: str) -> bool:
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid):
        return False
    return True
