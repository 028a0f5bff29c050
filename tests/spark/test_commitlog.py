"""The commit log as a table: stores that RocketMQ wrote, ours, damage, options. No JVM."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from skylarkmq.client.errors import NotSupported
from skylarkmq.protocol.record import decode_message
from skylarkmq.spark.log.log_batches import DamagedLogError
from skylarkmq.spark.log.log_options import LogOptions, OnCorruption
from skylarkmq.spark.log.source import (
    CommitLogReader,
    CommitLogSource,
    LogNotFoundError,
    list_log,
    plan,
)
from skylarkmq.spark.schema import LOG_COLUMNS, arrow_schema, ddl, names
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.store.stopped.walk import PlaceKind, walk
from tests.spark.support.records import row_of, rows_in
from tests.store.test_golden_stores import FOLDER, SIZES, STORES
from tests.support.archives import unpack
from tests.support.disk_store import DiskStore
from tests.support.store_samples import Fields, sample_commands

ALL = names(LOG_COLUMNS)


def read_all(path: Path, columns: tuple[str, ...] = ALL, **options: Any) -> list[dict[str, Any]]:
    """All rows as Spark would get them, each partition pickled on its way."""
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    reader = pickle.loads(pickle.dumps(CommitLogReader(LogOptions.parse(given), columns)))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            batch.validate(full=True)
            assert batch.schema == arrow_schema(columns, LOG_COLUMNS)
            rows += rows_in(batch)
    return rows


def expected_rows(root: Path) -> list[dict[str, Any]]:
    """What the store's own tools and the protocol's decoder make of a store."""
    rows: list[dict[str, Any]] = []
    for place in walk(StoppedStore(root)):
        if place.kind is PlaceKind.MESSAGE:
            row = row_of(decode_message(place.first_bytes(place.size)))
            del row["brokerName"]
            row["segment"], row["position"] = place.file.path.name, place.position
            row["crcOk"], row["recordKind"] = True, row_kind(row)
            rows.append(row)
    return rows


def row_kind(row: dict[str, Any]) -> str:
    kind = ("message", "prepared", "commit", "rollback")[row["sysFlag"] >> 2 & 3]
    half = row["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    return "prepared" if kind == "message" and half else kind


@pytest.fixture(params=sorted(STORES))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(FOLDER / STORES[request.param]["file"], tmp_path)
    return next(path.parent for path in tmp_path.rglob("commitlog"))


@pytest.mark.parametrize("cut", [0, 1024, 20_000])
def test_a_store_that_rocketmq_wrote(golden: Path, cut: int) -> None:
    expected = expected_rows(golden)
    assert len(expected) > 50
    assert read_all(golden, maxBytesPerPartition=cut) == expected


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A store of three log files, stopped cleanly."""
    unpack(FOLDER / STORES["clean"]["file"], tmp_path)
    return next(path.parent for path in tmp_path.rglob("commitlog"))


def test_the_path_is_a_store_its_log_or_a_file_of_it(clean: Path) -> None:
    expected = read_all(clean)
    assert read_all(clean / "commitlog") == expected
    assert read_all(Path(f"file://{clean}")) == expected
    file = clean / "commitlog" / f"{131072:020d}"
    assert read_all(file) == [row for row in expected if row["segment"] == file.name]


def test_where_no_log_is(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError, match="storePathRootDir"):
        read_all(tmp_path / "missing")
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").write_text("x")
    with pytest.raises(LogNotFoundError, match="no log file: none with a name of 20 digits"):
        read_all(tmp_path)


