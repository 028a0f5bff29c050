"""What jobs share: options, exit codes, and errors without Spark's stack traces."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from skylarkmq.spark.jobs.common import (
    Duration,
    JobError,
    JobSettings,
    UsageError,
    argument,
    explain,
    job_command,
    option,
)
from skylarkmq.spark.jobs.reporting import DIFFERENCES, Summary
from skylarkmq.spark.jobs.running import StopRequest, await_query
from skylarkmq.spark.option_reading import OptionError

SPARK_FAILURE = """[STREAM_FAILED] Query [id = 7d, runId = 9e] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "/x/pyspark/sql/streaming/python_streaming_source_runner.py", line 233, in main
    latest_offset_func(reader, outfile)
  File "/x/source.py", line 1, in latestOffset
    raise RouteNotFound(topic)
skylarkmq.client.errors.RouteNotFound: no route to topic orders (topic_missing). Create it,
or name another

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:117)
JVM stacktrace:
org.apache.spark.SparkException
"""


@dataclass(frozen=True, slots=True)
class Job:
    topic: str = argument("TOPIC")
    every_ms: int = option("--every", type=Duration(low=1), default="2m", help="So often.")
    names: tuple[str, ...] = option("--name", multiple=True)
    fast: bool = option("--fast", is_flag=True)


def invoke(*arguments: str, work: Any = None, env: dict[str, str] | None = None) -> Result:
    def default(options: Job, settings: JobSettings) -> Summary:
        found = settings.connector_options(topic=options.topic, commit=True)
        return Summary("job", {"options": found})

    chosen = default if work is None else lambda *_: work()
    main = job_command("job", Job, chosen, help="A job.")
    return CliRunner().invoke(
        main, ["orders", *arguments], env={"NAMESRV_ADDR": None, **(env or {})}
    )


def test_a_class_of_options_is_a_command_line() -> None:
    assert Job("T") == Job("T", 120_000, (), False)
    seen: list[Job] = []

    def work(options: Job, settings: JobSettings) -> Summary:
        seen.append(options)
        return Summary("job", {})

    main = job_command("job", Job, work, help="A job.")
    for line in (["T"], ["T", "--every", "5s", "--name", "a", "--name", "b", "--fast"]):
        assert CliRunner().invoke(main, line).exit_code == 0
    assert seen == [Job("T"), Job("T", 5000, ("a", "b"), True)]
    text = CliRunner().invoke(main, ["--help"]).output
    assert "TOPIC" in text and "So often." in text and "[default: 2m]" in text


def options_of(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    found: dict[str, str] = json.loads(result.stdout)["figures"]["options"]
    return found


def test_options_of_the_connector_come_together() -> None:
    result = invoke("--json", "--name-server", "a:1", "--option", "accessKey=me")
    expected = {"topic": "orders", "commit": "true", "nameServer": "a:1", "accessKey": "me"}
    assert options_of(result) == expected


def test_the_name_server_comes_from_the_environment_too() -> None:
    assert options_of(invoke("--json", env={"NAMESRV_ADDR": "b:2"}))["nameServer"] == "b:2"


def test_an_option_goes_before_the_name_server() -> None:
    found = options_of(invoke("--json", "--name-server", "a:1", "--option", "NAMESERVER=c:3"))
    assert "nameServer" not in found
    assert found["NAMESERVER"] == "c:3"


def test_an_option_goes_before_the_jobs_own_whatever_its_case() -> None:
    found = options_of(invoke("--json", "--option", "COMMIT=false"))
    assert {name: found[name] for name in found if name.lower() == "commit"} == {"COMMIT": "false"}


def test_options_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "options"
    file.write_text("# the account\naccessKey = me\n\nsecretKey=a=b\n")
    found = options_of(invoke("--json", "--options-file", str(file), "--option", "accessKey=you"))
    assert (found["accessKey"], found["secretKey"]) == ("you", "a=b")


def test_a_pair_without_a_name_is_refused_and_not_repeated() -> None:
    result = invoke("--option", "a=b", "--option", "s3cret")
    assert result.exit_code == 2
    assert "entry 2 has to be NAME=VALUE" in result.output
    assert "s3cret" not in result.output


def test_settings_show_no_secret() -> None:
    settings = JobSettings(options={"secretKey": "s3cret"}, conf={"spark.x.password": "s3cret"})
    assert "s3cret" not in repr(settings)


def test_storage_options_are_their_own() -> None:
    seen: list[JobSettings] = []

    def work(options: Job, settings: JobSettings) -> Summary:
        seen.append(settings)
        return Summary("job", {})

    main = job_command("job", Job, work, help="A job.")
    pairs = ["--storage-option", "AWS_REGION=r", "--storage-option", "AWS_SECRET_ACCESS_KEY=s3cret"]
    assert CliRunner().invoke(main, ["orders", *pairs]).exit_code == 0
    assert seen[0].storage_options == {"AWS_REGION": "r", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    assert "s3cret" not in repr(seen[0])


def test_progress_is_off_with_json_and_where_there_is_no_terminal() -> None:
    assert not JobSettings(as_json=True).shows_progress
    assert not JobSettings().shows_progress  # pytest's standard error is a file
    assert JobSettings(show_progress=True, as_json=True).shows_progress


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobError("no"), 3),
        (UsageError("no"), 2),
        (OptionError("unknown option topick"), 2),
        (RuntimeError("no"), 3),
        (RuntimeError("x.option_reading.OptionError: unknown option topick"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_a_summary_with_its_code(error: BaseException, code: int) -> None:
    def work() -> Summary:
        raise error

    result = invoke("--json", work=work)
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["exit_code"] == code
    text = invoke(work=work)
    assert text.exit_code == code
    assert "Traceback" not in text.output
    if str(error):
        assert text.stdout == ""
        assert str(error).rpartition(": ")[2] in text.stderr


def test_a_cluster_that_was_not_named_is_asked_for() -> None:
    def work() -> Summary:
        raise OptionError("option nameServer is missing")

    assert "is missing: give --name-server HOST:PORT" in invoke(work=work).stderr
    assert "give --name-server" not in invoke("--name-server", "a:1", work=work).stderr


@pytest.mark.parametrize(("text", "ms"), [("5s", 5000), ("250", 250), ("1h", 3_600_000)])
def test_durations(text: str, ms: int) -> None:
    assert Duration().convert(text, None, None) == ms
    assert Duration().convert(ms, None, None) == ms


@pytest.mark.parametrize("text", ["5x", "", "-1", "0"])
def test_a_wrong_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="it is"):
        Duration(low=1).convert(text, None, None)


def test_differences_exit_with_1() -> None:
    result = invoke(work=lambda: Summary("job", {"missing": 3}, exit_code=DIFFERENCES))
    assert result.exit_code == 1
    assert result.stdout == "job: differences\n  missing  3\n"


HIDDEN = """[STREAM_FAILED] Query [id = b7] terminated with exception: Traceback (most recent \
call last):
  File "/x/source.py", line 53, in streamReader
