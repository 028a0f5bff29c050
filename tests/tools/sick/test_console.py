"""Pages of the console where one broker of three is sick: the others are shown, it is named."""

from __future__ import annotations

import pytest

from skylarkmq.client.admin import Admin
from tests.tools.console.support import console, words
from tests.tools.sick.conftest import SICK, SICKNESSES, WELL, Cluster

pytestmark = pytest.mark.timing

PAGES = {
    "/": WELL,
    "/topics": ("orders",),
    "/topics/orders": WELL,
    "/groups": ("billing",),
    "/groups/billing": WELL,
    "/clients": ("Consumers 0",),
    "/dead-letters": ("billing",),
    "/dead-letters/billing": ("orders",),
    "/messages?topic=orders": WELL,
    "/pending": ("broker-a", "broker-b", "in 5 h"),
    "/search?q=ord": ("Topics orders",),
    "/accounts": WELL,
}
"""Pages, and what they can show of the brokers that are well."""
SHOWN = ("/topics", "/dead-letters")
"""What needs no broker: the name server knows it."""


async def page(cluster: Cluster, path: str) -> str:
    """Return what a page says that is there."""
    async with console(cluster.namesrv, new_client=cluster.client) as browser:
        return words(await browser.page(path)).partition("Times are UTC")[0]


@pytest.mark.parametrize("sickness", ["none"])
@pytest.mark.parametrize(("path", "shown"), PAGES.items(), ids=PAGES.keys())
async def test_where_all_are_well_all_is_shown(
    cluster: Cluster, path: str, shown: tuple[str, ...]
) -> None:
    text = await page(cluster, path)
    assert all(each in text for each in shown), text


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize(("path", "shown"), PAGES.items(), ids=PAGES.keys())
async def test_what_is_known_of_the_others_is_shown(
    cluster: Cluster, path: str, shown: tuple[str, ...]
) -> None:
    text = await page(cluster, path)
    assert all(each in text for each in shown), text
    if path not in SHOWN:
        assert SICK in text or cluster.sick_address in text, text


@pytest.mark.parametrize("sickness", SICKNESSES)
async def test_totals_of_some_brokers_are_not_said_to_be_those_of_all(cluster: Cluster) -> None:
    assert "Topics 1 known Groups 1 known" in await page(cluster, "/")


@pytest.mark.parametrize("sickness", SICKNESSES)
async def test_a_live_tail_names_who_does_not_answer(cluster: Cluster) -> None:
    async with (
        console(cluster.namesrv, new_client=cluster.client) as browser,
        browser.client.stream("GET", "/tail/events?topic=orders") as answer,
    ):
        lines = answer.aiter_lines()
        told = [await anext(lines) for _ in range(4)]
    assert told[2] == "event: without"
    assert SICK in told[3]


@pytest.mark.parametrize("sickness", SICKNESSES)
async def test_what_waits_is_not_said_to_be_nothing(cluster: Cluster) -> None:
    assert "Nothing is delayed" not in await page(cluster, "/pending")


@pytest.mark.parametrize("sickness", ["silent"])
async def test_a_silent_broker_is_not_called_too_many_messages(cluster: Cluster) -> None:
    assert "So many wait" not in await page(cluster, "/pending")


@pytest.mark.parametrize("sickness", SICKNESSES)
async def test_dead_letters_are_not_said_to_be_none(cluster: Cluster) -> None:
    table = (await page(cluster, "/dead-letters")).partition("Letters stored")[2]
    assert "billing" in table
    assert "never" not in table


@pytest.mark.parametrize("sickness", ["none"])
async def test_where_no_broker_answers_it_is_not_known_what_waits(cluster: Cluster) -> None:
    async with Admin(namesrv_addr=cluster.namesrv) as admin:
        everyone = [each.addresses[0] for each in (await admin.cluster()).brokers]
    async with console(cluster.namesrv, new_client=cluster.without(everyone)) as browser:
        text = words(await browser.page("/pending"))
    assert "Nothing" not in text
    assert text.count("Not known") == 3
