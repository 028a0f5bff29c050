"""What is beside the messages, in the log: for replicas that copy nothing but the log.

`metadata_log.py` writes and reads it, `metadata_record.py` has the records, `metadata_tables.py`
the tables that go over, and those that do not.
"""
