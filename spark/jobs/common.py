"""What the jobs share: their options, the Spark session, progress, the summary and exit codes.

A job is a click command:

    @click.command()
    @click.argument("topic")
    @job_options
    def main(topic: str, settings: JobSettings) -> None:
        \"\"\"One line for --help.\"\"\"
        run_job("archive", settings, lambda: archive(topic, settings))

`archive` opens a session with `open_session`, tells how far it is with `settings.progress(...)`,
and returns a `Summary`. The summary alone goes to standard output: text, or with --json one JSON
document. Progress and the log go to standard error. Exit codes: 0 done, 1 differences or rows that
could not be handled, 2 usage, 3 the job did not come to its end, 130 Ctrl-C.

Driver process, main thread. Importing this loads no pyspark.
"""

from __future__ import annotations

import functools
import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import click

from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.jobs.quiet import PY4J, hush, kept_level
from skylarkmq.spark.jobs.reporting import (
    DIFFERENCES,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    Cell,
    Progress,
    Summary,
    Table,
)
from skylarkmq.spark.option_reading import OptionError, OptionReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "DIFFERENCES",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "USAGE",
    "Cell",
    "Duration",
    "JobError",
    "JobSettings",
    "Progress",
    "StopRequest",
    "Summary",
    "Table",
    "await_query",
    "explain",
    "job_options",
    "open_session",
    "run_job",
]

POLL_S: Final = 0.5
"""Seconds between two looks at a streaming query."""
NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"


class JobError(Exception):
    """A job cannot go on; the text says why and what to do. `exit_code` is USAGE or FAILED."""

    def __init__(self, text: str, *, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The options that all jobs have. The connector's options hold secrets: no repr shows them."""

    name_server: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The connector's options by their names, as `accessKey`; for reading and writing alike."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    as_json: bool = False
    show_progress: bool | None = None
    verbose: bool = False

    def connector_options(self, **more: str | int | bool) -> dict[str, str]:
        """Return the options for `.options(**...)` of a reader or writer.

        `more` are the job's own; what the user gave with --option goes before them.
        """
        given = {name.lower() for name in self.options}
        found = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in more.items()
            if name.lower() not in given
        }
        if self.name_server and not given & {"nameserver", "brokers"}:
            found["nameServer"] = self.name_server
        return {**found, **self.options}

    def progress(self, what: str, unit: str = "messages") -> Progress:
        """Return the job's progress, to be used with `with`."""
        return Progress(what, shown=self.shows_progress, unit=unit)

    @property
    def names_cluster(self) -> bool:
        """Whether name servers or brokers were given."""
        given = {name.lower() for name in self.options}
        return bool(self.name_server or given & {"nameserver", "brokers"})

    @property
    def shows_progress(self) -> bool:
        """As --progress says; else on a terminal, and not with --json."""
        if self.show_progress is not None:
            return self.show_progress
        return not self.as_json and sys.stderr.isatty()


class Duration(click.ParamType[int]):
    """A click type: milliseconds, given so or with a unit as in `30s`, `5m`, `1h`."""

    name = "time"

    def __init__(self, *, low: int = 0) -> None:
        """Take the least that is allowed, in ms."""
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not str(value).strip():
            self.fail("it is empty; give a time such as 30s", param, ctx)
        name = "" if param is None else param.opts[-1]
        try:
            return OptionReader({name: value}, [name]).milliseconds(name, 0, low=self._low)
        except OptionError as error:
            self.fail(f"it {str(error).removeprefix(f'option {name} ')}", param, ctx)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options of all jobs; it gets them as `settings: JobSettings`."""

    @functools.wraps(command)
    def with_settings(
        *args: Any,
        name_server: str | None,
        option: tuple[str, ...],
        options_file: str | None,
        master: str | None,
        conf: tuple[str, ...],
        as_json: bool,
        show_progress: bool | None,
        verbose: bool,
        **rest: Any,
    ) -> Any:
        from_file = {} if options_file is None else read_options_file(options_file)
        settings = JobSettings(
            name_server=name_server,
            options=from_file | _pairs(option, "--option"),
            master=master,
            conf=_pairs(conf, "--conf"),
            as_json=as_json,
            show_progress=show_progress,
            verbose=verbose,
        )
        return command(*args, settings=settings, **rest)

    for decorate in reversed(_OPTIONS):
        with_settings = decorate(with_settings)
    return with_settings


_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--name-server", metavar="HOST:PORT", envvar=NAME_SERVER_VARIABLE, show_envvar=True,
        help="Name servers, parted by semicolons.",
    ),
    click.option(
        "--option", multiple=True, metavar="NAME=VALUE",
        help="An option of the connector, as brokers=HOST:PORT; repeatable.",
    ),
    click.option(
        "--options-file", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
        help="Options of the connector, NAME=VALUE a line: keeps secrets off the command line.",
    ),
    click.option(
        "--master", metavar="URL",
        help="Spark master, as local[4]; else what spark-submit set, else this machine.",
    ),
    click.option(
        "--conf", multiple=True, metavar="NAME=VALUE",
        help="A setting of Spark, as spark.driver.memory=2g; repeatable.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The summary as one JSON document."),
    click.option(
        "--progress/--no-progress", "show_progress", default=None,
        help="Progress on standard error. Default: on a terminal, without --json.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Log more; a failure shows its traceback."),
)  # fmt: skip


def read_options_file(path: str) -> dict[str, str]:
    """Return the options of a file of `NAME=VALUE` lines; blank ones and those with # are none."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in lines]
    return _pairs([line for line in kept if line and not line.startswith("#")], path)


