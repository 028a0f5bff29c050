# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
"""How jobs run on Spark: a session, the batches of a stream, and an orderly end on a signal.

A query that is stopped in the middle of a batch fails in every task and every thread that it has,
and Spark and py4j print the stack traces of all, over a thousand lines: a job that breaks off its
query because it was told to keeps Spark quiet.

A session of Spark Connect is refused: there `foreachBatch` runs its function in a process of the
server, without anything of the job's.

Driver process, main thread; batches come on a thread of Spark's. Importing this loads no pyspark.
"""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from skylarkmq.spark.jobs.common import JobSettings, UsageError, explain
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.session import connect_url, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.5
"""Seconds between two looks at a streaming query."""
PY4J: Final = "py4j.clientserver"
"""Prints what a batch raised, which the job tells by itself."""
NO_CONNECT: Final = (
    "a job needs a Spark whose driver runs here, and not Spark Connect: give a master such as "
    "local[4] or spark://HOST:7077, and unset SPARK_REMOTE"
)
_TRACE_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's, which print the stack traces of errors that it raises as well."""


@contextmanager
def open_session(app: str, settings: JobSettings, **conf: str) -> Generator[SparkSession]:
    """Give a session that knows the connector's formats, and stop it after the block.

    A session that is there already, as in a notebook or a test, is used and left alone.

    Args:
        conf: settings of Spark by their names; those of --conf win.

    Raises:
        UsageError: it would be a session of Spark Connect.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession as Session

    from skylarkmq.spark.session import build_session, register

    if connect_url(settings.master) is not None:
        raise UsageError(NO_CONNECT)
    if not settings.verbose:
        for name in _TRACE_LOGGERS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger(PY4J).setLevel(logging.CRITICAL)
    there = Session.getActiveSession()
    if there is not None:
        if is_connect(there):
            raise UsageError(NO_CONNECT)
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
    """A note whether SIGINT or SIGTERM asked for an orderly end; a context manager.

    The first signal sets `asked`, the second one raises KeyboardInterrupt. It works on the main
    thread alone; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def await_query(query: StreamingQuery) -> bool:
    """Wait for a streaming query; True when it ended by itself, False when it was stopped here.

    SIGINT or SIGTERM stops it; what it has not finished comes again with the next run. Raises what
    the query failed with.
    """
    with StopRequest() as stop:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # seconds, any number
            if stop.asked:
                hush()
                query.stop()
                return False
    return True


def follow_topics(
    spark: SparkSession,
    options: Mapping[str, str],
    name: str,
    take: Callable[[DataFrame, QueueOffsets], None],
    *,
    follow_ms: int | None,
) -> None:
    """Give each batch of topics, and where it ends, to `take`, until the end or a signal.

    Raises what a batch or the source raised. No batch is taken after the return. The job keeps the
    ends: Spark's checkpoint lies in a folder of this machine for as long as this lasts.

    Args:
        options: of the stream's source.
        follow_ms: a batch each time; None: what is there now, then end.
    """
    reader = spark.readStream.format("skylarkmq").options(**options)
    with tempfile.TemporaryDirectory("-skylarkmq", ignore_cleanup_errors=True) as folder:
        checkpoint = Path(folder)
        run_batches(
            reader.load(),
            name,
            lambda frame, number: take(frame, end_of(checkpoint, number)),
            checkpoint=checkpoint.as_uri(),
            follow_ms=follow_ms,
        )


def end_of(checkpoint: Path, number: int) -> QueueOffsets:
    """Return where a batch ends in each queue, as Spark notes it before the batch.

    Source: apache/spark@v4.3.0 sql/core/.../streaming/checkpointing/OffsetSeqLog.scala (a version,
    a line of metadata, a line for each source)
    """
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    return QueueOffsets.from_json(lines[-1])


def run_batches(
    stream: DataFrame,
    name: str,
    take: Callable[[DataFrame, int], None],
    *,
    checkpoint: str,
    follow_ms: int | None,
) -> None:
    """Give each batch of a stream and its number to `take`, until the end or a signal.

    Raises what a batch or the source raised. No batch is taken after the return.

    Args:
        checkpoint: where Spark keeps the offsets.
        follow_ms: a batch each time; None: what is there now, then end.
    """
    failures: list[Exception] = []
    lock, has_ended = threading.Lock(), threading.Event()

    def guarded(frame: DataFrame, batch_id: int) -> None:
        with lock:
            if has_ended.is_set():
                return
            try:
                take(frame, batch_id)
            except Exception as error:
                failures.append(error)  # Spark gives back its text alone
                raise BatchError(explain(error)) from None

    writer = stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(guarded)
    if follow_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{follow_ms} milliseconds")
    try:
        await_query(writer.queryName(name).start())
    except Exception:
        if failures:
            raise failures[-1] from None
        raise
    finally:
        # A query that was stopped may leave a batch that has still to see that it is.
        with lock:
            has_ended.set()


class BatchError(Exception):
    """What a batch raises for Spark, in place of the error that the job keeps: short.

    Spark looks through the text for an interruption, by a pattern that recurs with each character:
    a stack trace of the JVM in it ends in a StackOverflowError, and in a thousand lines more.

    Source: apache/spark@v4.3.0 sql/core/.../streaming/runtime/StreamExecution.scala (PROXY_ERROR)
    """


def hush() -> None:
    """Let Spark print nothing from now on; `kept_level` ends it. Without a session it does nothing.

    With --verbose all of it is printed.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None or logging.getLogger(__name__).isEnabledFor(logging.INFO):
        return
    spark.sparkContext.setLogLevel("OFF")


@contextmanager
def kept_level(spark: SparkSession) -> Generator[None]:
    """Give a session that outlives the job its log level back."""
    jvm: Any = spark.sparkContext._jvm
    level = str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel())
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel(level)


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once, as far as it knows."""
    return spark.sparkContext.defaultParallelism
