"""An archive: the messages of topics in Parquet files, each exactly once.

`sink` writes a batch's files, `commits` makes them part of the table at once or not at all, `spans`
says which offsets the table holds, `compaction` joins small files. The job `jobs/archive` runs it.
"""
