"""Jobs to run with `skylarkmq-spark-submit` or `python -m`; each has `--help`."""
