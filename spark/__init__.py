"""A topic as a Spark stream, and what goes with it, on PySpark's Python Data Source API.

    format("skylarkmq")             source and sink, streaming and batch
    format("skylarkmq-commitlog")   the log files of a stopped store, without a broker

    from skylarkmq.spark import build_session
    spark = build_session("orders", "local[2]")

`register(spark)` makes the formats known to a session that was built elsewhere.

Needs the extra `spark`. Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skylarkmq.spark.session import build_session as build_session
    from skylarkmq.spark.session import register as register

__all__ = ["build_session", "register"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from skylarkmq.spark import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
