"""Makes `format("skylarkmq")` known to Spark by being there; nothing to import from.

Spark looks for `DefaultSource` in every package named `pyspark_*`. It is loaded when asked for.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skylarkmq.spark.session import load_source_or_refuse

    return load_source_or_refuse("skylarkmq")
