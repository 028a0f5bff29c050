"""One Spark session and one broker for all tests of this folder.

Tests that take `spark` start a JVM: mark them `spark`, and keep them few. They share the session,
so each takes topics, folders and query names of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from skylarkmq.spark.requirements import JavaNotFoundError, MissingRequirementError
from skylarkmq.spark.storage import Location
from skylarkmq.testing.broker import RunningBroker
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.light_s3 import running_light_s3
from tests.spark.support.s3_server import S3Server, running_s3_server
from tests.spark.support.worker_path import PATIENT, make_worker_path
from tests.support.amounts import slow
from tests.support.patience import LIMIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Its own allocator keeps what is freed: 40 MiB of a worker.
pa.set_memory_pool(pa.system_memory_pool())

NUMBERS = count(1)

QUICK: dict[str, object] = {
    **PATIENT,
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "OFF",
}
"""What makes a session start, and its first queries run, in half the time; and PATIENT."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with an S3 server are slow: it starts in seconds, and takes more than the tests."""
    for item in items:
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local[2] session with both formats; skipped, with the reason, where Spark can not run."""
    folder = tmp_path_factory.mktemp("spark")
    with worker_path(folder / "workers"):
        yield from running_session(folder)


@contextmanager
def worker_path(folder: Path) -> Iterator[None]:
    """Neither this process nor its workers can load pandas, and workers connect first."""
    with pytest.MonkeyPatch.context() as patch:
        # Not None in its place: pyarrow, which looks for pandas late, would take that for pandas.
        patch.delitem(sys.modules, "pandas", raising=False)
        patch.setenv("PYTHONPATH", make_worker_path(folder))
        patch.syspath_prepend(str(folder))
        yield


def running_session(folder: Path) -> Iterator[SparkSession]:
    from skylarkmq.spark.session import build_session

    before = dict(os.environ)
    settings = {
        **QUICK,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
    }
    try:
        session = build_session("tests", "local[2]", **settings)
    except (JavaNotFoundError, MissingRequirementError) as error:
        pytest.skip(f"no Spark here: {error}")
    yield session
    session.stop()
    gateway = session.sparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its standard input
        gateway.proc.wait(LIMIT_S)
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def broker(skylarkmq_broker_session: RunningBroker) -> SyncBroker:
    """A broker with its name server, in memory, without await."""
    return SyncBroker(skylarkmq_broker_session)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server with one bucket."""
    pytest.importorskip("moto", reason="moto[server] is no part of this installation")
    with running_s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def light_s3() -> Iterator[dict[str, str]]:
    """The options of a bucket in the memory of a small process."""
    with running_light_s3() as options:
        yield options


@pytest.fixture(params=["folder", "s3", slow("moto")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for data that is not there yet, of each kind."""
    if request.param == "folder":
        return Location.parse(str(tmp_path / "place"))
    return in_a_bucket(request)


@pytest.fixture(params=["s3", slow("moto")])
def s3_place(request: pytest.FixtureRequest) -> Location:
    """A place in an object store that is not there yet."""
    return in_a_bucket(request)


def in_a_bucket(request: pytest.FixtureRequest) -> Location:
    """A place of the test's own, in the bucket of the small server or of the real server."""
    if request.param == "s3":
        options: dict[str, str] = request.getfixturevalue("light_s3")
        return Location.parse(f"s3://data/place-{next(NUMBERS)}", options, {})
    server: S3Server = request.getfixturevalue("s3_server")
    return Location.parse(server.place(), server.options, {})


@pytest.fixture
def topic(broker: SyncBroker) -> str:
    """A topic of this test's own, with four queues."""
    name = f"spark_{next(NUMBERS)}"
    broker.create_topic(name, 4)
    return name


def path_without_java(folder: Path) -> str:
    """A folder of links to every program of PATH but Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)
