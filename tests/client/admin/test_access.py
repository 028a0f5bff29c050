"""Accounts and white lists of a real broker, by Admin's calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.client import (
    Admin,
    AuthError,
    BrokerError,
    Client,
    Credentials,
    Message,
    NotFound,
    Producer,
)
from skylarkmq.client.admin import AccountSummary, Right
from tests.client.admin.support import Site, site
from tests.support.patience import LIMIT_S

ROOT = Credentials("administrator", "secret-of-root")
ALICE = Credentials("alice-of-sales", "first-secret-of-alice")
ACCOUNTS = f"""
globalWhiteRemoteAddresses: [10.1.1.1]
accounts:
- accessKey: {ROOT.access_key}
  secretKey: {ROOT.secret_key}
  admin: true
"""


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Site]:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    (conf / "acl").mkdir()
    (conf / "acl" / "more.yml").write_text("accounts: []\n")
    keys = {"acl_enable": True, "rocketmq_home": conf.parent}
    async with site(tmp_path / "store", credentials=ROOT, **keys) as it:
        yield it


async def send(it: Site, credentials: Credentials, topic: str) -> None:
    """Send one message as an account."""
    async with (
        Client(it.namesrv, credentials=credentials) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(topic, "hello"))


async def test_the_life_of_an_account(it: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    await it.admin.create_topic("prices", queues=1)
    with pytest.raises(AuthError):
        await send(it, ALICE, "prices")
    await it.admin.put_account(
        ALICE.access_key,
        ALICE.secret_key,
        default_group_right="SUB",
        topic_rights={"prices": "PUB|SUB", "orders": "DENY"},
        group_rights={"billing": "SUB"},
        white_address="192.0.2.*",
    )
    await send(it, ALICE, "prices")
    alice = AccountSummary(
        ALICE.access_key, False, "DENY", "SUB", {"prices": "PUB|SUB", "orders": "DENY"},
        {"billing": "SUB"}, "192.0.2.*",
    )  # fmt: skip
    root = AccountSummary(ROOT.access_key, True, "DENY", "DENY", {}, {}, "")
    rules = await it.admin.access_rules("broker-a")
    assert (rules.white_list, rules.accounts) == (("10.1.1.1",), (root, alice))

    await it.admin.put_account(ALICE.access_key, topic_rights={"prices": "SUB"}, white_address="")
    with pytest.raises(AuthError, match="prices"):
        await send(it, ALICE, "prices")
    (_, changed) = (await it.admin.access_rules("broker-a")).accounts
    assert changed.topic_rights == {"prices": "SUB"}
    assert (changed.default_group_right, changed.white_address) == ("SUB", "")

    await it.admin.put_account(ALICE.access_key, "second-secret-of-alice", admin=True)
    with pytest.raises(AuthError, match="signature"):
        await send(it, ALICE, "prices")
    await it.admin.delete_account(ALICE.access_key)
    assert (await it.admin.access_rules("broker-a")).accounts == (root,)
    shown = caplog.text + json.dumps(rules.to_json()) + repr(rules)
    assert ALICE.access_key in shown
    for secret in (ROOT.secret_key, ALICE.secret_key, "second-secret-of-alice"):
        assert secret not in shown


async def test_the_white_list_of_each_file(it: Site, tmp_path: Path) -> None:
    main, more = await it.admin.access_files("broker-a")
    if main.path.endswith("more.yml"):
        main, more = more, main
    assert main.path == str(tmp_path / "home" / "conf" / "plain_acl.yml")
    assert (main.change_count, main.changed_at) == (0, None)
    await it.admin.set_white_list(["10.0.0.{1,2}", "192.168.1.*"])
    await it.admin.set_white_list(["127.0.0.1"], file=more.path)
    rules = await it.admin.access_rules("broker-a")
    assert rules.white_list == ("10.0.0.{1,2}", "192.168.1.*", "127.0.0.1")
    async with Admin(namesrv_addr=it.namesrv) as nobody:  # it may do everything, by its address
        await nobody.set_white_list([], file=more.path)
    assert (await it.admin.access_rules("broker-a")).white_list == ("10.0.0.{1,2}", "192.168.1.*")
    counts = {each.path: each.change_count for each in await it.admin.access_files("broker-a")}
    assert counts == {main.path: 1, more.path: 2}


async def test_what_a_broker_does_not_take(it: Site) -> None:
    admin = it.admin
    for code, call in (
        (209, admin.put_account("short", "secret-enough")),
        (209, admin.put_account("without-secret")),
        (209, admin.put_account(ROOT.access_key, admin=False)),
        (210, admin.delete_account("nobody-known")),
        (210, admin.delete_account(ROOT.access_key)),
        (211, admin.set_white_list(["10.0.0.0/8"])),
        (211, admin.set_white_list(["10.0.0.1"], file="/etc/passwd")),
    ):
        with pytest.raises(BrokerError) as refused:
            await call
        assert refused.value.code == code
    with pytest.raises(NotFound):
        await admin.access_rules("broker-b")
    with pytest.raises(NotFound):
        await admin.put_account("somebody", "secret-enough", brokers=["broker-b"])


async def test_what_is_never_sent(it: Site) -> None:
    wrong: Right = "sub"  # type: ignore[assignment]
    for call, why in (
        (it.admin.put_account("somebody", topic_rights={"orders": wrong}), "a right is one of"),
        (it.admin.put_account("somebody", default_topic_right=wrong), "a right is one of"),
        (it.admin.put_account("somebody", topic_rights={}), "topic_rights is empty"),
        (it.admin.put_account("somebody", group_rights={"a,b": "SUB"}), "group"),
    ):
        with pytest.raises(ValueError, match=why):
            await call


async def test_others_are_refused(it: Site) -> None:
    await it.admin.put_account(ALICE.access_key, ALICE.secret_key, default_topic_right="SUB")
    async with (
        Client(it.namesrv, credentials=ALICE) as client,
        Admin(client=client, timeout=LIMIT_S) as admin,
    ):
        for call in (
            admin.put_account(ALICE.access_key, admin=True),
            admin.delete_account(ROOT.access_key),
            admin.set_white_list(["127.0.0.1"]),
            admin.access_files("broker-a"),
            admin.access_rules("broker-a"),
        ):
            with pytest.raises(AuthError, match="admin"):
                await call


async def test_names_are_those_of_the_namespace(it: Site, tmp_path: Path) -> None:
    async with (
        Client(it.namesrv, credentials=ROOT, namespace="shop") as client,
        Admin(client=client, timeout=LIMIT_S) as admin,
    ):
        await admin.put_account(
            ALICE.access_key, ALICE.secret_key, topic_rights={"orders": "PUB"},
            group_rights={"billing": "SUB"},
        )  # fmt: skip
        (_, alice) = (await admin.access_rules("broker-a")).accounts
    assert (alice.topic_rights, alice.group_rights) == ({"orders": "PUB"}, {"billing": "SUB"})
    (_, seen) = (await it.admin.access_rules("broker-a")).accounts
    assert list(seen.topic_rights) == ["shop%orders"]
    assert list(seen.group_rights) == ["shop%billing"]


async def test_a_broker_without_access_control_says_so(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        for call in (
            it.admin.put_account("somebody", "secret-enough"),
            it.admin.access_files("broker-a"),
            it.admin.access_rules("broker-a"),
        ):
            with pytest.raises(BrokerError, match="aclEnable is false"):
                await call
