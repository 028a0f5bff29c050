"""Jobs: archive, replay.

Each runs with `skylarkmq-spark-submit` or `python -m`, has `--help`, and can be killed anywhere and
started again. `common` and `running` have what they share: options, progress, exit codes.
"""
