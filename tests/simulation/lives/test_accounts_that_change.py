"""Accounts change right before the broker dies; its consumers live on, and what changed holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from skylarkmq.client import Credentials
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.simulation.lives.members import GROUP, MEMBERS
from tests.support.broker_life import ROOT
from tests.support.broker_lives import TOPIC, BrokerLives, disk_with_accounts
from tests.support.delivery_history import DeliveryHistory
from tests.support.raw_client import pull_fields

READER: Final = Credentials("living-reader", "secret-of-reader")
LEAVER: Final = Credentials("leaving-reader", "secret-of-leaver")
SENDER: Final = Credentials("late-sender", "secret-of-sender")
SDK_KINDS: Final = [kind for kind in MEMBERS if kind not in ("java", "peek")]
"""Without the reader of the tools, whose rights are not those of a group."""


def line(account: Credentials, rights: str) -> str:
    return f"- {{accessKey: {account.access_key}, secretKey: {account.secret_key}, {rights}}}\n"


RIGHTS: Final = f"topicPerms: [{TOPIC}=SUB], groupPerms: [{GROUP}=SUB]"
ACCOUNTS: Final = (
    "accounts:\n" + line(ROOT, "admin: true") + line(READER, RIGHTS) + line(LEAVER, RIGHTS)
)


async def change_accounts(lives: BrokerLives) -> None:
    """One comes, one goes; both are acknowledged."""
    fields = {
        "accessKey": SENDER.access_key,
        "secretKey": SENDER.secret_key,
        "topicPerms": f"{TOPIC}=PUB",
    }
    await lives.call(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)
    await remove(lives, LEAVER)


async def remove(lives: BrokerLives, account: Credentials) -> None:
    fields = {"accessKey": account.access_key}
    await lives.call(RequestCode.DELETE_ACL_CONFIG, fields)


async def may_read(lives: BrokerLives, account: Credentials) -> bool:
    """Whether a pull of the account is answered with messages."""
    answer = await lives.ask(
        lives.life.connect(account), RequestCode.PULL_MESSAGE, pull_fields(TOPIC, group=GROUP)
    )
    if answer.code == ResponseCode.SUCCESS:
        return True
    assert "No acl config" in (answer.remark or "")
    return False


@pytest.mark.parametrize("kind", SDK_KINDS)
async def test_accounts_change_before_a_kill_and_the_consumer_sees_what_the_new_one_sends(
    kind: str, tmp_path: Path
) -> None:
    seen = DeliveryHistory()
    lives = BrokerLives(seen)
    member = MEMBERS[kind](lives, tmp_path, READER)
    await lives.boot(disk_with_accounts(ACCOUNTS), attributes=member.attributes)
    await member.start()
    await lives.send("a0", "a1")
    await lives.keep_tables()
    assert await may_read(lives, LEAVER)
    await change_accounts(lives)
    await lives.boot(lives.kill(), keeps="all")
    await lives.send("b0", "b1", peer=lives.life.connect(SENDER))
    await lives.pump(40.0)
    assert not await may_read(lives, LEAVER)
    member.look()
    await member.stop()
    seen.check()


async def test_a_power_cut_takes_no_change_of_accounts() -> None:
    lives = BrokerLives(DeliveryHistory())
    await lives.boot(disk_with_accounts(ACCOUNTS))
    await lives.send("a0")
    await change_accounts(lives)
    await lives.boot(lives.power_cut())
    await lives.send("a1", peer=lives.life.connect(SENDER))
    assert await may_read(lives, READER)
    assert not await may_read(lives, LEAVER)


@pytest.mark.parametrize("kind", ["clustering", "ordered", "pop"])
async def test_a_consumer_whose_account_is_removed_gets_nothing_more(
    kind: str, tmp_path: Path
) -> None:
    lives = BrokerLives(DeliveryHistory())
    member = MEMBERS[kind](lives, tmp_path, LEAVER)
    await lives.boot(disk_with_accounts(ACCOUNTS), attributes=member.attributes)
    await member.start()
    await lives.send("a0")
    await lives.pump(1.0)
    assert set(member.seen()) == {"a0"}, "and its next request waits"
    await remove(lives, LEAVER)
    await lives.send("b0")
    await lives.pump(10.0)
    await member.stop()
    assert set(member.seen()) == {"a0"}
