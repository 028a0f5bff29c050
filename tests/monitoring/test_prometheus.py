"""Rules and boards as a real Prometheus takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from skylarkmq.client import Message, Producer
from skylarkmq.common.files import DiskFiles, DiskSpace
from tests.broker.test_power_cut import Volume
from tests.monitoring.prometheus_process import PROMETHEUS, RULES, PrometheusProcess, promtool
from tests.monitoring.promql import plain, promql, selectors
from tests.monitoring.rig import BROKERS, TOPIC, Site, loaded_site, page_of
from tests.monitoring.test_boards import BOARDS, queries
from tests.monitoring.test_rules import ALERTS
from tests.support.live_broker import live_broker
from tests.support.patience import until

pytestmark = pytest.mark.interop

CASES = yaml.safe_load((Path(__file__).parent / "alerts.yml").read_text("utf-8"))


def test_prometheus_takes_configuration_and_rules() -> None:
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_stops(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    fires = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": str(values)}
                    for series, values in case["series"].items()
                ],
                "promql_expr_test": [
                    {
                        "expr": fires,
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": value}],
                    }
                    for word, value in (("quiet", 0), ("fires", 1))
                    for minute in case[word]
                ],
            }
        ],
    }
    assert min(case["quiet"]) < min(case["fires"]) < max(case["quiet"]), "before, during, after"
    file = tmp_path / f"{alert}.yml"
    file.write_text(yaml.safe_dump(document))
    promtool("test", "rules", file)


@asynccontextmanager
async def watched(site: Site, folder: Path) -> AsyncIterator[PrometheusProcess]:
    """Run a Prometheus, and send messages meanwhile."""
    prometheus = await asyncio.to_thread(PrometheusProcess, folder, site.targets)
    sending = asyncio.create_task(_send(site))
    try:
        yield prometheus
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        prometheus.stop()


async def _send(site: Site) -> None:
    async with Producer(namesrv_addr=site.namesrv_addr) as producer:
        while True:  # until it is cancelled
            await producer.send(Message(TOPIC, b"more", tags="A"))
            await asyncio.sleep(0.02)


async def test_a_live_prometheus_answers_every_query(tmp_path: Path) -> None:
    async with loaded_site(tmp_path) as site, watched(site, tmp_path / "prometheus") as prometheus:

        async def answers(query: str) -> list[Any]:
            return await asyncio.to_thread(prometheus.query, query)

        every = [
            (f"{board}/{title}", plain(query, interval="10s"))
            for board, content in BOARDS.items()
            for title, query in queries(content)
        ]
        for alert, rule in ALERTS.items():
            expression = rule["expr"]
            await answers(expression)  # it is quiet, most likely
            for selector in selectors(promql.parse(expression)):
                every.append((alert, f"{selector.name}{_braced(selector)}"))
        for where, query in every:
            await until(lambda query=query: answers(query), f"series of {where}: {query}")

        rules = await asyncio.to_thread(prometheus.get, "rules")
        health = {
            rule["name"]: rule["health"] for group in rules["groups"] for rule in group["rules"]
        }
        assert set(health.values()) == {"ok"}, health
        assert len(health) == len(ALERTS)
        firing = await asyncio.to_thread(prometheus.firing)
        assert "SkylarkMQCertificateExpires" in firing, "the site's lasts for a day"
        assert not [text for each in firing.values() for text in each.values() if "<error" in text]


def _braced(selector: promql.VectorSelector) -> str:
    """Return the matchers of a selector, without its range and its offset."""
    words = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    written = (
        f'{each.name}{words[str(each.op).removeprefix("MatchOp.")]}"{each.value}"'
        for each in selector.matchers.matchers
    )
    return f"{{{','.join(written)}}}"


class SaidDisk(DiskFiles):
    """A real disk that is as full as the test says."""

    percent = 50

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(self.percent, 100 - self.percent)

    def fill(self) -> None:
        self.percent = 95

    def free(self) -> None:
        self.percent = 50

    def unmount(self) -> None:
        """There is nothing to unmount."""


class SmallVolume(DiskFiles):
    """A small file system that something else fills."""

    def __init__(self, folder: Path) -> None:
        self._volume = Volume(folder)
        self._volume.make()
        self.root = self._volume.root
        self._other = self.root / "other"

    def fill(self) -> None:
        space = self.space(self.root)
        with self._other.open("wb") as file:
            file.write(bytes(int(0.94 * (space.used + space.free)) - space.used))

    def free(self) -> None:
        self._other.unlink()

    def unmount(self) -> None:
        self._volume.unmount()


@pytest.mark.parametrize(
    "is_real", [False, pytest.param(True, marks=pytest.mark.fault_root)], ids=["said", "filled"]
)
async def test_an_alert_fires_when_the_disk_fills_and_stops_when_it_is_freed(
    tmp_path: Path, is_real: bool
) -> None:
    disk = SmallVolume(tmp_path) if is_real else SaidDisk()
    root = (disk.root if isinstance(disk, SmallVolume) else tmp_path) / "store"
    try:
        async with live_broker(root, files=disk, clean_resource_interval=100) as broker:
            targets = {BROKERS: [page_of(broker)]}
            prometheus = await asyncio.to_thread(PrometheusProcess, tmp_path / "p", targets)
            try:
                await _fires_and_stops(prometheus, disk)
            finally:
                prometheus.stop()
    finally:
        disk.unmount()


async def _fires_and_stops(prometheus: PrometheusProcess, disk: SaidDisk | SmallVolume) -> None:
    async def fires() -> bool:
        return "SkylarkMQDiskFull" in await asyncio.to_thread(prometheus.firing)

    async def is_known() -> bool:
        return bool(await asyncio.to_thread(prometheus.query, "skylarkmq_store_disk_used_ratio"))

    async def is_quiet() -> bool:
        return not await fires()

    await until(is_known, "a scrape")
    assert await is_quiet()
    disk.fill()
    await until(fires, "the alert")
    summary = (await asyncio.to_thread(prometheus.firing))["SkylarkMQDiskFull"]["summary"]
    assert "broker-a" in summary and "takes no messages" in summary
    disk.free()
    await until(is_quiet, "its end")
