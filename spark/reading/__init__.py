"""The source: what a batch reads, and how a task reads it.

The driver plans ranges of queues (`planning`), tasks pull them (`ranges`, `readers`).
`source` in the folder above is the door that Spark knows. Offsets are Spark's; a group is written
back only where `write_back` is asked to.
"""
