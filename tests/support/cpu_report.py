"""What a run costs: CPU seconds of its tests by folder and of its collection, and who took most.

A test's CPU is that of its process and of the children it waited for, from the first fixture to the
last teardown, so a fixture of a module counts for the module's first test. CPU, since time on a
clock says how busy the machine is. The report is a list for whoever reads it; with `--cpu-limit S`,
as in `make nightly`, a test without the marker `slow` that takes more than S makes the run fail.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Generator
from typing import Any, Final

import pytest

SLOW_CPU_S: Final = 0.5  # above it a test has the marker `slow`, or is named at the end of a run
MOST_NAMED: Final = 20
WORKERS_KEY: Final = "cpu_report"


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def peak_mib() -> int:
    """Return the most memory that this process had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class CpuReport:
    """Measures in the process that runs tests, adds up and prints in the one that was called."""

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        self._config = config
        self._limit_s = limit_s
        self._spent: dict[str, tuple[float, bool]] = {}  # test -> CPU seconds, whether marked slow
        self._collected_s = 0.0
        self._processes: list[tuple[float, int]] = []  # seconds of its collection, peak MiB
        self._over: list[str] = []

    # In the process that runs tests.

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        before = cpu_s()
        try:
            return (yield)
        finally:
            self._collected_s = cpu_s() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[STARTED] = cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            extra: Any = report  # its further fields travel from a worker to the caller
            extra.cpu_s = cpu_s() - item.stash[STARTED]
            extra.is_slow = item.get_closest_marker("slow") is not None
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        figures = (self._collected_s, peak_mib())
        worker = getattr(self._config, "workeroutput", None)
        if worker is not None:
            worker[WORKERS_KEY] = figures
        elif not self._processes:  # no worker told its own
            self._processes.append(figures)
        if worker is None and self._limit_s:
            self._over = [
                f"{test}: {spent:.1f} s"
                for test, (spent, is_slow) in self._spent.items()
                if spent > self._limit_s and not is_slow
            ]
            if self._over and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    # In the process that was called.

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        figures = getattr(node, "workeroutput", {}).get(WORKERS_KEY)
        if figures:
            self._processes.append(tuple(figures))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        extra: Any = report
        if report.when == "teardown" and hasattr(report, "cpu_s"):
            self._spent[report.nodeid] = extra.cpu_s, extra.is_slow

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._spent:
            return
        write = terminalreporter.write_line
        folders: dict[str, float] = defaultdict(float)
        for test, (spent, _) in self._spent.items():
            folders["/".join(test.split("::")[0].split("/")[:2])] += spent
        tests_s, collected_s = sum(folders.values()), sum(s for s, _ in self._processes)
        terminalreporter.section("CPU")
        write(
            f"{tests_s + collected_s:.0f} CPU s: {tests_s:.0f} of {len(self._spent)} tests,"
            f" {collected_s:.0f} of collecting them in {len(self._processes)} processes;"
            f" most memory of a process {max(mib for _, mib in self._processes)} MiB"
        )
        largest = sorted(folders.items(), key=lambda row: -row[1])
        write(", ".join(f"{folder} {spent:.1f}" for folder, spent in largest if spent >= 0.5))
        above = sorted(
            (
                (spent, test)
                for test, (spent, is_slow) in self._spent.items()
                if spent > SLOW_CPU_S and not is_slow
            ),
            reverse=True,
        )
        if above:
            write(f"{len(above)} tests took more than {SLOW_CPU_S} CPU s and are not marked slow:")
        for spent, test in above[:MOST_NAMED]:
            write(f"  {spent:5.1f} {test}")
        if len(above) > MOST_NAMED:
            write(f"  and {len(above) - MOST_NAMED} more")
        for line in self._over:
            write(f"ERROR above the limit of {self._limit_s} CPU s: {line}")


STARTED: Final = pytest.StashKey[float]()
