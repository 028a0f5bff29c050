"""What a maintainer runs before a release: every part of the suite, one after the other.

    make nightly                         everything, about five hours
    make nightly ARGS='--only test faults --folder /tmp/night'

Each part is a target of the Makefile with a limit and a log of its own. A part that fails, hangs or
lacks its tools does not stop the others. The end is one table, with what was skipped and why below.
Exits with 1 when a part failed or was ended at its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LIMIT_CPU_S: Final = 2  # of a test without the marker `slow`
LIMITS_CODE: Final = 124  # as `timeout` says it
MAKES_WORD: Final = "make: *** "
OUTER_MAKE: Final = frozenset({"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"})
SKIPPED: Final = re.compile(r"^SKIPPED \[(\d+)\] (?:\S+: )?(.+)$", re.MULTILINE)
CLOSING: Final = re.compile(r"^=*\s*((?:\d+ \w+,? ?)+ in [\d.]+s.*?)\s*=*$", re.MULTILINE)
REASONS_SHOWN: Final = 12


@dataclass(frozen=True)
class Part:
    """One target of the Makefile, with what it is given and the minutes it may take."""

    name: str
    minutes: float
    args: str = ""
    target: str = ""  # of the Makefile, with its variables; the name when it is empty
    skip_code: int = 0  # with which the command says that this machine lacks what it needs

    def command(self) -> list[str]:
        words = ["make", "--no-print-directory", *(self.target or self.name).split()]
        return [*words, f"ARGS={self.args}"] if self.args else words


PARTS: Final = (
    Part("check", 15),
    Part("test", 30, f"-rs --cpu-limit {LIMIT_CPU_S}"),
    Part("test-slow", 40, "-rs"),
    Part("test-pure", 60, "-rs", "test-pure TWINS=tests"),
    Part("test-spark", 60, "-rs"),
    Part("test-busy", 60, "-rs"),
    Part("faults", 180),
    Part("failover", 60, skip_code=2),
    Part("interop", 120),
    Part("image-test", 20),
    Part("spark-oldest", 60, "-rs"),
    Part("mutants", 150),
    Part("release", 60, "--rehearse"),
    Part("docs", 20),
)


@dataclass
class Outcome:
    """How a part ended. `words` is its last line that says something."""

    part: Part
    code: int
    wall_s: float
    cpu_s: float
    words: str
    skipped: Counter[str] = field(default_factory=Counter[str])

    @property
    def is_good(self) -> bool:
        return self.code in (0, self.part.skip_code)

    @property
    def state(self) -> str:
        if self.code == LIMITS_CODE:
            return "too long"
        if self.code:
            return "skipped" if self.is_good else "failed"
        return "passed"


def run(part: Part, folder: Path, *, tree: Path) -> Outcome:
    """Run a part and end all of it at its limit. Blocks."""
    log = folder / f"{part.name}.log"
    started, spent = time.monotonic(), _children_s()
    with log.open("wb") as out:
        process = subprocess.Popen(
            part.command(), cwd=tree, env=_own_environment(), stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(60 * part.minutes)
        except subprocess.TimeoutExpired:
            code = LIMITS_CODE
        finally:
            _end(process)
    text = log.read_text("utf-8", errors="replace")
    skipped: Counter[str] = Counter()
    for count, reason in SKIPPED.findall(text):
        skipped[reason] += int(count)
    wall_s, cpu_s = time.monotonic() - started, _children_s() - spent
    return Outcome(part, _own_code(code, text), wall_s, cpu_s, _last_words(text), skipped)


def _own_environment() -> dict[str, str]:
    """Return the environment without what the outer make hands down: its ARGS are not a part's."""
    return {name: value for name, value in os.environ.items() if name not in OUTER_MAKE}


def _own_code(code: int, text: str) -> int:
    """Return what the command itself ended with: make answers 2 to any failure."""
    told = re.findall(r"^make: \*\*\* \[.*\] Error (\d+)$", text, re.MULTILINE)
    return int(told[-1]) if code and told else code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the part has started: its session is a process group of its own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)


def _last_words(text: str) -> str:
    closing = CLOSING.findall(text)
    if closing:
        return closing[-1]
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and MAKES_WORD not in line]
    return said[-1][:80] if said else ""


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table, and below it what was skipped and why."""
    rows = [("part", "", "min", "CPU s", "")]
    rows += [
        (each.part.name, each.state, f"{each.wall_s / 60:.1f}", f"{each.cpu_s:.0f}", each.words)
        for each in outcomes
    ]
    lines = [f"{a:13} {b:8} {c:>6} {d:>6}  {e}".rstrip() for a, b, c, d, e in rows]
    skipped: Counter[tuple[str, str]] = Counter()
    for each in outcomes:
        for reason, count in each.skipped.items():
            skipped[each.part.name, reason] += count
    for (name, reason), count in skipped.most_common(REASONS_SHOWN):
        lines.append(f"skipped in {name}: {count} x {reason}")
    if len(skipped) > REASONS_SHOWN:
        lines.append(f"and {len(skipped) - REASONS_SHOWN} more reasons in the logs")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, *, tree: Path | None = None) -> int:
    """Run the parts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make nightly", description=__doc__.split("\n")[0])
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART")
    parser.add_argument("--folder", type=Path, default=Path("var/nightly"), help="for the logs")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for part in PARTS:
        if part.name in options.only:
            log = options.folder / f"{part.name}.log"
            print(f"{part.name}: at most {part.minutes:g} min, {log}", flush=True)
            outcomes.append(run(part, options.folder, tree=tree or Path.cwd()))
            print(f"  {outcomes[-1].state}: {outcomes[-1].words}", flush=True)
    print("\n" + table(outcomes), flush=True)
    return 0 if all(each.is_good for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
