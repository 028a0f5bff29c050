"""Accounts for a test's broker: given as objects, written into RocketMQ's file for it.

    async with run_broker(accounts=[Account("order-service", topic_rights={"orders": "PUB"})]) as b:
        async with b.client("order-service") as client: ...

With accounts the broker has access control on, also with an empty list, which lets nobody in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.broker.access.accounts import ACCOUNTS_KEY
from skylarkmq.broker.access.yaml_text import write_yaml
from skylarkmq.common.settings import names_checked

if TYPE_CHECKING:  # the SDK is loaded when a test asks for a client
    from skylarkmq.client.admin import Right

SECRET: Final = "a secret of tests"


@names_checked
@dataclass(frozen=True)
class Account:
    """An account of a test's broker; attributes are named as in `Admin.put_account`.

    Without any right it may send and receive nothing; an admin without lists may do everything.
    """

    access_key: str
    """7 characters or more, as the secret."""
    secret_key: str = field(default=SECRET, repr=False)
    _: KW_ONLY
    admin: bool = False
    default_topic_right: Right = "DENY"
    default_group_right: Right = "DENY"
    topic_rights: Mapping[str, Right] = field(default_factory=dict[str, "Right"])
    group_rights: Mapping[str, Right] = field(default_factory=dict[str, "Right"])
    white_address: str = ""


def write_accounts(home: Path, accounts: Iterable[Account]) -> None:
    """Write the file of access control below rocketmqHome. Blocks."""
    path = home / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(write_yaml({ACCOUNTS_KEY: [_entry(account) for account in accounts]}))


def _entry(account: Account) -> dict[str, Any]:
    return {
        "accessKey": account.access_key,
        "secretKey": account.secret_key,
        "whiteRemoteAddress": account.white_address,
        "admin": str(account.admin).lower(),
        "defaultTopicPerm": account.default_topic_right,
        "defaultGroupPerm": account.default_group_right,
        "topicPerms": [f"{name}={right}" for name, right in account.topic_rights.items()],
        "groupPerms": [f"{name}={right}" for name, right in account.group_rights.items()],
    }
