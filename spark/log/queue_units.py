# pyright: reportUnknownMemberType=false
"""`format("skylarkmq-queue-units")`: the consume queues of a store as a table, for the job `audit`.

    topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeSize int

A row is a unit: where in the log the message of a queue offset lies, and how long its record is.
Planned at the driver, read on executors, which see the store's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylarkmq.common.errors import StoreError
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.spark.log.log_options import local_path
from skylarkmq.spark.log.source import LogNotFoundError
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, is_valid_unit
from skylarkmq.store.stopped.reader import StoppedStore

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "skylarkmq-queue-units"
DDL: Final = "topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeSize int"
PARTITIONS_MAX: Final = 64
ROWS: Final = 65_536
"""Units of one Arrow batch."""


class QueueUnitsSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return all columns; there is no other choice."""
        return DDL

    def reader(self, schema: StructType) -> QueueUnitsReader:
        """Return the reader."""
        return QueueUnitsReader(local_path(self.options["path"]))


class QueueUnitsReader(DataSourceReader):
    """Reads all queues. Picklable; holds no open file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        """Return files in turn, in a bounded number of parts."""
        files = list_queue_files(self._path)
        parts = [files[start::PARTITIONS_MAX] for start in range(min(PARTITIONS_MAX, len(files)))]
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the units of a part."""
        files: Sequence[QueueFile] = partition.value
        for file in files:
            yield from batches_of(file)


def batches_of(file: QueueFile) -> Iterator[pa.RecordBatch]:
    """Yield a file's units as Arrow batches."""
    import pyarrow as pa

    fields: list[tuple[str, pa.DataType]] = [  # as DDL has them
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("physicalOffset", pa.int64()),
        ("storeSize", pa.int32()),
    ]
    schema = pa.schema(fields)
    units = queue_units(file)
    while rows := list(islice(units, ROWS)):
        offsets, places, sizes = zip(*rows, strict=True)
        columns: dict[str, list[Any]] = {
            "topic": [file.topic] * len(rows),
            "queueId": [file.queue_id] * len(rows),
            "queueOffset": list(offsets),
            "physicalOffset": list(places),
            "storeSize": list(sizes),
        }
        yield pa.RecordBatch.from_pydict(columns, schema=schema)


class QueueFile(NamedTuple):
    """A file of a consume queue: what a broker finds the messages of a queue by."""

    topic: str
    queue_id: int
    path: str
    first_offset: int
    """The queue offset of its first unit."""


def list_queue_files(path: str) -> list[QueueFile]:
    """Return the files of all consume queues of a store, by queue, in order.

    Raises:
        LogNotFoundError: the path is not the root folder of a store.
    """
    try:
        store = StoppedStore(Path(path))
    except StoreError as error:
        raise LogNotFoundError(
            f"no store in {path}: {error}", hint="Name its root folder, storePathRootDir"
        ) from error
    return [
        QueueFile(queue.topic, queue.queue_id, str(file.path), file.start // UNIT_SIZE)
        for queue in store.queues.values()
        for file in queue.files
    ]


def queue_units(file: QueueFile) -> Iterator[tuple[int, int, int]]:
    """Yield queue offset, physical offset and record size of a file's units that are in use.

    A file that expired in the meantime has none.
    """
    try:
        opened = ReadOnlyFiles().open(Path(file.path))
    except FileNotFoundError:
        return
    try:
        whole = opened.size // UNIT_SIZE * UNIT_SIZE
        units = UNIT.iter_unpack(opened.pread(whole, 0))
        for number, (physical_offset, size, _) in enumerate(units, file.first_offset):
            if is_valid_unit(physical_offset, size) and size != PRE_BLANK_SIZE:
                yield number, physical_offset, size
    finally:
        opened.close()


def removed_ends(path: str) -> dict[str, int]:
    """Return topics that were deleted: their records below a physical offset are in no queue."""
    entries = StoppedStore(Path(path)).removed.entries
    return {topic: entry.end_offset for topic, entry in entries.items()}
