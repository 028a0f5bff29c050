"""Programs to read and to run, not part of the wheel.

`make demo`, `make pipeline-demo`, `make places-demo`.
"""
