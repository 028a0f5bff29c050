"""What is beside the messages, in the log: for replicas that copy nothing but the log.

`metadata_log.py` says what happens when, as follower and as master: `metadata_follower.py` reads,
`metadata_changes.py` and `metadata_snapshots.py` write, all over `metadata_queue.py`.
`metadata_record.py` has the records, `metadata_tables.py` the tables that go over, and those that
do not.
"""