skylarkmq.spark.option_reading.OptionError: unknown option topick: did you mean topic?

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/python_streaming_source_runner.py", line 270, in main
    reader.stop()
UnboundLocalError: cannot access local variable 'reader'
 SQLSTATE: 38000
"""


def test_explain_sees_behind_a_failure_of_the_cleaning_up() -> None:
    assert explain(RuntimeError(HIDDEN)) == "unknown option topick: did you mean topic?"


def test_explain_keeps_the_cause_and_the_cure() -> None:
    assert explain(RuntimeError(SPARK_FAILURE)) == (
        "no route to topic orders (topic_missing). Create it, or name another"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("[CODE] bad\n\nJVM stacktrace:\nx\n\tat y", "[CODE] bad"),
        (
            "An error occurred while calling o25.collectToPython.\n: org.apache.spark."
            "SparkException: [FAILED_READ_FILE] File x. SQLSTATE: KD001\n\tat org.x.Y.z(A.scala:1)",
            "[FAILED_READ_FILE] File x. SQLSTATE: KD001",
        ),
        ("bad\n\tat org.apache.x.Y.z(A.scala:1)", "bad"),
        ("[C] no x. SQLSTATE: 42703; line 1 pos 0;\n'Filter x", "[C] no x. SQLSTATE: 42703"),
        ("[C] ended. SQLSTATE: XXKST\nfoo", "[C] ended. SQLSTATE: XXKST"),
        ("Traceback (most recent call last):\n  a", "Traceback (most recent call last): a"),
        ("", "RuntimeError"),
    ],
)
def test_explain(text: str, expected: str) -> None:
    assert explain(RuntimeError(text)) == expected


class FakeQuery:
    """A streaming query that ends at the given look, or when it is stopped."""

    def __init__(self, looks: int, at_look: Callable[[], None] = lambda: None) -> None:
        self.looks = looks
        self.at_look = at_look
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        self.at_look()
        self.looks -= 1
        return self.looks <= 0

    def stop(self) -> None:
        self.stopped = True


def test_a_query_is_awaited() -> None:
    query = FakeQuery(3)
    assert await_query(query)  # type: ignore[arg-type]
    assert query.looks == 0 and not query.stopped


def test_a_signal_stops_a_query_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    query = FakeQuery(1000, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert not await_query(query)  # type: ignore[arg-type]
    assert query.stopped
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_second_signal_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGINT)
