"""The boards: up to date, whole, alike, and about series that a loaded site has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.style import ROWS
from deploy.grafana.write import FOLDER, texts
from tests.monitoring.promql import Checker, plain, promql, selectors
from tests.monitoring.rig import Series

GRAFANA = FOLDER.parent
BOARDS = {path.name: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
UNITS = {value for value in vars(units).values() if isinstance(value, str)}
BY_JOB = ("process_", "ALERTS")
"""What no broker's name is on: taken where a chosen broker runs; alerts are few."""

pytestmark = pytest.mark.timing


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels of a board, rows aside."""
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with each of its queries."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_the_files_are_those_that_the_source_makes() -> None:
    made = texts()
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.json")} == made, (
        "write them anew: python -m deploy.grafana.write"
    )


@pytest.mark.parametrize("name", BOARDS)
def test_queries_resolve_to_series_of_a_loaded_site(name: str, series: list[Series]) -> None:
    checker = Checker(series)
    faults = [
        f"{title}: {fault}"
        for title, query in queries(BOARDS[name])
        for fault in checker.check(plain(query))
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("name", BOARDS)
def test_variables_ask_for_labels_that_exist(name: str, series: list[Series]) -> None:
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        inner, _, label = variable["query"].removeprefix("label_values(")[:-1].rpartition(", ")
        checker = Checker(series)
        assert checker.check(f"count by ({label}) ({plain(inner)})") == []
        assert (variable["includeAll"], variable["allValue"], variable["multi"]) == (
            True, ".*", True,
        )  # fmt: skip


@pytest.mark.parametrize("name", BOARDS)
def test_queries_are_about_what_was_chosen(name: str) -> None:
    board = BOARDS[name]
    chosen = {f'"${each["name"]}"' for each in board["templating"]["list"][1:3]}
    for title, query in queries(board):
        for variable in board["templating"]["list"]:
            query = query.replace(f'"${variable["name"]}"', f'"VAR{variable["name"]}"')
        for selector in selectors(promql.parse(query.replace("$__rate_interval", "5m"))):
            if str(selector.name).startswith(BY_JOB):
                continue
            values = {f'"{each.value}"' for each in selector.matchers.matchers}
            wanted = {each.replace("$", "VAR") for each in chosen}
            if selector.name == "skylarkmq_spark_queries_active":
                wanted = {'"VARdriver"'}
            assert wanted <= values, f"{title}: {selector}"


def test_each_board_is_one_that_grafana_can_tell_apart() -> None:
    uids = [board["uid"] for board in BOARDS.values()]
    assert [f"{uid}.json" for uid in uids] == [*BOARDS]
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS) == 7


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_whole(name: str) -> None:
    board = BOARDS[name]
    assert Dashboard.from_json(board).to_json().keys() == board.keys(), "the schema's fields"
    ids = [panel["id"] for panel in board["panels"]]
    assert ids == [*range(1, len(ids) + 1)]
    source, *others = board["templating"]["list"]
    assert (source["type"], source["name"]) == ("datasource", "datasource")
    assert source["query"] == "prometheus"
    assert all(each["datasource"]["uid"] == "${datasource}" for each in others)
    places: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & places, f"{panel['title']} overlaps"
        places |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_boards_look_alike(name: str) -> None:
    board = BOARDS[name]
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert rows == [row for row in ROWS if row in rows], "the order of ROWS"
    assert rows[0] == "Now" and rows[-1] == "Trouble"
    titles: list[str] = []
    row = ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        titles.append(f"{row}/{panel['title']}")
        assert panel["description"].endswith("."), panel["title"]
        assert panel["type"] in ("stat", "timeseries", "table")
        assert (panel["type"] == "stat") is (row == "Now")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["thresholds"]["steps"][0] == {"color": "green", "value": None}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert panel["type"] != "timeseries" or target["legendFormat"], panel["title"]
    assert len({*titles}) == len(titles)


def test_grafana_finds_boards_and_source_where_they_are_mounted() -> None:
    folder = GRAFANA / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "skylarkmq.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/boards"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert Path(provider["options"]["path"]).name == FOLDER.name
