"""An archive in an object store: the same promises, with two drivers that race for one table."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.removal import erase, expire, vacuum
from skylarkmq.spark.archive.table import ArchiveTable, table_schema
from skylarkmq.spark.storage import Location, StorageError
from tests.spark.support.archives import Place, append, places, run_of
from tests.spark.support.s3_server import S3Server


@pytest.fixture
def place(s3_place: Location) -> Location:
    return s3_place


def seen(place: Location) -> list[Place]:
    delta = DeltaTable(place.uri, storage_options=place.delta_options())
    return places(delta.to_pyarrow_table())


def test_from_archive_to_erasure(place: Location) -> None:
    table = ArchiveTable.open_or_make(place)
    for number in range(3):
        retried = run_of("%RETRY%g", 0, number * 4, number * 4 + 4)
        append(table, retried, run_of("T", 1, number, number + 1))
    everything = seen(place)
    assert len(everything) == 15
    batches = archive_table.read_batches(place, table.files(), table_schema())
    assert places(pa.Table.from_batches(list(batches))) == everything
    DeltaTable(place.uri, storage_options=place.delta_options()).optimize.compact()
    table.reload()
    assert erase(table, "topic = '%RETRY%g' AND queueOffset IN (1, 6)").count() == 2
    assert expire(table, topics=["T"]).count() == 3
    assert len(vacuum(table, retention_hours=0)) >= 6
    left = [p for p in everything if p[0] != "T" and p[3] not in (1, 6)]
    assert seen(place) == left
    again = ArchiveTable.open(place)
    assert (again.state.spans, again.state.gone) == (table.state.spans, table.state.gone)
    names = {file.name for file in again.files()}
    found = place.filesystem().get_file_info(_all())
    assert names == {info.path for info in found if info.path.endswith(".parquet")}


def _all() -> Any:
    from pyarrow.fs import FileSelector

    return FileSelector("", recursive=True)


def test_two_drivers_archive_topics_of_their_own(place: Location) -> None:
    """Nothing is lost or doubled: of two that want one version, one comes first."""
    ArchiveTable.open_or_make(place)
    started = threading.Barrier(2)

    def drive(topic: str) -> None:
        table = ArchiveTable.open_or_make(place)
        started.wait()
        for number in range(8):
            append(table, run_of(topic, 0, number * 3, number * 3 + 3))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(drive, "TU")) == [None, None]
    assert seen(place) == sorted((topic, "broker-a", 0, n) for topic in "TU" for n in range(24))
    assert ArchiveTable.open(place).state.present().count() == 48


def test_two_make_the_table(s3_place: Location) -> None:
    for number in range(4):
        place = Location(f"{s3_place.uri}/made-{number}", s3_place.options)
        made: list[ArchiveTable] = []
        started = threading.Barrier(2)

        def make(place: Location = place, started: Any = started, made: Any = made) -> None:
            started.wait()
            made.append(ArchiveTable.open_or_make(place))

        threads = [threading.Thread(target=make) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        append(made[0], run_of("T", 0, 0, 2))
        append(made[1], run_of("T", 1, 0, 2))
        assert len(seen(place)) == 4


def test_who_may_only_read(s3_server: S3Server) -> None:
    place = Location.parse(s3_server.place("archive"), s3_server.options, environment={})
    append(ArchiveTable.open_or_make(place), run_of("T", 0, 0, 2))
    reader = Location.parse(place.uri, s3_server.reader_options, environment={})
    table = ArchiveTable.open(reader)
    assert len(list(archive_table.read_batches(reader, table.files(), table_schema()))) == 1
    with pytest.raises(StorageError, match="not allowed"):
        append(table, run_of("T", 0, 2, 3))
    assert len(seen(place)) == 2
