"""The SDK against RocketMQ's own access control: 4.9's plain_acl.yml, 5.3's users and policies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from skylarkmq.client import (
    Admin,
    AuthError,
    BrokerError,
    Client,
    Credentials,
    Message,
    Producer,
)
from tests.behaviour.support import Inbox, bodies, consuming, numbered, received
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.support.patience import until

pytestmark = pytest.mark.interop

ADMIN = Credentials("rocketmq-admin", "12345678-admin")
ALICE = Credentials("alice-of-sales", "alice's secret")
OPEN, READ_ONLY, CLOSED = "T_open", "T_read_only", "T_closed"
CODECS = ["auto", "rocketmq"]
ALL_KINDS = [f"T_all_kinds_{codec}" for codec in CODECS]
GROUP, FOREIGN_GROUP = "G_alice", "G_of_others"

PLAIN_ACL = f"""
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {ADMIN.access_key}
  secretKey: {ADMIN.secret_key}
  whiteRemoteAddress:
  admin: true
- accessKey: {ALICE.access_key}
  secretKey: {ALICE.secret_key}
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - {OPEN}=PUB|SUB
  - {ALL_KINDS[0]}=PUB|SUB
  - {ALL_KINDS[1]}=PUB|SUB
  - {READ_ONLY}=SUB
  - {CLOSED}=DENY
  groupPerms:
  - {GROUP}=SUB
"""


@pytest.fixture(scope="module")
def secured(maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """4.9 with its access control on."""
    folder = tmp_path_factory.mktemp("acl")
    broker = ApacheBroker(Children(folder), folder, aclEnable="true")
    (folder / "home" / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def client_of(broker: Broker, credentials: Credentials | None, **settings: object) -> Client:
    return Client(
        broker.namesrv,
        credentials=credentials,
        heartbeat_interval=1.0,
        route_refresh=1.0,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture
async def topics(secured: Broker) -> AsyncIterator[None]:
    """The topics, made by the administrator."""
    async with client_of(secured, ADMIN) as client, Admin(client=client) as admin:
        for topic in (OPEN, READ_ONLY, CLOSED, *ALL_KINDS):
            await admin.create_topic(topic, queues=4, exist_ok=True)
        yield


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(("codec", "topic"), list(zip(CODECS, ALL_KINDS, strict=True)))
async def test_what_is_allowed(secured: Broker, codec: str, topic: str) -> None:
    """Every kind of request that is signed: sends of all kinds, pulls, commits, heartbeats."""
    async with client_of(secured, ALICE, codec=codec) as client:
        async with Producer(client=client, compress_over=500) as producer:
            sent = [
                await producer.send(Message(topic, f"{codec}-0", keys="Grüße", tags="A")),
                await producer.send_nowait(Message(topic, f"{codec}-1", properties={"ß": "✓ 😀"})),
                *await producer.send_batch([Message(topic, f"{codec}-{n}") for n in (2, 3)]),
            ]
            await producer.send_oneway(Message(topic, f"{codec}-4"))
            big = await producer.send(Message(topic, b"x" * 1000))
            assert all(result.msg_id for result in [*sent, big])
        got = await received(client, topic, GROUP, 6)
        assert sorted({*bodies(got)} - {"x" * 1000}) == numbered(codec, 5)


@pytest.mark.usefixtures("topics")
async def test_what_is_denied(secured: Broker) -> None:
    async with client_of(secured, ALICE) as client, Producer(client=client) as producer:
        for topic in (READ_ONLY, CLOSED):
            with pytest.raises(AuthError) as refused:
                await producer.send(Message(topic, "no"))
            assert topic in str(refused.value)
            assert not refused.value.retryable
            assert ALICE.secret_key not in str(refused.value)
        await producer.send(Message(OPEN, "goes on"))
        async with Admin(client=client) as admin:
            with pytest.raises(AuthError, match="admin"):
                await admin.create_topic("T_new", queues=1)


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (Credentials("nobody-known", "12345678"), "nobody-known"),
        (Credentials(ALICE.access_key, "wrong-secret"), "signature"),
        (None, "accessKey"),
    ],
    ids=["unknown", "wrong", "none"],
)
@pytest.mark.usefixtures("topics")
async def test_wrong_credentials(
    secured: Broker, credentials: Credentials | None, why: str
) -> None:
    async with client_of(secured, credentials) as client, Producer(client=client) as producer:
        with pytest.raises(AuthError) as refused:
            await producer.send(Message(OPEN, "no"))
        assert why in str(refused.value)
        assert "wrong-secret" not in str(refused.value)


@pytest.mark.usefixtures("topics")
async def test_queries_are_signed_as_the_broker_checks_them(secured: Broker) -> None:
    """Code 12 carries a field that Java's client signs and its broker leaves out."""
    async with client_of(secured, ADMIN) as client, Admin(client=client) as admin:
        async with Producer(client=client) as producer:
            sent = await producer.send(Message(OPEN, "found", keys="order-17"))
        found = await until(lambda: admin.query(OPEN, key="order-17"), "the index")
        assert [message.body for message in found] == [b"found"]
        found = await until(lambda: admin.query(OPEN, msg_id=sent.msg_id), "the index")
        assert [message.msg_id for message in found] == [sent.msg_id]
        assert sent.offset_msg_id
        found_one = await admin.message(sent.offset_msg_id)
        assert found_one is not None
        assert found_one.body == b"found"


