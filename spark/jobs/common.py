"""What the jobs share: the options of their command lines, the summary, exit codes and errors.

A job is a class of options, and a function that takes them and returns a `Summary`:

    @dataclass(frozen=True)
    class MyOptions:
        topic: str = argument("TOPIC")
        follow_ms: int | None = option("--follow", type=Duration(low=100), help="Go on ...")

    def run(options: MyOptions, settings: JobSettings) -> Summary: ...

    main = job_command("mine", MyOptions, run, help="The text of --help.")

`settings` has the options of all jobs. The summary alone goes to standard output: text, or with
--json one JSON document. Progress and the log go to standard error. Exit codes: 0 done, 1
differences or rows that could not be handled, 2 usage, 3 the job did not come to its end, 130
Ctrl-C.

Driver process, main thread. Importing this loads no pyspark.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

import click

from skylarkmq.spark.jobs.reporting import FAILED, INTERRUPTED, USAGE, Progress, Summary
from skylarkmq.spark.option_reading import OptionError, OptionReader
from skylarkmq.spark.storage import Location, StorageError

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"


class JobError(Exception):
    """A job cannot go on; the text says why and what to do."""

    exit_code = FAILED


class UsageError(JobError):
    """The command line asks for what cannot be done; the text says which option, and why."""

    exit_code = USAGE


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
    storage_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Options of object stores by their names, as `AWS_ENDPOINT_URL`."""

    def location(self, place: str) -> Location:
        """Return a place for data, named by a path or a URI, with the storage options.

        Raises:
            UsageError: it is no place, or of a kind that is not known.
        """
        try:
            return Location.parse(place, self.storage_options)
        except StorageError as error:
            raise UsageError(str(error)) from None

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
        if self.name_server and "nameserver" not in given:
            found["nameServer"] = self.name_server
        return {**found, **self.options}

    def progress(self, what: str, unit: str = "messages") -> Progress:
        """Return the job's progress."""
        return Progress(what, shown=self.shows_progress, unit=unit)

    @property
    def names_cluster(self) -> bool:
        """Return whether name servers were given."""
        return bool(self.name_server) or "nameserver" in map(str.lower, self.options)

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


Options = TypeVar("Options")
_PARAMETER: Final = "click"
"""The key under which a field keeps what makes its parameter of click."""


def argument(metavar: str, **more: Any) -> Any:
    """Return a field of a class of options that an argument of the command line fills."""

    def parameter(name: str) -> click.Parameter:
        return click.Argument([name], metavar=metavar, **more)

    return field(metadata={_PARAMETER: parameter})


def option(*flags: str, default: Any = None, **more: Any) -> Any:
    """Return a field of a class of options that an option of the command line fills.

    Args:
        default: as on the command line (`15m`); False for a flag, none for what is repeatable.
        more: what click's Option takes.
    """
    kind = more.get("type")
    if more.get("is_flag"):
        default = False
    if default is not None and not isinstance(default, bool):
        more.setdefault("show_default", True)

    def parameter(name: str) -> click.Parameter:
        return click.Option([*flags, name], default=default, **more)

    value = kind.convert(default, None, None) if isinstance(kind, Duration) and default else default
    return field(default=() if more.get("multiple") else value, metadata={_PARAMETER: parameter})


def follow_option() -> Any:
    """Return the field of --follow: ms between two batches, None to end with what is there."""
    return option(
        "--follow",
        type=Duration(low=100),
        metavar="TIME",
        help="Go on with a batch every TIME. Default: what is there now, then end.",
    )


def batch_option(default: int) -> Any:
    """Return the field of --batch-messages."""
    help_ = "Messages of one batch at most."
    return option("--batch-messages", type=click.IntRange(min=1), default=default, help=help_)