def test_nothing_is_written_or_made(clean: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        paths = sorted(clean.rglob("*"))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    before = state()
    for path in clean.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert read_all(clean)
    assert state() == before


def test_files_made_ahead_of_need_have_no_range(clean: Path) -> None:
    expected = read_all(clean)
    (clean / "commitlog" / f"{131072 * 3:020d}").write_bytes(bytes(131072))
    (clean / "commitlog" / f"{131072 * 4:020d}").write_bytes(b"")
    spans = plan(list_log(str(clean)), LogOptions(str(clean)))
    assert [span.base for span in spans] == [0, 131072, 262144]
    assert [span.is_last for span in spans] == [False, False, True]
    assert read_all(clean) == expected


def test_a_file_that_expires_meanwhile(clean: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = read_all(clean)
    options = LogOptions(str(clean))
    reader = CommitLogReader(options, ALL)
    partitions = reader.partitions()
    os.unlink(clean / "commitlog" / f"{0:020d}")
    rows = [row for part in partitions for batch in reader.read(part) for row in rows_in(batch)]
    assert rows == [row for row in expected if row["segment"] != f"{0:020d}"]
    assert "was deleted since the log was listed: it expired" in caplog.text
    (clean / "commitlog").rename(clean / "elsewhere")
    with pytest.raises(LogNotFoundError, match="every executor"):
        list(reader.read(partitions[1]))


def name_of(number: int) -> str:
    return f"{131072 * number:020d}"


def of_files(rows: list[dict[str, Any]], *numbers: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["segment"] in map(name_of, numbers)]


POLICIES: tuple[OnCorruption, ...] = ("fail", "skip", "stop")
LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (os.unlink, r"physical offset 131072\), 131072 bytes: no file has them"),
    "cut to nothing": (lambda file: os.truncate(file, 0), r"131072 bytes: no file has them"),
    "zeros": (lambda file: _write(file, 0, bytes(131072)), r"at byte 0 .* 131072 bytes: nothing"),
}


def _write(file: Path, place: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(data)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("cut", [0, 20_000])
def test_a_file_lost_from_the_middle_is_damage(clean: Path, kind: str, cut: int) -> None:
    expected = read_all(clean)
    lose, text = LOSSES[kind]
    lose(clean / "commitlog" / name_of(1))
    with pytest.raises(DamagedLogError, match=text):
        read_all(clean, maxBytesPerPartition=cut)
    skipped = read_all(clean, onCorruption="skip", maxBytesPerPartition=cut)
    assert skipped == of_files(expected, 0, 2)
    assert read_all(clean, onCorruption="stop", maxBytesPerPartition=cut) == of_files(expected, 0)


def test_a_file_cut_short_behind_a_record_is_damage(clean: Path) -> None:
    expected = read_all(clean)
    lost = of_files(expected, 1)[4:]
    os.truncate(clean / "commitlog" / name_of(1), lost[0]["position"])
    with pytest.raises(DamagedLogError, match="this one is cut short"):
        read_all(clean)
    assert read_all(clean, onCorruption="skip") == [row for row in expected if row not in lost]


def test_files_that_overlap_are_damage(clean: Path) -> None:
    os.truncate(clean / "commitlog" / name_of(0), 131072 + 4096)
    with pytest.raises(DamagedLogError):
        read_all(clean)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_whose_front_is_zeros_is_read(clean: Path, number: int) -> None:
    """As a disk leaves it that was copied without its unreadable sectors."""
    expected = read_all(clean)
    _write(clean / "commitlog" / name_of(number), 0, bytes(512))
    with pytest.raises(DamagedLogError, match="nothing was written here"):
        read_all(clean)
    lost = [row for row in of_files(expected, number) if row["position"] < 512]
    assert 0 < len(lost) < 5
    skipped = read_all(clean, onCorruption="skip")
    assert skipped == [row for row in expected if row not in lost]


@pytest.mark.parametrize("size", [0, 500, 20_000])
def test_a_file_that_is_cut_short_meanwhile(clean: Path, size: int) -> None:
    """As by a broker that starts on the files, and takes off what it finds torn."""
    expected = read_all(clean)
    options = [
        LogOptions(str(clean), on_corruption=it, max_partition_bytes=9000) for it in POLICIES
    ]
    readers = [CommitLogReader(each, ALL) for each in options]
    planned = [reader.partitions() for reader in readers]
    os.truncate(clean / "commitlog" / name_of(1), size)
    whole = [row for row in of_files(expected, 1) if row["position"] + row["storeSize"] <= size]
    with pytest.raises(DamagedLogError):
        [list(readers[0].read(part)) for part in planned[0]]
    for reader, partitions, more in zip(readers[1:], planned[1:], [(2,), ()], strict=True):
        batches = [batch for part in partitions for batch in reader.read(part)]
        rows = [row for batch in batches for row in rows_in(batch)]
        assert rows == [*of_files(expected, 0), *whole, *of_files(expected, *more)]


@pytest.mark.parametrize("name", ["", "commitlog", f"commitlog/{131072:020d}"])
def test_what_may_not_be_read(clean: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The system is stood in for: tests may run as root, who may read everything."""
    forbidden = clean / name

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *more: Any, **named: Any) -> Any:
            if forbidden in (Path(path), Path(path).parent if forbidden.is_dir() else None):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return original(path, *more, **named)

        return call

    for function in ("open", "listdir"):
        monkeypatch.setattr(os, function, checked(getattr(os, function)))
    with pytest.raises(
        LogNotFoundError, match=r"may not be read by user \d+\. The user that Spark"
    ):
        read_all(clean)


@pytest.mark.parametrize(("number", "block"), [(0, 0), (1, 9000), (2, 0)])
def test_blocks_that_the_disk_cannot_read(
    clean: Path, monkeypatch: pytest.MonkeyPatch, number: int, block: int
) -> None:
    expected, original = read_all(clean), os.pread
    bad = os.stat(clean / "commitlog" / name_of(number)).st_ino
    begin = block - block % 4096

    def pread(fd: int, size: int, position: int) -> bytes:
        if os.fstat(fd).st_ino == bad and position < begin + 4096 and position + size > begin:
            raise OSError(errno.EIO, "Input/output error")
        return original(fd, size, position)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(DamagedLogError, match=r"the disk cannot read it.*onCorruption=skip"):
        read_all(clean, maxBytesPerPartition=4096)
    places = {(row["segment"], row["position"]) for row in expected}
    skipped = read_all(clean, onCorruption="skip", maxBytesPerPartition=4096)
    lost = places - {(row["segment"], row["position"]) for row in skipped}
    assert 0 < len(lost) < 10
    assert skipped == [row for row in expected if (row["segment"], row["position"]) not in lost]


def test_a_file_that_vanishes_from_the_middle(
    clean: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = read_all(clean)
    readers = [CommitLogReader(LogOptions(str(clean), on_corruption=it), ALL) for it in POLICIES]
    planned = [reader.partitions() for reader in readers]
    (clean / "commitlog" / name_of(1)).unlink()
    with pytest.raises(DamagedLogError, match="it did not expire: older ones are there"):
        list(readers[0].read(planned[0][1]))
    for reader, partitions, numbers in zip(readers[1:], planned[1:], [(0, 2), (0,)], strict=True):
        batches = [batch for part in partitions for batch in reader.read(part)]
        assert [row for batch in batches for row in rows_in(batch)] == of_files(expected, *numbers)
    assert caplog.text.count("it did not expire") == 2


def test_a_file_that_is_deleted_while_it_is_read_stays_readable(clean: Path) -> None:
    expected = [row for row in read_all(clean) if row["segment"] == f"{0:020d}"]
    reader = CommitLogReader(LogOptions(str(clean), batch_rows=1), ALL)
    batches = iter(reader.read(reader.partitions()[0]))
    rows = rows_in(next(batches))
    os.unlink(clean / "commitlog" / f"{0:020d}")
    rows += [row for batch in batches for row in rows_in(batch)]
    assert rows == expected


def test_stop_reads_all_in_one_task_up_to_the_damage(clean: Path) -> None:
    expected = read_all(clean)
    file = clean / "commitlog" / f"{131072:020d}"
    data = bytearray(file.read_bytes())
    behind = [row for row in expected if row["segment"] == file.name]
    data[behind[4]["position"] + 90] ^= 1
    file.write_bytes(data)
    options = LogOptions(str(clean), on_corruption="stop", max_partition_bytes=4096)
    assert len(CommitLogReader(options, ALL).partitions()) == 1
    rows = read_all(clean, onCorruption="stop", maxBytesPerPartition=4096)
    assert rows == expected[: expected.index(behind[4])]
    skipped = read_all(clean, onCorruption="skip", maxBytesPerPartition=4096)
    assert skipped == [row for row in expected if row != behind[4]]


def test_columns_are_a_projection(clean: Path) -> None:
    expected = read_all(clean)
    for columns in (("queueOffset", "topic"), ("segment",), ("crcOk", "body")):
        assert read_all(clean, columns) == [{n: row[n] for n in columns} for row in expected]


def test_our_own_store_while_its_broker_writes(tmp_path: Path) -> None:
    """Opened, so locked and marked unclean, with a file made ahead and zeros behind the end."""
    store = DiskStore(tmp_path, SIZES)
    store.start()
    stored: list[Fields] = []
    for number, command in enumerate(sample_commands(30)):
        stored += store.run(command)
        if number % 40 == 0:
            rows = read_all(tmp_path, ("physicalOffset",))
            assert [row["physicalOffset"] for row in rows] == placed(stored)
    expected = expected_rows(tmp_path)
    assert placed(stored) == [row["physicalOffset"] for row in expected]
    assert read_all(tmp_path) == expected
    store.stop()
    assert read_all(tmp_path, maxBytesPerPartition=10_000) == expected


def placed(stored: list[Fields]) -> list[int]:
    return sorted(message["physical_offset"] for message in stored)


def test_what_the_format_does_not_do() -> None:
    source = CommitLogSource({"path": "/data"})
    assert source.name() == "skylarkmq-commitlog"
    assert source.schema() == ddl(LOG_COLUMNS)
    schema = StructType([])
    with pytest.raises(NotSupported, match=r"readStream\.format\('skylarkmq'\)"):
        source.streamReader(schema)
    for write in (source.writer, source.streamWriter):
        with pytest.raises(NotSupported, match="only reads"):
            write(schema, False)
