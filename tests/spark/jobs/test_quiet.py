"""What keeps Spark still while a job breaks off; without a JVM."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.jobs.running import BatchError, hush, kept_level, run_batches


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


class FakeStream:
    """A stream of one batch, and its writer and query; a late batch may come after the end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:  # option, trigger, queryName, start
        return lambda *_, **__: self

    @property
    def writeStream(self) -> FakeStream:
        return self

    def foreachBatch(self, take: Any) -> FakeStream:
        self.take = take
        return self

    def awaitTermination(self, seconds: float) -> bool:
        try:
            self.take(None, 0)
        except BatchError as error:
            assert error.__suppress_context__
            self.told.append(str(error))
            raise RuntimeError("as Spark tells it") from None
        return True


def test_spark_gets_a_short_text_of_what_a_batch_raised() -> None:
    """A stack trace of the JVM's in it would end in a StackOverflowError of Spark's."""
    trace = "bad\n" + "\tat org.apache.x.Y.z(A.scala:1)\n" * 100

    def fail(frame: object, batch_id: int) -> None:
        raise JobError(trace)

    stream: Any = FakeStream()
    with pytest.raises(JobError) as raised:
        run_batches(stream, "job", fail, checkpoint="/x", follow_ms=None)
    assert str(raised.value) == trace
    assert stream.told == ["bad"]


def test_no_batch_is_taken_after_the_end() -> None:
    taken: list[int] = []
    stream: Any = FakeStream()
    run_batches(
        stream, "job", lambda frame, number: taken.append(number), checkpoint="/x", follow_ms=1000
    )
    stream.take(None, 1)
    assert taken == [0]
