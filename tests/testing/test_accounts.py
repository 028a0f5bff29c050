"""A test's broker with accounts: who is served, the broker's own calls, restarts, the plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.client import (
    Admin,
    AuthError,
    Client,
    Consumer,
    Credentials,
    Message,
    Producer,
    StartFrom,
)
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.testing import Account, RunningBroker, run_broker, run_broker_sync
from skylarkmq.testing.accounts import SECRET
from tests.support.patience import LIMIT_S, until

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timing

TOPIC, GROUP = "orders", "billing"
SHOP = Account("shop-service", topic_rights={TOPIC: "PUB"})
BILLING = Account(
    "billing-service", "its own secret", topic_rights={TOPIC: "SUB"}, group_rights={GROUP: "SUB"}
)
ROOT = Account("administrator", admin=True)


async def send(client: Client, body: str, topic: str = TOPIC) -> None:
    async with client, Producer(client=client, send_timeout=LIMIT_S) as producer:
        await producer.send(Message(topic, body))


async def refused(broker: RunningBroker, client: Client, topic: str = TOPIC) -> None:
    """See that a send is refused, and that nothing was stored."""
    before = len(await broker.messages(topic))
    with pytest.raises(AuthError):
        await send(client, "no", topic)
    assert len(await broker.messages(topic)) == before


async def test_each_client_has_the_rights_of_its_account() -> None:
    async with run_broker(accounts=[SHOP, BILLING]) as broker:  # there is no admin among them
        await broker.create_topic(TOPIC, queues=1)
        await send(broker.client("shop-service"), "hello")
        await refused(broker, broker.client("billing-service"))
        await refused(broker, broker.client("shop-service"), "prices")
        await refused(broker, broker.client())
        await refused(broker, broker.client(credentials=Credentials("shop-service", "wrong one")))
        async with (
            broker.client("billing-service") as client,
            Consumer(
                TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST, commit_interval=0.05
            ) as consumer,
        ):
            message = await consumer.getone(LIMIT_S)
            assert message.body == b"hello"
            await message.ack()
            await broker.wait_members(GROUP)
            await broker.wait_lag(GROUP)
        assert await broker.lag(GROUP) == 0
        assert TOPIC in await broker.dump()


async def test_accounts_that_an_admin_changed_stay_so_after_a_restart(tmp_path: Path) -> None:
    async with run_broker(store=tmp_path / "store", accounts=[SHOP, ROOT]) as broker:
        await broker.create_topic(TOPIC)
        async with (
            broker.client("administrator") as client,
            Admin(client=client, timeout=LIMIT_S) as admin,
        ):
            await admin.delete_account("shop-service")
        for kill in (False, True):
            await broker.restart(kill=kill)
            await refused(broker, broker.client("shop-service"))
            await send(broker.client("administrator"), "mine")
        assert (tmp_path / "store" / "conf" / "plain_acl.yml").stat().st_mode & 0o077 == 0


async def test_a_changed_file_counts_when_the_clock_has_moved_on() -> None:
    async with run_broker(accounts=[SHOP]) as broker:
        await broker.create_topic(TOPIC)
        file = broker.root / "conf" / "plain_acl.yml"
        file.write_text(file.read_text().replace("orders=PUB", "orders=SUB"))
        await broker.advance(6)

        async def is_refused() -> bool:
            try:
                await send(broker.client("shop-service"), "still")
            except AuthError:
                return True
            return False

        await until(is_refused, "the file to be read, by a thread")


async def test_faults_reach_signed_requests() -> None:
    async with run_broker(accounts=[SHOP]) as broker:
        await broker.create_topic(TOPIC)
        with broker.faults.fail(310, n=1, response_code=2) as fault:
            await send(broker.client("shop-service"), "one")
        assert fault.hits == 1


async def test_nobody_is_served_where_there_are_no_accounts() -> None:
    async with run_broker(accounts=[]) as broker:
        await broker.create_topic(TOPIC)
        await refused(broker, broker.client())
        with pytest.raises(ValueError, match="not given an account 'somebody', but none"):
            broker.client("somebody")


@pytest.mark.parametrize(
    ("accounts", "why"),
    [
        ([Account("short")], "accessKey is a text of 7 characters or more"),
        ([Account("long-enough", "short")], "secretKey is a text of 7 characters or more"),
        ([SHOP, Account("shop-service", "another secret")], "stands in"),
        ([Account("long-one", topic_rights={"a": "ALL"})], "name=PUB"),  # type: ignore[dict-item]
    ],
)
async def test_what_is_no_account(accounts: list[Account], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        async with run_broker(accounts=accounts):
            pass


def test_a_secret_is_not_shown() -> None:
    assert SECRET not in repr(SHOP) and "its own secret" not in repr(BILLING)


def test_without_a_loop() -> None:
    with run_broker_sync(accounts=[SHOP]) as broker:
        broker.create_topic(TOPIC)
        with broker.client("shop-service") as client:
            from skylarkmq.client.sync import Producer as SyncProducer

            with SyncProducer(client=client, send_timeout=LIMIT_S) as producer:
                producer.send(Message(TOPIC, "hello"))
        assert [each.body for each in broker.messages(TOPIC)] == [b"hello"]


PLUGIN = """
import pytest
from skylarkmq.client import AuthError, Message, Producer
from skylarkmq.testing import Account

@pytest.fixture(scope="session")
def skylarkmq_accounts():
    return [Account("of-the-session", topic_rights={"orders": "PUB"})]

async def send(broker, account):
    async with broker.client(account) as client, Producer(client=client) as producer:
        await producer.send(Message("orders", "hello"))

async def test_all_brokers_have_them(skylarkmq_broker, skylarkmq_broker_session):
    for broker in (skylarkmq_broker, skylarkmq_broker_session):
        await broker.create_topic("orders")
        await send(broker, "of-the-session")
        with pytest.raises(AuthError):
            await send(broker, None)

@pytest.mark.skylarkmq(accounts=[Account("of-this-test", admin=True)])
async def test_one_has_its_own(skylarkmq_broker):
    await send(skylarkmq_broker, "of-this-test")
    with pytest.raises(ValueError):
        skylarkmq_broker.client("of-the-session")
"""


def test_the_fixtures_have_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLUGIN)
    options = ("-o", "asyncio_default_fixture_loop_scope=function", "-o", "asyncio_mode=auto")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2)
