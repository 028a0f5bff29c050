"""The connector's benchmark: its arithmetic is right. Nothing here starts a JVM."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.bench.spark import Road, measure, show
from tests.bench.spark_roads import Timed, cpu_of_tree, timed


def road(name: str, seconds: list[float], *, in_spark: bool = True) -> Road:
    rounds = [Timed(1000, one, 0.002) for one in seconds]
    return Road(name, lambda: 1000, in_spark, rounds)


FIXED = Timed(1, 0.5, 0.001, 0.25)


def test_what_a_job_costs_anyway_is_taken_off_sparks_roads() -> None:
    seconds = [2.5, 1.5, 9.0]
    source = road("source", seconds).net(FIXED)
    assert (source.rate, source.a_row_us(source.cpu_s)) == (500, 1.0)
    assert source.jvm_cpu_s == 0.0
    assert road("plain", seconds, in_spark=False).net(FIXED).rate == 400


def test_roads_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return 10

    roads = [Road(name, lambda name=name: run(name)) for name in ("a", "b")]  # type: ignore[misc]
    assert measure(roads, lambda: run("few"), 2).rows == 10
    assert order == ["a", "b", "few"] * 3
    assert [len(one.rounds) for one in roads] == [2, 2]


def test_report_has_the_ratios_beside_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    roads = [
        road("plain", [1.0], in_spark=False),
        road("source", [1.75]),
        road("tuples", [3.0]),
        road("log", [1.0]),
        road("sink", [1.5]),
    ]
    found = show(roads, FIXED, 330.0, 1024)
    text = capsys.readouterr().out
    assert "source: 1,000,000 messages/s a core, target >= 200,000" in text
    assert "source / tuples: 1.00" in text
    assert "sink: 1,000,000 messages/s a core, target >= 150,000" in text
    assert "commit-log reader: 1024 MB/s a core" in text
    assert "a job before it reads: 500 ms; a trigger: 330 ms" in text
    assert found["roads"]["source"]["messages_per_s"] == 800
    assert found["roads"]["source"]["of_plain"] == 2.0


def test_cpu_time_of_children_counts() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\n"
    command = [sys.executable, "-c", parent + "print(flush=True)\nsys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # its own child has ended by now
        python_s, jvm_s = cpu_of_tree(child.pid)
        assert cpu_of_tree(child.pid, but=child.pid) == (0.0, 0.0)
        child.communicate()
    assert python_s >= 0.15
    assert jvm_s == 0.0


def test_a_road_is_timed_by_its_rows() -> None:
    one = timed(lambda: 7)
    assert (one.rows, one.seconds >= 0, one.cpu_s >= 0) == (7, True, True)
