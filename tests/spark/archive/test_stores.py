"""An archive in an object store: two drivers race for it, and what is wrong is told."""

from __future__ import annotations

import multiprocessing as mp
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest
from deltalake import DeltaTable

from skylarkmq.spark.archive.spans import OverlapError
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.storage import Location, StorageError
from tests.spark.support.archives import commit, places, reports_of, run_of
from tests.spark.support.s3_server import S3Server
from tests.support.patience import LIMIT_S

QUEUE = QueueKey("T", "broker-a", 0)
TOTAL = 60


class Start(Protocol):
    """Lets drivers start at once, be they threads or processes."""

    def wait(self, timeout: float | None = None) -> int: ...


def drive(place: Location, step: int, start: Start) -> None:
    """A driver: archives what is next, `step` messages a batch, until all are there."""
    table = ArchiveTable.open_or_make(place)
    start.wait(LIMIT_S)
    while (at := table.state.next_offset(QUEUE) or 0) < TOTAL:
        reports = reports_of(table, [run_of("T", 0, at, min(at + step, TOTAL))])
        try:
            commit(table, reports)
        except OverlapError:
            continue  # the other one was first: go on after it


def check(place: Location) -> None:
    """All messages are there once."""
    wanted = [(*QUEUE, offset) for offset in range(TOTAL)]
    table = DeltaTable(place.uri, storage_options=place.delta_options())
    assert places(table.to_pyarrow_table()) == wanted
    assert ArchiveTable.open(place).state.spans.count() == TOTAL


def test_two_drivers_race_for_a_table(place: Location) -> None:
    start = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        drivers = [pool.submit(drive, place, step, start) for step in (3, 5)]
    assert [driver.result() for driver in drivers] == [None, None]
    check(place)


@pytest.mark.slow
def test_two_drivers_that_are_processes_race_for_a_table(place: Location) -> None:
    import polars

    context = mp.get_context("spawn")
    start = context.Barrier(2)
    drivers = [context.Process(target=drive, args=(place, step, start)) for step in (3, 5)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(LIMIT_S)
    assert [driver.exitcode for driver in drivers] == [0, 0]
    check(place)
    frame = polars.read_delta(place.uri, storage_options=place.delta_options())
    assert sorted(frame["queueOffset"]) == list(range(TOTAL)), "others read it as well"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not-the-secret-key"}, "does not accept the credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0"}, "does not answer"),
        ({"AWS_ENDPOINT_ULR": "x"}, "Did you mean AWS_ENDPOINT_URL"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(
    s3_server: S3Server, change: dict[str, str], told: str
) -> None:
    place = Location.parse(s3_server.place(), {**s3_server.options, **change}, {})
    for use in (ArchiveTable.open, ArchiveTable.open_or_make):
        with pytest.raises(StorageError, match=told) as caught:
            use(place)
        for name, value in place.options.items():
            assert "KEY" not in name or value not in str(caught.value)


def test_a_bucket_that_is_not_there_and_a_user_who_may_only_read(s3_server: S3Server) -> None:
    with pytest.raises(StorageError, match="no such bucket"):
        ArchiveTable.open_or_make(Location.parse("s3://nowhere/x", s3_server.options, {}))
    with pytest.raises(StorageError, match="not allowed to do this"):
        ArchiveTable.open_or_make(Location.parse(s3_server.place(), s3_server.reader_options, {}))
