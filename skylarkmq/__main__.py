"""`python -m skylarkmq`: the command, where its script is not on the path."""

from __future__ import annotations

from skylarkmq.cli import main

if __name__ == "__main__":
    main(prog_name="python -m skylarkmq")
