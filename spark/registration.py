"""The data sources as Spark finds them by itself, through the packages `pyspark_skylarkmq*`.

Spark imports every top-level package named `pyspark_*` when a session first looks any Python data
source up, also for people who never use ours, and one that raises breaks the look-up for all.
So a source that can not be loaded is stood in for by one that says why when it is used.

Runs in a short-lived Python process of the driver.
Source: apache/spark@v4.3.0 python/pyspark/sql/worker/lookup_data_sources.py
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, cast

from skylarkmq.spark import requirements

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

SOURCES: Final = {
    "skylarkmq": ("skylarkmq.spark.source", "SkylarkSource"),
    "skylarkmq-commitlog": ("skylarkmq.spark.commitlog", "CommitLogSource"),
}


def load(name: str) -> type[DataSource]:
    """Return the data source with a name of SOURCES; raises what its import does.

    Raises:
        MissingRequirementError: pyspark or pyarrow is missing or too old.
    """
    requirements.check_packages()
    module, attribute = SOURCES[name]
    return cast("type[DataSource]", getattr(importlib.import_module(module), attribute))


def load_or_refuse(name: str) -> type[DataSource]:
    """Return the data source, or one of the same name that raises when it is used.

    Raises:
        AttributeError: this pyspark has no Python data sources at all.
    """
    try:
        return load(name)
    except Exception as error:  # whatever it is, the sources of others must stay usable
        return _refusing(name, f'format("{name}") can not be used: {error}')


def _refusing(format_name: str, why: str) -> type[DataSource]:
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError as error:
        raise AttributeError(why) from error

    class RefusingSource(DataSource):
        """Stands in for a source that can not be loaded. Sent to the JVM by value."""

        def __init__(self, options: Any) -> None:
            raise RuntimeError(why)

        @classmethod
        def name(cls) -> str:
            return format_name

    return RefusingSource
