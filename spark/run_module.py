"""Run a module as `python -m` does: what spark-submit is given, which knows files only.

spark-submit .../run_module.py skylarkmq.spark.jobs.archive --help

spark-submit's JVM reads standard error and standard output of this process by one pipe, and writes
both to its standard output. Here they are two again, where the system allows it: what a job prints
is its summary alone, and its progress finds the terminal.

Source: apache/spark@v4.3.0 core/.../deploy/PythonRunner.scala (redirectErrorStream,
PYSPARK_GATEWAY_PORT)
"""

from __future__ import annotations

import os
import runpy
import stat
import sys
from pathlib import Path


def part_streams(parent: int) -> None:
    """Let standard error be that of the JVM, process `parent`; else it stays as it is."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ or not os.path.sameopenfile(1, 2):
        return
    try:
        flags = Path(f"/proc/{parent}/fdinfo/2").read_text().partition("flags:")[2].split()[0]
        own = os.open(f"/proc/{parent}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except (OSError, IndexError):  # no /proc, or nothing that can be opened again
        return
    # In a file the JVM would write over what is appended here, unless it appends as well.
    if not stat.S_ISREG(os.fstat(own).st_mode) or int(flags, 8) & os.O_APPEND:
        os.dup2(own, 2)
    os.close(own)


def main() -> None:
    """Run the module named by the first argument; the others are its own."""
    part_streams(os.getppid())
    del sys.argv[0]
    # Python put this file's folder first: its modules must not stand in for others of their names.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != here]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
