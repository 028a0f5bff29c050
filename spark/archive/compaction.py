"""Small files of an archive into larger ones of the same partition.

A stream commits small files; every one costs a reader an open and a footer. Compaction copies the
rows of several into one, in their order, and commits it in their place (archive_table has the
steps). `compact_group` runs in a task or in the driver, all else in the driver.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow.parquet as pq

from skylarkmq.spark.archive.commits import STAGING, ArchiveWriter, DataFile, TableState
from skylarkmq.spark.archive.writer import COMPRESSION, FILE_BYTES, StagedFile

SMALL_PART: Final = 2
"""A file is small below 1/SMALL_PART of the size that files should have."""


class CompactPlan(NamedTuple):
    """What one task is told; picklable."""

    root: str
    """Absolute folder of the table."""
    stage: str
    """The staging folder's name below STAGING."""
    target: str
    """How the name of the file to write begins, below the table; a token of the attempt follows."""
    sources: tuple[str, ...]
    """The names of the files to copy, below the table."""
    compression: str = COMPRESSION


def groups(
    state: TableState, *, file_bytes: int = FILE_BYTES, files_min: int = 2
) -> list[list[DataFile]]:
    """Return files to be made one, group by group, each of one partition, in commit order.

    Args:
        file_bytes: about how large files should be.
        files_min: leave a partition with fewer small files than that.
    """
    small: dict[str, list[DataFile]] = {}
    for file in state.files.values():
        if file.size * SMALL_PART < file_bytes:
            small.setdefault(file.folder, []).append(file)
    found: list[list[DataFile]] = []
    for _, listed in sorted(small.items()):
        if len(listed) < max(2, files_min):
            continue
        group: list[DataFile] = []
        for file in listed:
            if group and sum(other.size for other in group) + file.size > file_bytes:
                found.append(group)
                group = []
            group.append(file)
        found.append(group)
    return [group for group in found if len(group) > 1]


def compact(
    writer: ArchiveWriter,
    chosen: Sequence[Sequence[DataFile]],
    *,
    run_tasks: Callable[[Sequence[CompactPlan]], Iterable[DataFile]] | None = None,
    compression: str = COMPRESSION,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Compact groups, a commit each; return how many files are gone.

    Args:
        run_tasks: does `compact_group` for each plan and gives the results in order; by default
            one after the other in this process.
        on_progress: told the number of files that have become one.
    """
    plans = [
        CompactPlan(
            str(writer.files.root),
            writer.stage(f"compact-{number}"),
            _target(group[-1], writer, number),
            tuple(file.name for file in group),
            compression,
        )
        for number, group in enumerate(chosen)
    ]
    tasks = map(compact_group, plans) if run_tasks is None else run_tasks(plans)
    gone = 0
    for number, (plan, done) in enumerate(zip(plans, tasks, strict=True)):
        writer.replace(f"compact-{number}", [DataFile(*done)], plan.sources)
        gone += len(plan.sources) - 1
        if on_progress is not None:
            on_progress(len(plan.sources))
    return gone


def compact_group(plan: CompactPlan) -> DataFile:
    """Copy a group's rows into one staged, synced file. Memory: one row group.

    A task that Spark tries again writes another file; the staging folder goes with the commit.
    """
    target = f"{plan.target}-{uuid.uuid4().hex[:8]}.parquet"
    out = StagedFile(f"{plan.root}/{STAGING}/{plan.stage}", target, plan.compression)
    try:
        for name in plan.sources:
            with pq.ParquetFile(f"{plan.root}/{name}") as source:
                for number in range(source.num_row_groups):
                    for batch in source.read_row_group(number).to_batches():
                        out.add(batch)
        return out.close()
    except BaseException:
        out.abandon()
        raise


def _target(last: DataFile, writer: ArchiveWriter, number: int) -> str:
    return f"{last.folder}/part-{writer.state.number + 1:012d}-{writer.run[:8]}c-{number:05d}"
