"""Breaks three replicas for as long as you like, and says whether anything was lost.

    python -m tests.failover [--minutes 30] [--seed N] [--loopback] [--lease 3] [--fault KIND ...]
                             [--folder DIR] [--json FILE]

Network namespaces, volumes of their own and slow disks need root; `--loopback` does without them.
Ends with 1 when a rule was violated, and keeps the folder then. Ctrl-C ends everything, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.failover.cluster import HOSTS
from tests.failover.faults import FAULTS
from tests.failover.network import Loopback, Namespaces, why_no_namespaces
from tests.failover.run import Plan, Result, Run

GRACE_S: Final = 900.0
"""Beyond the minutes that were asked for: start, the last fault, reading and comparing."""


def main() -> int:
    options = _options()
    if not options.loopback and (why := why_no_namespaces()):
        print(f"{why}; --loopback does without", file=sys.stderr)
        return 2
    folder = options.folder or Path(tempfile.mkdtemp(prefix="skylarkmq-failover-"))
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=folder / "clients.log")  # what they say to each fault
    network = Loopback(HOSTS) if options.loopback else Namespaces(HOSTS)
    plan = Plan(options.seed, options.minutes, tuple(options.fault))
    print(f"seed {plan.seed}, {plan.minutes:g} minutes, everything in {folder}", flush=True)
    try:
        result = asyncio.run(_bounded(Run(folder, network, plan, _say, options.lease), plan))
    except (TimeoutError, asyncio.CancelledError, KeyboardInterrupt) as error:
        print(f"ended before its time: {type(error).__name__}", file=sys.stderr)
        return 1
    _report(result, options.json)
    if result.is_good and options.folder is None:
        shutil.rmtree(folder)
    return 0 if result.is_good else 1


async def _bounded(run: Run, plan: Plan) -> Result:
    """Let it run for its time and no longer; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(60 * plan.minutes + GRACE_S):
        return await run.run()


def _say(text: str) -> None:
    print(text, flush=True)


def _report(result: Result, path: Path | None) -> None:
    text = json.dumps(result.summary(), indent=2)
    print(text)
    if path is not None:
        path.write_text(text + "\n")
    print("nothing was lost" if result.is_good else f"VIOLATIONS\n{result.verdict}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--lease", type=int, default=3, help="controllerLeaseTtl, s")
    parser.add_argument("--loopback", action="store_true", help="needs no root, cuts nothing")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
