"""The job `archive`, stopped in a batch until it is killed: all is written, and not committed.

    stopped_archive.py <version> <file> <arguments of the job>...

Writes <file> instead of the next commit once the table has this version.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from skylarkmq.spark.archive.delta_log import DeltaLog
from skylarkmq.spark.jobs.archive import main


def stop_after(version: int, told: Path) -> None:
    commit = DeltaLog.commit

    def commit_or_stop(log: DeltaLog, *arguments: Any) -> None:
        if log.version >= version:
            told.touch()
            threading.Event().wait()
        commit(log, *arguments)

    DeltaLog.commit = commit_or_stop  # type: ignore[method-assign]


if __name__ == "__main__":
    stop_after(int(sys.argv.pop(1)), Path(sys.argv.pop(1)))
    main()
