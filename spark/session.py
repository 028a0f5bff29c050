# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A Spark session that is ready for the connector, and how sessions find the connector's formats.

    session = build_session("orders", "local[2]", **{"spark.driver.memory": "2g"})
    messages = session.readStream.format("skylarkmq").option(...).load()

Spark finds the formats by itself through the packages `pyspark_skylarkmq*`: it imports every
top-level package named `pyspark_*` when a session first looks any Python data source up, also for
people who never use ours, and one that raises breaks the look-up for all. So in the place of a
source that cannot be loaded stands one that says why when it is used. This runs in a short-lived
Python process of the driver.

Source: names and defaults from apache/spark@v4.3.0 sql/catalyst/.../internal/SQLConf.scala,
core/.../internal/config/package.scala, docs/configuration.md; the look-up from
python/pyspark/sql/worker/lookup_data_sources.py
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from skylarkmq.spark import requirements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SOURCES: Final = {
    "skylarkmq": ("skylarkmq.spark.source", "SkylarkSource"),
    "skylarkmq-commitlog": ("skylarkmq.spark.log.source", "CommitLogSource"),
}
MASTER: Final = "spark.master"
CONNECT_SCHEME: Final = "sc://"
LOOPBACK: Final = "127.0.0.1"
UNDER_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM runs already
SPARK_DECIDES: Final = frozenset({UNDER_SUBMIT, "SPARK_HOME", "SPARK_CONF_DIR"})

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOG_FILE: Final = Path(__file__).with_name("log4j2.properties").absolute()
LOGGING: Final = f"-Dlog4j2.configurationFile={LOG_FILE.as_uri()}"
"""For a JVM without a configuration: Spark's own default warns four times without a cause."""

SETTINGS: Final[dict[str, str]] = {
    # The bar of a job would be written over our own lines.
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Dates of archives, and times in what is printed, mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Rows come to a sink in batches of at most so many bytes: in 64 MiB of each task unless told.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    # Options are printed with plans: our secrets by their names, and Spark's own default.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|access.?key",
}


def build_session(app: str, master: str | None = None, **settings: object) -> SparkSession:
    """Return a session with settings that suit messages, and both formats known to it.

    What spark-submit was told goes before our settings, and `settings` before both. A session that
    this process has already is used as it is, but for `settings`. Not for use in a worker.

    A Spark Connect server needs this package too, for itself and its executors; settings that only
    its start can change have no effect.

    Args:
        app: the name that Spark's own pages show.
        master: "local[2]", "spark://host:7077", or "sc://host:15002" for a Spark Connect server.
            None leaves it to SPARK_REMOTE, to spark-submit or to the installation at SPARK_HOME or
            SPARK_CONF_DIR; without any, all cores of this machine.
        settings: Spark's own, by their names with dots.

    Raises:
        JavaNotFoundError: no usable Java.
        MissingRequirementError: pyspark or pyarrow is missing or too old, or there is no bash.
    """
    server = connect_url(master)
    if server is None or is_local(server):
        prepare()
    else:
        requirements.check_packages()
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        chosen = {name: as_text(value) for name, value in settings.items()}
    elif server is not None and not is_local(server):
        ours = choose(server, {}, {})  # the rest is up to who starts the server
        chosen = {name: value for name, value in ours.items() if name.startswith("spark.sql.")}
        chosen |= {name: as_text(value) for name, value in settings.items()}
    else:
        told = _told_to_submit()
        if master is None and not SPARK_DECIDES.intersection(os.environ):
            master = "local[*]"
        chosen = choose(master, told, settings)
        if not SPARK_DECIDES.intersection(os.environ):
            # Later options win, so the caller's may name a file of their own.
            chosen[JAVA_OPTIONS] = f"{LOGGING} {chosen.get(JAVA_OPTIONS, '')}".strip()
        if is_local(master or told.get(MASTER)):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(app)
    if server is not None:
        builder = builder.remote(server)
    elif master is not None:
        builder = builder.master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def choose(
    master: str | None, told: Mapping[str, str], settings: Mapping[str, object]
) -> dict[str, str]:
    """Return what a new session is to be given, as Spark writes it.

    Args:
        told: what spark-submit was told, by --conf, its other options and its file of defaults.
        settings: those of the caller.
    """
    chosen = dict(SETTINGS)
    if is_local(master or told.get(MASTER)):
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = LOOPBACK
        chosen["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    ours = {name: value for name, value in chosen.items() if name not in told}
    return ours | {name: as_text(value) for name, value in settings.items()}


def _told_to_submit() -> dict[str, str]:
    """The settings of the JVM that spark-submit made; none elsewhere, where there is no JVM yet."""
    if UNDER_SUBMIT not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # pyright: ignore[reportPrivateUsage]
    return dict(SparkConf().getAll())


def prepare() -> None:
    """Make this process ready to start Spark: Java, bash, packages, and the workers' Python.

    Workers run the Python of this process unless PYSPARK_PYTHON names another; so do the tasks of
    sources that Spark finds by itself, which go by PYSPARK_DRIVER_PYTHON. Raises what
    `build_session` does.
    """
    requirements.check_packages()
    if UNDER_SUBMIT not in os.environ:
        requirements.check_bash()
        requirements.ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])