def job_command(
    job: str,
    options: type[Options],
    work: Callable[[Options, JobSettings], Summary],
    *,
    help: str,
    name: str = "",
) -> click.Command:
    """Return the command of a job: it does the work, prints the summary and exits with its code.

    Args:
        job: what the summary calls it.
        options: a dataclass whose fields are made by `argument` and `option`.
        name: of a command of a group.
    """

    def command(**given: Any) -> None:
        settings = settings_of({str(each.name): given.pop(str(each.name)) for each in shared})
        run_job(job, settings, lambda: work(options(**given), settings))

    shared = shared_options()
    own: list[click.Parameter] = [
        each.metadata[_PARAMETER](each.name) for each in fields(cast("Any", options))
    ]
    return click.Command(name or job, params=[*own, *shared], callback=command, help=help)


def shared_options() -> list[click.Option]:
    """Return the options that all jobs have."""
    return [
        click.Option(
            ["--name-server"], metavar="HOST:PORT", envvar=NAME_SERVER_VARIABLE, show_envvar=True,
            help="Name servers, separated by semicolons.",
        ),
        click.Option(
            ["--option", "options"], multiple=True, metavar="NAME=VALUE",
            help="An option of the connector, as namespace=shop; repeatable.",
        ),
        click.Option(
            ["--options-file"], type=click.Path(exists=True, dir_okay=False), metavar="FILE",
            help="Options of the connector, NAME=VALUE a line: keeps secrets off the command line.",
        ),
        click.Option(
            ["--storage-option", "storage_options"], multiple=True, metavar="KEY=VALUE",
            help="An option of the object store, as AWS_ENDPOINT_URL=http://HOST:PORT; repeatable. "
            "Those of the environment count as well: secrets are better there.",
        ),
        click.Option(
            ["--master"], metavar="URL",
            help="Spark master, as local[4]; else what spark-submit set, else this machine.",
        ),
        click.Option(
            ["--conf"], multiple=True, metavar="NAME=VALUE",
            help="A setting of Spark, as spark.driver.memory=2g; repeatable.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="The summary as one JSON document."),
        click.Option(
            ["--progress/--no-progress", "show_progress"], default=None,
            help="Progress on standard error. Default: on a terminal, without --json.",
        ),
        click.Option(
            ["-v", "--verbose"], is_flag=True, help="Log more; a failure shows its traceback."
        ),
    ]  # fmt: skip


def settings_of(given: dict[str, Any]) -> JobSettings:
    """Return the settings that the options of all jobs, by their names, make."""
    path = given.pop("options_file")
    from_file = {} if path is None else read_options_file(path)
    given["options"] = from_file | _pairs(given["options"], "--option")
    given["storage_options"] = _pairs(given["storage_options"], "--storage-option")
    given["conf"] = _pairs(given["conf"], "--conf")
    return JobSettings(**given)


def read_options_file(path: str) -> dict[str, str]:
    """Return the options of a file of `NAME=VALUE` lines; lines that begin with # are comments."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in lines]
    return _pairs([line for line in kept if line and not line.startswith("#")], path)


def _pairs(texts: tuple[str, ...] | list[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The text itself is not shown: it may be a secret whose name was forgotten.
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
            text = f"{text}: give --name-server HOST:PORT"
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


def explain(error: BaseException) -> str:
    """Return an error's text without stack traces.

    Spark wraps what a Python worker raised into several exceptions and prints the worker's
    traceback: of that only its last line counts, which names the cause and the cure.
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = text.partition("Traceback (most recent call last)")[2].splitlines()[1:]
        ends = [number for number, line in enumerate(lines) if _END_OF_TRACEBACK.match(line)]
        # Spark's runner may fail again while it cleans up, which says nothing about the cause.
        ours = [number for number in ends if lines[number].startswith(_OWN_ERRORS)]
        for number in (ours or ends)[-1:]:
            first = lines[number].partition(": ")[2]
            more = _END_OF_MESSAGE.split("\n".join(["", *lines[number + 1 :]]))[0]
            return " ".join([first, *more.split()]).strip()
    text = " ".join(_PY4J.sub("", _END_OF_MESSAGE.split(text)[0]).split())
    return text or type(error).__name__
