"""`skylarkmq acl` and the secrets of `skylarkmq context`: none is ever printed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from tests.support.patience import LIMIT_S
from tests.tools.admin.support import Shell, paths

ADMIN = Account("rocketmq-admin", "12345678-admin", admin=True)
BILLING = Account("billing-service", "87654321-secret", group_rights={"billing-own": "SUB"})
SECRET = "an open secret"


@pytest.fixture(scope="module")
def secured() -> Iterator[SyncBroker]:
    """A broker with access control."""
    with run_broker_sync(accounts=[ADMIN, BILLING]) as running:
        yield running


@pytest.fixture
def shell(secured: SyncBroker, tmp_path: Path) -> Shell:
    """Commands that sign as an admin."""
    variables = {
        "NAMESRV_ADDR": secured.namesrv_addr,
        "SKYLARKMQ_ACCESS_KEY": ADMIN.access_key,
        "SKYLARKMQ_SECRET_KEY": ADMIN.secret_key,
    }
    return Shell(tmp_path, variables=variables)


ACCOUNT = (
    "access_key admin broker default_group_right default_topic_right white_address"
    " topic_rights.orders group_rights.billing"
)


def test_the_life_of_an_account(shell: Shell) -> None:
    put = (
        "acl", "put", "alice-of-sales", "--topic", "orders=PUB|SUB", "--group", "billing=SUB",
        "--default-topic", "DENY",
    )  # fmt: skip
    assert shell(*put, "--secret-stdin", stdin=SECRET).code == 2  # to be asked
    shell.ok(*put, "--secret-stdin", "--dry-run", stdin=SECRET)
    said = shell.ok(*put, "--secret-stdin", "--yes", stdin=f"{SECRET}\n")
    assert said.json == {"action": "written", "access_key": "alice-of-sales"}

    rows = shell.json("acl", "list")
    alice = next(row for row in rows if row["access_key"] == "alice-of-sales")
    assert paths(alice) == set(ACCOUNT.split())
    assert alice["topic_rights"] == {"orders": "PUB|SUB"}
    shown = shell.ok("acl", "show", "alice-of-sales", "-o", "table")
    assert "orders" in shown.out and SECRET not in shown.out
    assert paths(shell.json("acl", "show", "alice-of-sales")) >= {"access_key"}
    assert shell("acl", "show", "nobody").code == 3

    as_alice = Shell(
        shell.home,
        variables=shell.variables
        | {"SKYLARKMQ_ACCESS_KEY": "alice-of-sales", "SKYLARKMQ_SECRET_KEY": SECRET},
    )
    refused = as_alice("topic", "create", "t")
    assert refused.code == 5 and SECRET not in refused.err
    shell.ok("acl", "put", "alice-of-sales", "--admin", "--yes")  # the secret is kept
    as_alice.ok("topic", "create", "t")

    assert paths(shell.json("acl", "files")[0]) == {"broker", "path", "change_count", "changed_at"}
    shell.ok("acl", "delete", "alice-of-sales", "--yes")
    assert shell("acl", "delete", "alice-of-sales", "--yes").code == 5
    assert as_alice("topic", "list").code == 5


@pytest.mark.parametrize("words", ["describe", "members", "lag"])
def test_a_group_is_shown_to_an_account_that_may_use_this_group_alone(
    shell: Shell, tmp_path: Path, words: str
) -> None:
    account = {
        "SKYLARKMQ_ACCESS_KEY": BILLING.access_key, "SKYLARKMQ_SECRET_KEY": BILLING.secret_key,
    }  # fmt: skip
    billing = Shell(tmp_path, variables={**shell.variables, **account})
    shell("group", "delete", "billing-own", "--yes")
    said = billing("group", words, "billing-own")
    assert said.code == 3 and "there is no group billing-own" in said.err
    shell.ok("group", "create", "billing-own")
    assert billing.json("group", words, "billing-own")["group"] == "billing-own"
    said = billing("group", words, "audit")
    assert said.code == 5 and "account billing-service lacks SUB" in said.err
    assert "warning" not in said.err, "it is told once"
    assert billing("group", "list").code == 5


def test_an_account_looks_at_the_topics_it_may(shell: Shell, secured: SyncBroker) -> None:
    """As docs/operations/access-control.md says: what reads is of the group TOOLS_CONSUMER."""
    with secured.client(ADMIN.access_key) as client, Producer(client=client) as producer:
        for name in ("g-1", "g-2"):
            shell.ok("topic", "create", name, "--queues", "1")
            producer.send(Message(name, "m", keys="k0"))
            first = StartFrom.FIRST
            with Consumer(name, client=client, group=name, start_from=first) as member:
                member.getone(LIMIT_S).dead_letter()
    rights = {
        "looks": ("--topic", "g-1=SUB"),
        "reads": ("--topic", "g-1=SUB", "--group", "TOOLS_CONSUMER=SUB"),
        "letters": ("--topic", "%DLQ%g-1=SUB", "--group", "TOOLS_CONSUMER=SUB"),
    }
    for name, given in rights.items():
        put = ("acl", "put", f"account-{name}", *given, "--secret-stdin", "--yes")
        shell.ok(*put, stdin=SECRET)

    def of(name: str) -> Shell:
        account = {"SKYLARKMQ_ACCESS_KEY": f"account-{name}", "SKYLARKMQ_SECRET_KEY": SECRET}
        return Shell(shell.home, variables={**shell.variables, **account})

    of("looks").ok("topic", "describe", "g-1")
    of("looks").ok("msg", "query", "g-1", "--key", "k0")
    refused = of("looks")("peek", "g-1")
    assert refused.code == 6 and "group:TOOLS_CONSUMER" in refused.err
    for words in (("peek", "g-1"), ("msg", "query", "g-1", "--since", "1h")):
        assert len(of("reads").json(*words)) == 1
    refused = of("reads")("dlq", "list", "g-1")
    assert refused.code == 5 and "topic:%DLQ%g-1" in refused.err
    assert len(of("letters").json("dlq", "list", "g-1")) == 1

    listed = of("letters")("dlq", "list")
    seen, hidden = listed.json[:2]
    assert (seen["group"], seen["letters"], listed.code) == ("g-1", 1, 6)
    assert hidden == {"group": "g-2", "letters": None, "last_given_up_at": None}
    assert "topic:%DLQ%g-2" in listed.err
    nothing = of("reads")("dlq", "list", "-o", "table")
    assert nothing.code == 6 and re.search(r"(?m)^g-1 +- +-$", nothing.out), nothing


def test_the_white_list(shell: Shell) -> None:
    assert shell("acl", "white-list", "10.0.0.7").code == 2
    shell.ok("acl", "white-list", "--set", "10.0.0.7", "10.0.1.*", "--yes")
    rows = shell.json("acl", "white-list")
    assert [row["address"] for row in rows] == ["10.0.0.7", "10.0.1.*"]
    shell.ok("acl", "white-list", "--set", "--yes")
    assert shell.json("acl", "white-list") == []


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        ("--topic orders", None),
        ("--topic orders=ALL", None),
        ("--secret-stdin", ""),
        ("--secret-env NO_SUCH_VARIABLE", None),
        ("--secret-stdin --ask-secret", "x"),
    ],
)
def test_wrong_use(shell: Shell, words: str, stdin: str | None) -> None:
    assert shell("acl", "put", "alice-of-sales", *words.split(), "--yes", stdin=stdin).code == 2


def test_a_context_keeps_a_secret_and_shows_it_to_nobody(
    secured: SyncBroker, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, variables={"MY_SECRET": ADMIN.secret_key})
    add = ("context", "add", "ours", "--namesrv", secured.namesrv_addr)
    assert shell(*add, "--access-key", ADMIN.access_key).code == 2  # without its secret
    said = shell.ok(*add, "--access-key", ADMIN.access_key, "--secret-env", "MY_SECRET")
    answers = [said, shell.ok("context", "list"), shell.ok("context", "show", "-o", "table")]
    assert not any(ADMIN.secret_key in each.out + each.err for each in answers)
    (file,) = tmp_path.rglob("contexts.yaml")
    assert ADMIN.secret_key in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600

    shell.ok("topic", "list")  # as the chosen context
    said = shell("topic", "list", "--access-key", "somebody")  # who does not sign with its secret
    assert said.code == 2 and "go together" in said.err
    shell.ok("context", "add", "away", "--namesrv", "127.0.0.1:1")
    assert shell.json("context", "show")["name"] == "ours"  # the first one was chosen
    away = shell("topic", "list", "--context", "away", "--timeout", "0.2")
    assert away.code == 4 and "(context away)" in away.err
    shell.ok("context", "use", "away")
    assert shell("topic", "list", "--timeout", "0.2").code == 4
    assert shell(*add).code == 2
    shell.ok(*add, "--replace")
    assert shell("context", "use", "nobody").code == 3
    shell.ok("context", "remove", "away")
    assert shell("context", "show").code == 3


def test_a_secret_is_asked_for_twice(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert "no host:port" in shell("context", "add", "x", "--namesrv", "ns").err
    add = ("context", "add", "x", "--namesrv", "ns:1", "--access-key", "somebody", "--ask-secret")
    said = shell.ok(*add, stdin=f"{SECRET}\n{SECRET}\n")
    assert SECRET not in said.out + said.err
    assert shell(*add, "--replace", stdin=f"{SECRET}\nelse\n").code != 0
