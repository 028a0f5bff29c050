"""Writes lines of the product wrong, one at a time, and tells which of them no test sees.

    python -m tests.mutants [--jobs 2] [--limit 120] [--only TEXT ...] [--json FILE]

The lines are picked by hand; each names the test files that should see it (`in_store.py` and its
neighbours). All runs in copies below a temporary folder. Ends with 1 when less than 85 % were seen,
or when one survived that nobody explained.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.mutants import in_broker, in_client, in_protocol, in_store, in_tools
from tests.mutants.mutant import MutantError
from tests.mutants.trial import Plan, report_of, run, share_of, table_of

ROOT: Final = Path(__file__).resolve().parents[2]
MUTANTS: Final = (
    *in_protocol.MUTANTS,
    *in_store.MUTANTS,
    *in_broker.MUTANTS,
    *in_client.MUTANTS,
    *in_tools.MUTANTS,
)
SHARE_MIN: Final = 0.85


def main() -> int:
    options = _options()
    chosen = [
        each for each in MUTANTS if not options.only or any(t in each.name for t in options.only)
    ]
    if not chosen:
        print("no mutant has that in its name", file=sys.stderr)
        return 2
    plan = Plan(ROOT, chosen, options.jobs, options.limit)
    with tempfile.TemporaryDirectory(prefix="skylarkmq-mutants-") as folder:
        try:
            results = run(plan, Path(folder), lambda line: print(line, flush=True))
        except MutantError as error:
            print(error, file=sys.stderr)
            return 2
    print("\n".join(table_of(results)))
    if options.json is not None:
        options.json.write_text(json.dumps(report_of(results), indent=1) + "\n", encoding="utf-8")
    is_enough = bool(options.only) or share_of(results) >= SHARE_MIN
    return 0 if is_enough and not any(result.is_unexplained for result in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=2, help="side by side (2)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each (120)")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="those whose file or change has it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
