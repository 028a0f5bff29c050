"""A broker that was there and is gone: name servers forget it, the console does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from skylarkmq.client import Admin, Client, Credentials, Message, Producer
from skylarkmq.client.admin import BrokerSummary
from skylarkmq.testing import run_broker
from skylarkmq.tools.console.access import Accesses
from skylarkmq.tools.console.gone import TOLD_FOR, Registered
from skylarkmq.tools.console.settings import Settings
from tests.support.manual_clock import ManualClock
from tests.support.patience import until
from tests.tools.console.support import of, words

AT = datetime(2026, 1, 31, 12, 5, tzinfo=UTC)
TWO = ("broker-a", "broker-b")
PAGES = (
    "/topics", "/topics/orders", "/groups", "/messages?topic=orders", "/dead-letters", "/pending",
    "/clients", "/accounts", "/tail",
)  # fmt: skip
LINE = "Without broker-b, which has been gone since"


def brokers(**addresses: dict[int, str]) -> list[BrokerSummary]:
    return [BrokerSummary(name, "C", places) for name, places in addresses.items()]


def missed(registered: Registered) -> list[str]:
    return [f"{one.broker} {one.process}".strip() for one in registered.gone()]


def test_who_was_registered_is_missed_until_it_is_back() -> None:
    registered = Registered()
    registered.note(brokers(a={0: "h:1", 1: "h:2"}, b={0: "h:3", 1: "h:4"}), AT)
    assert missed(registered) == []
    registered.note(brokers(a={0: "h:1"}), AT)
    assert missed(registered) == ["a slave 1", "b"]
    assert [one.is_missing for one in registered.gone()] == [False, True]
    registered.note(brokers(a={1: "h:2"}), AT + timedelta(hours=1))
    assert missed(registered) == ["a master", "b"]
    assert all(one.is_missing for one in registered.gone()), "pages ask masters alone"
    assert {one.since for one in registered.gone() if one.broker == "b"} == {AT}
    registered.note(brokers(a={0: "h:9", 1: "h:2"}, b={0: "h:3", 1: "h:4"}), AT)
    assert missed(registered) == [], "also at another address"


def test_a_slave_that_became_the_master_is_not_missed_but_who_led_before() -> None:
    registered = Registered()
    registered.note(brokers(a={0: "h:1", 1: "h:2", 2: "h:3"}), AT)
    registered.note(brokers(a={1: "h:2", 2: "h:3"}), AT)
    assert missed(registered) == ["a master"]
    for hours in (1, 2):
        registered.note(brokers(a={0: "h:2", 2: "h:3"}), AT + timedelta(hours=hours))
        assert missed(registered) == ["a slave 1"]
    registered.note(brokers(a={0: "h:2", 2: "h:3", 3: "h:1"}), AT)
    assert missed(registered) == []
    registered.note(brokers(a={0: "h:3", 2: "h:2", 3: "h:1"}), AT)
    assert missed(registered) == [], "who changed places"
    registered.note(brokers(a={0: "h:1", 1: "h:2", 4: "h:3"}), AT)
    assert missed(registered) == [], "who has another id"


def test_it_is_missed_for_a_day_or_until_it_is_forgotten() -> None:
    registered = Registered()
    registered.note(brokers(a={0: "h:1"}, b={0: "h:2"}, c={0: "h:3"}), AT)
    registered.note(brokers(a={0: "h:1"}), AT)
    assert registered.forget("c") and not registered.forget("a")
    registered.note(brokers(a={0: "h:1"}), AT + TOLD_FOR - timedelta(seconds=1))
    assert missed(registered) == ["b"]
    registered.note(brokers(a={0: "h:1"}), AT + TOLD_FOR)
    assert missed(registered) == []


def test_who_logs_in_later_is_told_too() -> None:
    def connect(credentials: Credentials | None) -> Client:
        return Client("127.0.0.1:1", credentials=credentials)

    accesses = Accesses(Settings("127.0.0.1:1", connect, needs_login=True), ManualClock())
    early, late = (accesses.of(Credentials(key, "a secret")) for key in ("early", "late"))
    assert early is not late
    for found in (brokers(a={0: "h:1"}, b={0: "h:2"}), brokers(a={0: "h:1"})):
        early.history.registered.note(found, AT)
    assert missed(late.history.registered) == ["b"]
    assert late.history.registered.forget("b")
    assert missed(early.history.registered) == []


@pytest.mark.timing
async def test_pages_name_a_broker_that_is_gone_until_it_is_back() -> None:
    async with run_broker() as first:
        settings = {"brokerName": TWO[1], "namesrvAddr": first.namesrv_addr}
        async with run_broker(settings=settings) as second, of(first, is_writing=True) as browser:
            async with first.client() as client, Admin(client=client) as admin:

                async def known() -> bool:
                    return len((await admin.cluster()).brokers) == len(TWO)

                await until(known, "both brokers")
                await admin.create_topic("orders")
                async with Producer(client=client) as producer:
                    await producer.send(Message("orders", "x"))
            text = words(await browser.page("/"))
            assert TWO[1] in text and "Topics 1 Groups" in text
            await second.stop()
            text = words(await browser.page("/"))
            assert "/s known Lag of all groups 0 known Topics 1 known Groups 0 known" in text
            assert "broker-b has been gone since" in text and "All is well" not in text
            assert "is not shown Start it again." in text and LINE not in text
            for path in PAGES:
                assert LINE in words(await browser.page(path)), path
            assert "Not known" in words(await browser.page("/dead-letters/billing"))
            answer = await browser.get("/messages/export?topic=orders")
            assert answer.status_code == 409 and "would be without broker-b" in answer.text

            asked = await browser.get("/brokers/broker-b/forget")
            assert "Let the console forget broker-b" in words(asked.text)
            assert LINE in words(await browser.page("/topics"))
            text = words((await browser.confirm(asked)).text)
            assert "misses the broker no more" in text and "has been gone since" not in text
            assert LINE not in words(await browser.page("/topics"))
            assert (await browser.confirm(asked)).status_code == 404
            assert (await browser.get("/messages/export?topic=orders")).status_code == 200

            await second.start()

            async def back() -> bool:
                return TWO[1] in words(await browser.page("/"))

            await until(back, "the broker")
            await browser.page("/")  # its look is after the registration
            await second.stop()
            assert LINE in words(await browser.page("/topics")), "missed again"
