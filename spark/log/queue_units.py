# pyright: reportUnknownMemberType=false
"""`format("skylarkmq-queue-units")`: the consume queues of a store as a table, for the job `audit`.

    topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeSize int

A row is a unit: where in the log the message of a queue offset lies, and how long its record is.
Planned at the driver, read on executors, which see the store's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylarkmq.spark.commitlog import QueueFile, list_queue_files, queue_units
from skylarkmq.spark.log.log_options import local_path

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
