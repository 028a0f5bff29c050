"""What keeps Spark still while a job breaks off; without a JVM."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.spark.jobs.metrics import Counting, MetricsOptions
from skylarkmq.spark.jobs.quiet import BatchError, hush, kept_level
from skylarkmq.spark.jobs.window_files import WindowFiles
from skylarkmq.spark.jobs.windows import WindowBook


class FakeSession:
    """A session whose log level can be asked and set."""

    def __init__(self) -> None:
        self.level = "WARN"
        manager = SimpleNamespace(
            getRootLogger=lambda: SimpleNamespace(getLevel=lambda: self.level)
        )
        logging4j = SimpleNamespace(log4j=SimpleNamespace(LogManager=manager))
        apache = SimpleNamespace(apache=SimpleNamespace(logging=logging4j))
        self.sparkContext = SimpleNamespace(
            setLogLevel=lambda level: setattr(self, "level", level),
            _jvm=SimpleNamespace(org=apache),
        )


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = FakeSession()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: fake)
    return fake


def test_quiet_until_the_job_ends(session: Any) -> None:
    with kept_level(session):
        hush()
        assert session.level == "OFF"
    assert session.level == "WARN"


def test_verbose_shows_all(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        hush()
    assert session.level == "WARN"


def test_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    hush()


def test_spark_gets_a_short_text_of_what_a_batch_raised(tmp_path: Path) -> None:
    """A stack trace of the JVM's in it would end in a StackOverflowError of Spark's."""
    counting = Counting(
        MetricsOptions(("T",), str(tmp_path)),
        JobSettings(),
        WindowFiles(tmp_path),
        WindowBook(1000, 0),
        "",
    )
    trace = "bad\n" + "\tat org.apache.x.Y.z(A.scala:1)\n" * 100

    def fail(frame: object, batch_id: int) -> None:
        raise RuntimeError(trace)

    counting.take = fail  # type: ignore[method-assign]
    with pytest.raises(BatchError, match=r"^bad$") as raised:
        counting._take(None, 0)  # type: ignore[arg-type]
    assert raised.value.__suppress_context__
    assert str(counting._failure) == trace