@pytest.mark.usefixtures("topics")
async def test_a_retry_is_signed_too(secured: Broker) -> None:
    async with (
        client_of(secured, ALICE) as client,
        Producer(client=client) as producer,
        consuming(client, OPEN, GROUP, Inbox(fail=1)) as inbox,
    ):
        await producer.send(Message(OPEN, "try again"))
        await inbox.wait(
            lambda: any(
                message.body == b"try again" and message.reconsume_times == 1
                for message in inbox.messages
            )
        )


@pytest.mark.usefixtures("topics")
async def test_accounts_are_made_changed_and_deleted(secured: Broker) -> None:
    """RocketMQ wants the secret each time; 4.9.7 answers 54 with all secrets, which none sees."""
    bob = Credentials("bob-of-sales", "bobs-first-secret")

    async def sends(credentials: Credentials) -> bool:
        async with client_of(secured, credentials) as client, Producer(client=client) as producer:
            try:
                await producer.send(Message(OPEN, "mine"))
            except AuthError:
                return False
            return True

    async def is_refused() -> bool:
        return not await sends(bob)

    async with client_of(secured, ADMIN) as client, Admin(client=client) as admin:
        await admin.put_account(
            bob.access_key, bob.secret_key, default_topic_right="DENY",
            topic_rights={OPEN: "PUB|SUB", READ_ONLY: "SUB"}, group_rights={GROUP: "SUB"},
        )  # fmt: skip
        await until(lambda: sends(bob), "the account")
        with pytest.raises(BrokerError, match="secretKey=null"):
            await admin.put_account(bob.access_key, topic_rights={OPEN: "SUB"})
        keys = bob.access_key, bob.secret_key
        await admin.put_account(*keys, topic_rights={OPEN: "SUB"})
        await until(is_refused, "the change")
        await admin.put_account(*keys, admin=True, topic_rights={OPEN: "PUB"})
        await until(lambda: sends(bob), "the second change")
        await admin.delete_account(bob.access_key)
        await until(is_refused, "the end of the account")
        with pytest.raises(BrokerError) as unknown:
            await admin.delete_account("nobody-known")
        assert unknown.value.code == 210
        await admin.set_white_list(["10.9.8.*", "10.9.7.1"])
        (file,) = await admin.access_files("broker-a")
        assert file.path.endswith("plain_acl.yml") and file.change_count >= 4 and file.changed_at
        rules = await admin.access_rules("broker-a")
        assert rules.white_list == ("10.9.8.*", "10.9.7.1")
        accounts = {account.access_key: account for account in rules.accounts}
        assert accounts[ADMIN.access_key].admin and bob.access_key not in accounts
        assert accounts[ALICE.access_key].topic_rights[READ_ONLY] == "SUB"
        assert ALICE.secret_key not in repr(rules) + str(rules.to_json())