def _pairs(texts: tuple[str, ...] | list[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Not the text itself: it may be a secret whose name was forgotten.
            raise click.UsageError(f"{where}: entry {number} has to be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def run_job(job: str, settings: JobSettings, work: Callable[[], Summary]) -> NoReturn:
    """Do the work, print its summary, and exit with its code; an error becomes a summary too."""
    level = logging.INFO if settings.verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        summary = work()
    except click.ClickException:
        raise
    except KeyboardInterrupt:
        summary = Summary(job, {}, exit_code=INTERRUPTED)
    except Exception as error:  # the job's root: whatever it was, the caller gets text and a code
        if settings.verbose:
            traceback.print_exc()
        text = explain(error)
        if isinstance(error, OptionError) and "nameServer" in text and not settings.names_cluster:
            text = f"{text}: give --name-server HOST:PORT, or --option brokers=HOST:PORT"
        summary = Summary(job, {"error": text}, exit_code=exit_code_of(error))
    if settings.as_json:
        click.echo(summary.as_json())
    elif "error" in summary.figures:
        click.echo(f"{job}: {summary.outcome}: {summary.figures['error']}", err=True)
    else:
        click.echo(summary.as_text())
    sys.exit(summary.exit_code)


def exit_code_of(error: Exception) -> int:
    """Return the exit code that an error stands for; Spark hides an option's error in its own."""
    if isinstance(error, OptionError) or f".{OptionError.__name__}: " in str(error):
        return USAGE
    return error.exit_code if isinstance(error, JobError) else FAILED


_END_OF_TRACEBACK: Final = re.compile(r"^(?:[\w.]+\.)?\w+: .")
_OWN_ERRORS: Final = "skylarkmq."
_END_OF_MESSAGE: Final = re.compile(
    r"\n\s*(?:at [\w.$]+\(|JVM stacktrace:|Driver stacktrace:|During handling of|===)"
    r"|(?<= SQLSTATE: .{5})\W"
)
_PY4J: Final = re.compile(r"^An error occurred while calling \S+\.\s*:\s*(?:[\w$]+\.)+[\w$]+:\s*")
"""What stands before the text of an error of the JVM's."""
_TRACE_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's, which print the stack traces of errors that it raises as well."""


def explain(error: BaseException) -> str:
    """Return an error's text without stack traces.

    Spark wraps what a Python worker raised into several exceptions and prints the worker's
    traceback: of that only its last line counts, which names the cause and the cure.
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        behind = text.partition("Traceback (most recent call last)")[2].splitlines()[1:]
        ends = [number for number, line in enumerate(behind) if _END_OF_TRACEBACK.match(line)]
        # Spark's runner may fail again while it cleans up, which says nothing about the cause.
        ours = [number for number in ends if behind[number].startswith(_OWN_ERRORS)]
        for number in (ours or ends)[-1:]:
            first = behind[number].partition(": ")[2]
            more = _END_OF_MESSAGE.split("\n".join(["", *behind[number + 1 :]]))[0]
            return " ".join([first, *more.split()]).strip()
    text = " ".join(_PY4J.sub("", _END_OF_MESSAGE.split(text)[0]).split())
    return text or type(error).__name__


@contextmanager
def open_session(app: str, settings: JobSettings, **conf: str) -> Generator[SparkSession]:
    """Give a session that knows the connector's formats, and stop it behind the block.

    A session that is there already, as in a notebook or a test, is used and left alone.

    Args:
        conf: settings of Spark by their names; those of --conf go before them.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession as Session

    from skylarkmq.spark.session import build_session, register

    if not settings.verbose:
        for name in _TRACE_LOGGERS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger(PY4J).setLevel(logging.CRITICAL)
    there = Session.getActiveSession()
    if there is not None:
        register(there)
        with kept_level(there):
            yield there
        return
    quiet = {} if settings.verbose else {"spark.log.level": "ERROR"}
    spark = build_session(app, settings.master, **{**quiet, **conf, **settings.conf})
    try:
        yield spark
    finally:
        spark.stop()


class StopRequest:
    """Whether SIGINT or SIGTERM asked for an orderly end; a context manager of the main thread.

    The first signal sets `asked`, the second one raises KeyboardInterrupt. Elsewhere than on the
    main thread it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def await_query(
    query: StreamingQuery,
    on_progress: Callable[[StreamingQuery], None] | None = None,
    *,
    until: Callable[[], bool] | None = None,
    deadline_s: float | None = None,
    clock: BlockingClock | None = None,
) -> bool:
    """Wait for a streaming query; True when it ended by itself, False when it was stopped here.

    SIGINT, SIGTERM, `until` or the deadline stop it; what it has not finished comes again with the
    next run. Raises what the query failed with.

    Args:
        on_progress: called twice a second or so, with the query.
        until: asked as often; True stops the query.
        deadline_s: an instant of `clock.monotonic()`; needs `clock`.
    """
    with StopRequest() as stop:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # seconds, any number
            if on_progress is not None:
                on_progress(query)
            late = deadline_s is not None and clock is not None and clock.monotonic() >= deadline_s
            if stop.asked or late or (until is not None and until()):
                hush()
                query.stop()
                return False
    if on_progress is not None:
        on_progress(query)
    return True
