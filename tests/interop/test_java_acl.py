"""Access control with RocketMQ's own clients and mqadmin: right keys, wrong ones, none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.accounts import (
    ACCOUNTS,
    ADMINISTRATOR,
    ALICE,
    FOREIGN_GROUP,
    GROUP,
    REASONS,
    ROOT,
    UNKNOWN,
    WRONG,
    accounts_file,
    logged,
    refusal,
    secured_broker,
)  # fmt: skip
from tests.interop.admin_tools import JavaAdmin
from tests.interop.children import Children, Event
from tests.interop.servers import Broker
from tests.interop.tools import BINARY_HEADERS, LONG_NAMES, JavaTools, bodies

pytestmark = pytest.mark.interop

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def secured(maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Ours, with access control."""
    with secured_broker(tmp_path_factory.mktemp("acl")) as broker:
        yield broker


@pytest.fixture
def tools(secured: Broker, children: Children) -> JavaTools:
    return JavaTools(children, secured)


@pytest.fixture(scope="module")
def root(secured: Broker) -> JavaAdmin:
    return JavaAdmin(secured.children, secured, ROOT)


def read_again(broker: Broker, times: int) -> None:
    """Wait until the broker has taken changed files so often."""
    server = broker.children.all[0]
    said = "access control has new rules"
    server.wait_for(said, lambda: sum(said in line for line in server.lines) >= times)


def keys(account: tuple[str, str]) -> dict[str, Any]:
    return {"accessKey": account[0], "secretKey": account[1]}


@pytest.mark.parametrize("options", [(), (BINARY_HEADERS,), (LONG_NAMES,)])
@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_the_right_keys_send_and_others_do_not(
    tools: JavaTools, mode: str, options: tuple[str, ...]
) -> None:
    sent = tools.produce("T_open", mode, 3, *options, **keys(ALICE))
    assert {event["event"] for event in sent} == {"sent"}
    failed = refusal(tools.produce("T_read", mode, 1, *options, **keys(ALICE)))
    assert "AclException: No default permission for topic:T_read" in failed


def test_wrong_keys_and_none_get_nowhere(secured: Broker, tools: JavaTools) -> None:
    """The name server refuses first, of which the Java client tells no more than "no route"."""
    for given in (keys(WRONG), keys(UNKNOWN), {}):
        assert "No route info" in refusal(tools.produce("T_open", "sync", 1, **given))
    for who in ("wrong", "unknown", "none"):
        logged(secured, REASONS[who])


def test_a_consumer_receives_retries_and_finds(tools: JavaTools, root: JavaAdmin) -> None:
    root.run("updateTopic", "-t", "T_open", "-c", CLUSTER, "-r", "2", "-w", "2")
    consumer = tools.consume("T_open", GROUP, fail=1, **keys(ALICE))
    sent = tools.produce("T_open", "sync", 2, keys="k", **keys(ALICE))
    assert {event["event"] for event in sent} == {"sent"}
    consumer.count("message", 4)
    consumer.finish()
    assert len(set(bodies(consumer.named("message")))) >= 2
    unique = tools.find("T_open", unique=sent[0]["msg_id"], **keys(ALICE))
    assert unique and unique[0]["event"] == "message"


def test_a_group_without_the_right_gets_nothing(secured: Broker, tools: JavaTools) -> None:
    """The client tells its log alone."""
    sent = tools.produce("T_open", "sync", 1, **keys(ALICE))
    assert {event["event"] for event in sent} == {"sent"}
    consumer = tools.consume("T_open", FOREIGN_GROUP, **keys(ALICE))
    consumer.event("started")
    logged(secured, f"No default permission for group:{FOREIGN_GROUP}")
    consumer.finish()
    assert consumer.named("message") == []


def test_a_transaction_is_committed(tools: JavaTools, root: JavaAdmin) -> None:
    producer = tools.transact("T_open", "P_alice", count=2, **keys(ALICE))
    producer.finish()
    assert producer.named("error") == []


