"""An archive: the messages of topics in one Delta table, each exactly once.

`table` is the table with its commits, `state` what they say, `delta_log` how one follows another,
`durability` what a power cut may do. `writer` writes a task's files, `sink` brings a batch of Spark
to it. `removal` expires and erases. `spans` says which offsets are meant. The job `jobs/archive`
runs it, `archive_table` reads it.
"""
