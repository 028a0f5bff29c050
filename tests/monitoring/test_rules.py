"""The alerts: whole, about series that a loaded site has, each with its section and its case."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from skylarkmq.spark.progress import ProgressMetrics
from tests.architecture.test_documents import anchors
from tests.monitoring.promql import Checker, promql, selectors
from tests.monitoring.rig import BROKERS, SPARK, Series, page_of
from tests.support.live_broker import live_broker

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
PAGE = ROOT / "docs" / "operations" / "incidents.md"
MONITORING = PAGE.with_name("monitoring.md").read_text("utf-8")
GROUPS = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
ALERTS: dict[str, Any] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
CASES = yaml.safe_load((Path(__file__).parent / "alerts.yml").read_text("utf-8"))
LABEL = re.compile(r"\$labels\.(\w+)")
SHELL = re.compile(r"^    (curl .+)$", re.MULTILINE)

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_resolves_to_series_of_a_loaded_site(name: str, series: list[Series]) -> None:
    checker = Checker(series)
    assert checker.check(ALERTS[name]["expr"]) == []
    has = checker.labels(promql.parse(ALERTS[name]["expr"]))
    shown = {
        label for text in ALERTS[name]["annotations"].values() for label in LABEL.findall(text)
    }
    assert shown <= has, f"{shown - has} would be empty in the texts; it has {sorted(has)}"


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_whole(name: str) -> None:
    rule = ALERTS[name]
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    texts = rule["annotations"]
    assert texts.keys() == {"summary", "description", "runbook_url"}
    assert all(texts[each].endswith((".", "!")) for each in ("summary", "description"))
    page, _, anchor = texts["runbook_url"].partition("#")
    assert (ROOT / page, anchor) == (PAGE, name.lower())


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    text = PAGE.read_text("utf-8")
    assert {each for each in anchors(text) if each.startswith("skylarkmq")} == {
        name.lower() for name in ALERTS
    }
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == [*ALERTS], "in the order of the rules"
    assert f"There are {len(ALERTS)} alerts." in MONITORING


def test_each_alert_is_once_there_and_has_a_case() -> None:
    names = re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))
    assert names == [*ALERTS] == [*CASES]
    for name, case in CASES.items():
        asked = {each.name for each in selectors(promql.parse(ALERTS[name]["expr"]))}
        given = {each.partition("{")[0] for each in case["series"]}
        assert given == asked, name


def test_jobs_are_those_that_the_scrape_configuration_names() -> None:
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text("utf-8"))
    assert {each["job_name"] for each in config["scrape_configs"]} == {BROKERS, SPARK}
    assert config["rule_files"] == [RULES.name]
    asked = set(re.findall(r'job="([\w-]+)"', RULES.read_text("utf-8")))
    assert asked == {BROKERS, SPARK}
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text("utf-8"))
    assert "./prometheus:/etc/prometheus:ro" in compose["services"]["prometheus"]["volumes"]


def test_every_family_of_spark_is_on_its_board(series: list[Series]) -> None:
    board = (ROOT / "deploy" / "grafana" / "boards" / "skylarkmq-spark.json").read_text("utf-8")
    families = {each.name for each in ProgressMetrics().collect()}
    families |= {each.name for each in series if each.name.startswith("skylarkmq_spark_")}
    assert len(families) > 8
    assert not [name for name in families if name not in board]


async def test_the_commands_of_the_page_run_and_find_what_they_look_for(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    table = re.findall(r"`(curl [^`]+)`", PAGE.read_text("utf-8"))
    lines = dict.fromkeys([*SHELL.findall(PAGE.read_text("utf-8")), *table])
    assert len(lines) > 8
    role_alone = ("replica_", "master_", "nameserver_registered", "differing", "consumer_lag")
    async with live_broker(tmp_path) as broker:
        for line in lines:
            command = line.replace("\\|", "|").replace("127.0.0.1:5557", page_of(broker))
            child = await asyncio.create_subprocess_shell(
                command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            output, errors = await child.communicate()
            assert output or any(word in line for word in role_alone), (line, errors.decode())
