# pyright: reportUnknownMemberType=false
"""`format("skylarkmq")`: a topic to read from and to write to, streaming and batch.

Spark makes the object in a short-lived Python process at the driver and pickles it from there, so
it holds the options alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from skylarkmq.spark.option_reading import refuse_catalog_tables
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.schema import ddl, struct_projection

if TYPE_CHECKING:
    from skylarkmq.spark.reading.readers import BatchReader, StreamReader
    from skylarkmq.spark.sink import BatchSink, StreamSink


class SkylarkSource(DataSource):
    """The data source; its options stand in options.py, sink_options.py and settings.py."""

    def __init__(self, options: dict[str, str]) -> None:
        """Take the options; refuse a table of Spark's catalog (OptionError)."""
        super().__init__(options)
        refuse_catalog_tables(options, self.name())

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "skylarkmq"

    def schema(self) -> str:
        """Return all columns; `.schema("body binary, tags string")` asks for some of them."""
        return ddl()

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch."""
        from skylarkmq.spark.reading.readers import BatchReader

        options = SourceOptions.from_options(self.options, streaming=False)
        return BatchReader(options, struct_projection(schema.fields))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream."""
        from skylarkmq.spark.reading.readers import StreamReader

        options = SourceOptions.from_options(self.options, streaming=True)
        return StreamReader(options, struct_projection(schema.fields))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return the writer of a batch."""
        from skylarkmq.spark.sink import batch_sink

        return batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Return the writer of a stream."""
        from skylarkmq.spark.sink import stream_sink

        return stream_sink(self.options, schema, overwrite)
