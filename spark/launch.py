"""Any of Spark's programs with a Java that it can use and this Python: a cluster, or a shell.

    python -m skylarkmq.spark.launch spark-class org.apache.spark.deploy.master.Master ...
    python -m skylarkmq.spark.launch pyspark --master local[2]

What `skylarkmq-spark-submit` does for spark-submit, for the other programs in Spark's `bin`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Final

from skylarkmq.spark import requirements
from skylarkmq.spark.submit import Exec, SubmitError, ready_home, spark_home, start

NAME: Final = "python -m skylarkmq.spark.launch"


def main(
    arguments: Sequence[str] | None = None,
    environment: MutableMapping[str, str] | None = None,
    become: Exec = os.execve,
) -> None:
    """Become the program named first, or say on standard error what is in the way; exit with 2.

    Args:
        arguments: those of the command line if None.
        environment: the variables to start from; changed.
        become: takes the place of `os.execve`.
    """
    given = sys.argv[1:] if arguments is None else arguments
    start(NAME, prepare, given, environment, become)


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Return the command line, the program's full path first, and set its variables.

    Raises:
        SubmitError: no program is named, or Spark has none of that name.
        JavaNotFoundError: no usable Java.
        MissingRequirementError: pyspark, pyarrow or bash is missing.
    """
    requirements.check_packages()
    requirements.check_bash(environment)
    home = spark_home(environment)
    programs = sorted(
        path.name
        for path in (home / "bin").iterdir()
        if not path.suffix and os.access(path, os.X_OK)
    )
    if not arguments or arguments[0] not in programs:
        named = f"Spark has no program {arguments[0]!r}" if arguments else "no program is named"
        raise SubmitError(named, hint=f"There are {', '.join(programs)}")
    ready_home(environment)
    return [str(home / "bin" / arguments[0]), *arguments[1:]]


if __name__ == "__main__":
    main()
