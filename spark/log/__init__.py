"""The log files of a stopped store as a table, without a broker.

`source` is the format `skylarkmq-commitlog`; tasks read segments of the log through
`store/stopped` and turn them into Arrow batches. Nothing here writes to the store.
"""
