"""Our broker with access control, and its accounts: what each client is tried with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skylarkmq.client import Admin, Client, Credentials
from tests.interop.children import Children, Event
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker

Keys = tuple[str, str]
"""Access key and secret."""

ROOT: Keys = ("administrator", "secret-of-root")
ALICE: Keys = ("alice-of-sales", "secret-of-alice")
WRONG: Keys = (ALICE[0], "another-secret")
UNKNOWN: Keys = ("nobody-known", ALICE[1])
GROUP = "G_alice"
FOREIGN_GROUP = "G_others"
OPEN, READ_ONLY = "T_open", "T_read"
ADMINISTRATOR = f"""
accounts:
- accessKey: {ROOT[0]}
  secretKey: {ROOT[1]}
  admin: true
"""
ACCOUNTS = f"""{ADMINISTRATOR}
- accessKey: {ALICE[0]}
  secretKey: {ALICE[1]}
  topicPerms: [{OPEN}=PUB|SUB, {READ_ONLY}=SUB]
  groupPerms: [{GROUP}=SUB]
"""
REASONS = {
    "wrong": f"Check signature failed for accessKey={ALICE[0]}",
    "unknown": f"No acl config for {UNKNOWN[0]}",
    "none": "No accessKey is configured",
    "forbidden": f"No default permission for topic:{READ_ONLY}",
}
"""What the broker says to each."""


@contextmanager
def secured_broker(folder: Path, **keys: object) -> Iterator[Broker]:
    """Start ours with ACCOUNTS."""
    accounts_file(folder).parent.mkdir(parents=True)
    accounts_file(folder).write_text(ACCOUNTS)
    broker = SkylarkBroker(
        Children(folder),
        folder,
        aclEnable="true",
        rocketmqHome=folder / "home",
        auditLogPath=folder / "audit.log",
        **keys,
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def accounts_file(folder: Path) -> Path:
    """Where the accounts of a broker on a folder are."""
    return folder / "home" / "conf" / "plain_acl.yml"


def create_topics(broker: Broker, *topics: str) -> None:
    """Have the administrator make topics of two queues."""

    async def create() -> None:
        client = Client(broker.namesrv, credentials=Credentials(*ROOT))
        async with client, Admin(client=client) as admin:
            for topic in topics:
                await admin.create_topic(topic, queues=2, exist_ok=True)

    asyncio.run(create())


def refusal(events: list[Event]) -> str:
    """What each of the sends failed with."""
    assert events and {event["event"] for event in events} == {"error"}
    return "\n".join(str(event) for event in events)


def logged(broker: Broker, text: str) -> None:
    """Wait until the broker has said something."""
    server = broker.children.all[0]
    server.wait_for(text, lambda: text in server.tail(1000))