def connect_url(master: str | None) -> str | None:
    """Return the address of the Spark Connect server that is meant, None when none is."""
    if master is None:
        return os.environ.get("SPARK_REMOTE")
    return master if master.startswith(CONNECT_SCHEME) else None


def is_local(master: str | None) -> bool:
    """Return whether driver and executors are all on this machine."""
    return master is not None and master.startswith("local")


def register(session: SparkSession) -> None:
    """Make `format("skylarkmq")` and `format("skylarkmq-commitlog")` known to a session.

    Needed where the packages `pyspark_skylarkmq` and `pyspark_skylarkmq_commitlog`, which do the
    same by being there, are not on the path of Spark's Python.

    Raises:
        MissingRequirementError: pyspark or pyarrow is missing or too old.
    """
    for name in SOURCES:
        source = load_source(name)
        if not _knows(session, name):
            session.dataSource.register(source)


def _knows(session: SparkSession, name: str) -> bool:
    """Return whether Spark found a format by itself; to register it once more warns."""
    if is_connect(session):
        return False
    jvm_session: Any = session._jsparkSession  # pyright: ignore[reportPrivateUsage]
    return bool(jvm_session.sessionState().dataSourceManager().dataSourceExists(name))


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect: it has no JVM here, and no SparkContext."""
    return getattr(session, "_jsparkSession", None) is None


def as_text(value: object) -> str:
    """As Spark writes it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_source(name: str) -> type[DataSource]:
    """Return the data source with a name of SOURCES; raises what its import does.

    Raises:
        MissingRequirementError: pyspark or pyarrow is missing or too old.
    """
    requirements.check_packages()
    module, attribute = SOURCES[name]
    return cast("type[DataSource]", getattr(importlib.import_module(module), attribute))


def load_source_or_refuse(name: str) -> type[DataSource]:
    """Return the data source, or one of the same name that raises when it is used.

    Raises:
        AttributeError: this pyspark has no Python data sources at all.
    """
    try:
        return load_source(name)
    except Exception as error:  # whatever it is, the sources of others must stay usable
        return _refusing(name, f'format("{name}") cannot be used: {error}')


def _refusing(format_name: str, why: str) -> type[DataSource]:
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError as error:
        raise AttributeError(why) from error

    class RefusingSource(DataSource):
        """Stands in for a source that cannot be loaded. Sent to the JVM by value."""

        def __init__(self, options: Any) -> None:
            raise RuntimeError(why)

        @classmethod
        def name(cls) -> str:
            return format_name

    return RefusingSource
