# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
"""Keeping Spark still while a job breaks off its query because it was told to.

A query that is stopped in the middle of a batch fails in every task and every thread that it has,
and Spark and py4j print the stack traces of all, over a thousand lines. Driver process.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PY4J: Final = "py4j.clientserver"
"""Prints what a batch raised, which the job tells by itself."""


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
    if spark is not None and not logging.getLogger(__name__).isEnabledFor(logging.INFO):
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
