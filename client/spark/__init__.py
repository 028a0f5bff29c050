"""A topic as a Spark stream, and what goes with it, on PySpark's Python Data Source API.

    format("skylarkmq")             source and sink, streaming and batch
    format("skylarkmq-commitlog")   the log files of a stopped store, without a broker

Needs the extra `spark`. Importing this package loads neither pyspark nor pyarrow.
"""
