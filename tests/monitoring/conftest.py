"""One scrape of everything, for all tests of a process."""

from __future__ import annotations

import asyncio

import pytest

from tests.monitoring.rig import BROKERS, Series, loaded_site

FIRING = {"alertname": "", "alertstate": "firing", "severity": "", "cluster": "", "broker": ""}


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[Series]:
    """What Prometheus has of a loaded site, with the series that it makes of rules."""

    async def scraped() -> list[Series]:
        async with loaded_site(tmp_path_factory.mktemp("site")) as site:
            return await site.series()

    alert = Series(
        "ALERTS", {**FIRING, "alertname": "SkylarkMQ", "job": BROKERS, "instance": "host:5557"}
    )
    return [*asyncio.run(scraped()), alert]
