"""The job `archive`, stopped in a batch until it is killed: all of it is staged, and not committed.

    stopped_archive.py <commits> <file> <arguments of the job>...

Writes <file> instead of the next commit once the table has so many.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from skylarkmq.spark.archive.commits import COMMITS
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs.archive import main


def stop_after(commits: int, told: Path) -> None:
    write_new = DurableFolder.write_new

    def write_or_stop(files: DurableFolder, name: str, data: bytes) -> None:
        if name.startswith(COMMITS) and len(files.names(COMMITS)) >= commits:
            told.touch()
            threading.Event().wait()
        write_new(files, name, data)

    DurableFolder.write_new = write_or_stop  # type: ignore[method-assign]


if __name__ == "__main__":
    stop_after(int(sys.argv.pop(1)), Path(sys.argv.pop(1)))
    main()
