"""Run a module as `python -m` does: what spark-submit is given, which knows files only.

spark-submit .../run_module.py skylarkmq.client.spark.jobs.archive --help
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the module named by the first argument; the others are its own."""
    del sys.argv[0]
    # Python put this file's folder first: its modules must not stand in for others of their names.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != here]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
