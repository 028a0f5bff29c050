"""Tries each mutant in a copy of the project, some side by side, and tells what became of it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from tests.mutants.mutant import Mutant, MutantError, check
from tests.mutants.work_tree import PYTEST, WorkTree

Fate = Literal["caught", "survived", "timeout"]
FATES: Final[tuple[Fate, ...]] = ("caught", "survived", "timeout")
GREEN: Final = 0
NO_VERDICT: Final = frozenset({3, 4, 5})
"""Of pytest: an error of its own, wrong usage, no test found."""
PACKAGE: Final = "skylarkmq"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant. One that makes its tests hang counts as seen, too."""

    mutant: Mutant
    fate: Fate
    seconds: float

    @property
    def is_seen(self) -> bool:
        return self.fate != "survived"

    @property
    def is_unexplained(self) -> bool:
        return not self.is_seen and not self.mutant.accepted


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, where, and how."""

    root: Path
    mutants: Sequence[Mutant]
    jobs: int
    limit_s: float
    command: Sequence[str] = PYTEST
    package: str = PACKAGE


def run(plan: Plan, folder: Path, tell: Callable[[str], None]) -> list[Result]:
    """Try all mutants in copies below `folder`, in the order of the table.

    Raises:
        MutantError: the table doesn't fit the code, or the tests fail without a mutant.
    """
    check(plan.root, plan.mutants)
    trees = [WorkTree(plan.root, folder / str(job), plan.command) for job in range(plan.jobs)]
    files = sorted({mutant.file for mutant in plan.mutants})
    with ThreadPoolExecutor(plan.jobs) as pool, contextlib.ExitStack() as endings:
        for tree in trees:
            endings.callback(tree.end)
            tree.check_imports(plan.package, files)
        _see_green(plan, trees, pool, tell)
        free = SimpleQueue[WorkTree]()
        for tree in trees:
            free.put(tree)

        def one(numbered: tuple[int, Mutant]) -> Result:
            number, mutant = numbered
            tree = free.get()
            try:
                result = _tried(mutant, tree, plan.limit_s)
            finally:
                free.put(tree)
            shown = f"{number:4}/{len(plan.mutants)} {result.fate:8} {result.seconds:5.1f} s"
            tell(f"{shown}  {mutant.name}")
            return result

        return list(pool.map(one, enumerate(plan.mutants, 1)))


def _see_green(
    plan: Plan, trees: list[WorkTree], pool: ThreadPoolExecutor, tell: Callable[[str], None]
) -> None:
    """Run all test files once as they are: a mutant proves nothing in a suite that fails."""
    tests = sorted({name for mutant in plan.mutants for name in mutant.test_files()})
    tell(f"{len(plan.mutants)} mutants; first their {len(tests)} test files without them")

    def part(number: int) -> None:
        mine = tests[number :: len(trees)]
        if mine and trees[number].run(mine) != GREEN:
            raise MutantError(f"tests fail without a mutant:\n{trees[number].said()}")

    list(pool.map(part, range(len(trees))))


def _tried(mutant: Mutant, tree: WorkTree, limit_s: float) -> Result:
    started_s = time.monotonic()
    with tree.mutated(mutant):
        code = tree.run(mutant.test_files(), limit_s)
    if code in NO_VERDICT:
        raise MutantError(f"{mutant.name}\n    no test gave a verdict:\n{tree.said()}")
    fate: Fate = "timeout" if code is None else "survived" if code == GREEN else "caught"
    return Result(mutant, fate, time.monotonic() - started_s)


def share_of(results: Sequence[Result]) -> float:
    """Return how many of all were seen, 0 to 1."""
    return sum(result.is_seen for result in results) / len(results) if results else 1.0


def table_of(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table by room, and the survivors below it."""
    rooms = Counter((result.mutant.room, result.fate) for result in results)
    names = sorted({result.mutant.room for result in results})
    lines = [f"{'room':14}{''.join(f'{fate:>10}' for fate in FATES)}{'seen':>10}"]
    for room in [*names, "all"]:
        counts = [sum(rooms[name, f] for name in names if room in (name, "all")) for f in FATES]
        seen = 1 - counts[FATES.index("survived")] / max(1, sum(counts))
        lines.append(f"{room:14}{''.join(f'{count:10}' for count in counts)}{seen:10.0%}")
    for result in results:
        if not result.is_seen:
            lines += [f"survived: {result.mutant.name}", f"    {_why(result.mutant)}"]
    return lines


def report_of(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the results for a file of JSON."""
    return [
        {**asdict(result.mutant), "fate": result.fate, "seconds": round(result.seconds, 1)}
        for result in results
    ]


def _why(mutant: Mutant) -> str:
    return mutant.accepted or "NOT EXPLAINED: write a test that sees it, or why none should"
