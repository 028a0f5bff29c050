"""The demo of typed data: its parts, and the whole of it on places of our own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import pyarrow as pa

from examples import places as demo
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import load
from tests.spark.conftest import QUICK
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S

COUNTRIES = ("FR", "DE", "ZZ")


def places(count: int) -> list[demo.Place]:
    return [
        {
            "geonameid": 1000 + number, "name": f"Ort {number}", "latitude": number / 100,
            "longitude": -1.5, "countrycode": COUNTRIES[number % 3], "population": number * 10,
            "timezone": "Europe/Paris", "admin1code": "03", "alternatenames": ["a", "Ö"],
        }
        for number in range(count)
    ]  # fmt: skip


def write_places(path: Path, count: int) -> Path:
    """A file as the package's own."""
    path.write_text(json.dumps({str(each["geonameid"]): each for each in places(count)}))
    return path


def test_only_the_first_places_of_a_file(tmp_path: Path) -> None:
    assert demo.load(write_places(tmp_path / "p.json", 5), 2) == places(2)


def test_a_country_has_its_places_and_their_inhabitants() -> None:
    assert demo.from_source(places(4)) == {"FR": (2, 30), "DE": (1, 10), "ZZ": (1, 20)}


def test_after_every_thousandth_place_comes_a_broken_one() -> None:
    messages = list(demo.messages_of(places(2_500)))
    assert len(messages) == 2_502
    assert [number for number, each in enumerate(messages) if each.tags == "broken"] == [1000, 2001]
    assert (messages[7].keys, messages[7].tags) == ("1007", "DE")


def test_the_schema_decodes_each_place_and_none_that_is_broken() -> None:
    [place] = places(1)
    bodies = [demo.to_json(place), *(demo.broken(place, nth) for nth in range(4))]
    decoded = BodyDecoder(load(str(demo.SCHEMA))).decode(pa.record_batch({"body": bodies}))
    assert decoded.value.to_pylist() == [place, None, None, None, None]
    first, *reasons = decoded.quarantine.to_pylist()
    assert first is None
    assert len(set(reasons)) == 4


def test_what_differs_is_named() -> None:
    outcome = demo.Outcome([])
    source, table = demo.from_source(places(3)), demo.from_source(places(2))
    outcome.compare(source, source, "archived")
    assert outcome.wrong == []
    outcome.compare(source, table, "archived")
    assert outcome.wrong == ["archived, ZZ: source Country(places=1, population=20), table None"]


@pytest.mark.spark
def test_a_small_world(tmp_path: Path) -> None:
    """The whole demo in processes of its own."""
    pytest.importorskip("polars")
    path = write_places(tmp_path / "places.json", 4_100)
    command = [sys.executable, "-m", "examples.places", "--places", str(path)]
    for name, value in QUICK.items():
        command += ["--conf", f"{name}={str(value).lower()}"]
    env = {**os.environ, "PYTHONPATH": make_worker_path(tmp_path / "workers")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=JVM_LIMIT_S, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("all equal")
    for name, figure in (
        ("messages published", "4,104"), ("archived, bodies as columns", "4,104"),
        ("countries counted by polars", "3"), ("bodies in quarantine", "4"),
        ("erased: Ort 4099", "1"),
    ):  # fmt: skip
        assert re.search(rf"^  {name} +{figure}\b", done.stdout, re.MULTILINE), name
