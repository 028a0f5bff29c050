"""A broker and a name server under inputs that are led by the lines they reach.

The corpus is kept in `tests/golden/hostile-corpus.txt`, a line of hex for each input. With
`SKYLARKMQ_KEEP_CORPUS=1` a run writes it anew, with what it found and without what reaches nothing
that those before do not.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.support.amounts import slow
from tests.support.coverage_guided import Guided
from tests.support.hostile_frames import hostile_items
from tests.support.hostile_requests import broker_requests, namesrv_requests, sound_frame
from tests.support.hostile_rig import HostileRig

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "golden" / "hostile-corpus.txt"
FOLDERS = [ROOT / "broker", ROOT / "protocol"]
SEED = int(os.environ.get("SKYLARKMQ_SEED", "1"))
ROUND = 100  # inputs between two songs of the canary


def _corpus() -> list[bytes]:
    return [bytes.fromhex(line) for line in CORPUS.read_text().split()]


def _keep(inputs: list[bytes]) -> None:
    CORPUS.write_text("".join(f"{data.hex()}\n" for data in inputs))


@pytest.mark.parametrize("count", [slow(200), pytest.param(14_000, marks=pytest.mark.fault)])
def test_inputs_led_by_coverage_break_nothing(count: int) -> None:
    rng = Random(SEED)
    shapes = [*broker_requests().items(), *namesrv_requests().items()]
    seeds = [sound_frame(code, shape) for code, shape in shapes]
    items = hostile_items(rng)
    with HostileRig() as rig:

        def run(data: bytes) -> None:
            rig.feed(data)
            rig.feed(data, namesrv=True)
            rig.check_defects()

        guided = Guided(run, FOLDERS, [*seeds, *_corpus()], rng)
        known = guided.step_count
        for _ in range(0, count, ROUND):
            for _, data in islice(items, ROUND // 5):
                guided.take(data)
            guided.explore(ROUND * 4 // 5)
            rig.check()
        assert known > 1500, "the corpus reaches the handlers"
        if os.environ.get("SKYLARKMQ_KEEP_CORPUS"):
            _keep([data for data in guided.corpus if data not in seeds])


def test_an_input_that_breaks_something_is_found() -> None:
    """A handler with a defect behind three checks, as nothing but guidance finds it."""

    def fragile(data: bytes) -> None:
        if data[:1] == b"b":
            if data[1:2] == b"u":
                if data[2:3] == b"g":
                    raise ZeroDivisionError
                return
            return

    guided = Guided(fragile, [Path(__file__).parent], [b"aaa"], Random(3))
    with pytest.raises(AssertionError, match="627567"):
        guided.explore(200_000)