def test_a_trace_is_kept(tools: JavaTools) -> None:
    sent = tools.produce("T_open", "sync", 1, trace="true", **keys(ALICE))
    assert {event["event"] for event in sent} == {"sent"}


def test_mqadmin_administers_accounts(secured: Broker, root: JavaAdmin, tools: JavaTools) -> None:
    new = ("new-account", "first-secret")
    text = root.run(
        "updateAclConfig", "-b", root.address, "-a", new[0], "-s", new[1], "-i", "DENY", "-u",
        "SUB", "-t", "T_open=PUB,T_read=SUB",
    )  # fmt: skip
    assert "success" in text
    sent = tools.produce("T_open", "sync", 1, **keys(new))
    assert {event["event"] for event in sent} == {"sent"}
    text = root.run("updateAclConfig", "-b", root.address, "-a", new[0], "-s", "second-secret")
    assert "success" in text
    assert "No route info" in refusal(tools.produce("T_open", "sync", 1, **keys(new)))
    logged(secured, f"Check signature failed for accessKey={new[0]}")
    text = root.run("clusterAclConfigVersion", "-b", root.address)
    assert "plain_acl.yml" in text and "broker-a" in text
    text = root.run("updateGlobalWhiteAddr", "-b", root.address, "-g", "10.9.8.*,10.9.7.1")
    assert "success" in text
    assert "success" in root.run("deleteAclConfig", "-b", root.address, "-a", new[0])
    file = accounts_file(secured.folder)
    written = file.read_text()
    assert new[0] not in written and "10.9.8.*" in written
    audit = (secured.folder / "audit.log").read_text()
    assert "UPDATE_AND_CREATE_ACL_CONFIG" in audit and "second-secret" not in audit
    assert file.stat().st_mode & 0o077 == 0


def test_an_account_that_goes_while_its_client_is_connected(
    maven: None, children: Children, tmp_path: Path
) -> None:
    """Another secret, no account any more, and the account again: seen by the next request."""
    with secured_broker(tmp_path) as broker:
        tools = JavaTools(children, broker)
        producer = tools.start_produce("T_open", "asked", 0, **keys(ALICE))
        producer.event("started")
        file = accounts_file(tmp_path)

        def next_send(number: int) -> Event:
            producer.say()
            found: Event = producer.wait_for(
                f"send {number}",
                lambda: [e for e in producer.events if e.get("index") == number][-1:],
            )[0]
            return found

        assert next_send(0)["event"] == "sent"
        changes = (
            (ACCOUNTS.replace(ALICE[1], "a-newer-secret"), REASONS["wrong"]),
            (ADMINISTRATOR, f"No acl config for {ALICE[0]}"),
            (ACCOUNTS, None),
        )
        for number, (text, why) in enumerate(changes, 1):
            file.write_text(text)
            read_again(broker, number)
            event = next_send(number)
            if why is None:
                assert event["event"] == "sent"
            else:
                assert (event["event"], event["code"]) == ("error", 1)
                assert f"AclException: {why}, " in event["answer"]
        producer.finish()


def test_mqadmin_refused(secured: Broker, root: JavaAdmin) -> None:
    text = root.run("updateAclConfig", "-b", root.address, "-a", "short", "-s", "x")
    assert "209" in text and "7 characters" in text
    text = root.run("deleteAclConfig", "-b", root.address, "-a", "nobody-known")
    assert "210" in text
    text = root.run("updateGlobalWhiteAddr", "-b", root.address, "-g", "10.0.0.0/8")
    assert "211" in text
    alice = JavaAdmin(secured.children, secured, ALICE)
    text = alice.run("updateTopic", "-t", "T_new", "-b", alice.address)
    assert "Need admin permission for request code=17" in text
    nobody = JavaAdmin(secured.children, secured)
    assert "No accessKey is configured" in nobody.run("clusterList")


def test_mqadmin_looks_around(root: JavaAdmin) -> None:
    assert "broker-a" in root.run("clusterList")
    assert "T_open" in root.run("topicList")
    assert "aclEnable" in root.run("getBrokerConfig", "-b", root.address)
