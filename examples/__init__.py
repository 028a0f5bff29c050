"""Programs to read and to run: `make demo`, `make pipeline-demo`. Not part of the wheel."""
