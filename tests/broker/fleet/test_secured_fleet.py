"""TLS and access control of `serve --brokers 2`: all have one certificate and the same accounts."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    Credentials,
    Message,
    Producer,
    StartFrom,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.signature import ACCESS_KEY, SIGNATURE, sign
from tests.broker.fleet.fleet_rig import call, fleet, page
from tests.support.certificates import Authority
from tests.support.patience import until
from tests.support.raw_client import send_fields

pytestmark = pytest.mark.timing

ROOT = Credentials("administrator", "secret-of-root")
ALICE = Credentials("alice-of-sales", "secret-of-alice")
BOB = Credentials("bob-of-billing", "secret-of-bob")
MESSAGES = 16


def write_accounts(home: Path, *users: Credentials) -> None:
    (home / "conf").mkdir(parents=True, exist_ok=True)
    accounts: list[dict[str, Any]] = [
        {"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key, "admin": True}
    ]
    for user in users:
        rights = {"topicPerms": ["orders=PUB|SUB"], "groupPerms": ["billing=SUB"]}
        keys = {"accessKey": user.access_key, "secretKey": user.secret_key}
        accounts.append({**keys, **rights})
    (home / "conf" / "plain_acl.yml").write_text(json.dumps({"accounts": accounts}))


async def send_as(address: str, who: Credentials, tls: ssl.SSLContext | None) -> Any:
    """What one broker answers to a message that was signed so."""
    fields = {**send_fields("orders"), ACCESS_KEY: who.access_key}
    fields[SIGNATURE] = sign(who.secret_key.encode(), fields, b"x")
    return await call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x", tls=tls)


def audited(path: Path, code: RequestCode) -> list[str]:
    """Who asked for something, by the lines of an audit log."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [one["who"] for one in map(json.loads, lines) if one["code"] == code]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_one_certificate_and_one_file_of_accounts_hold_for_all(
    tmp_path: Path, mode: str
) -> None:
    authority = Authority(tmp_path)
    tls = authority.client_context()
    home = tmp_path / "home"
    write_accounts(home, ALICE)
    settings = {
        "tls.server.mode": mode,
        "tls.server.certPath": authority.certificate_file("127.0.0.1"),
        "aclEnable": "true",
        "rocketmqHome": home,
        "auditLogPath": tmp_path / "audit.log",
    }
    async with fleet(tmp_path / "store", "--brokers", "2", **settings) as it:
        ready = await it.ready()
        namesrv = ready["namesrvAddr"]
        members = [one["listenAddr"] for one in ready["brokers"]]

        async with (
            Client(namesrv, ssl=tls, credentials=ROOT) as client,
            Admin(client=client) as root,
        ):
            await root.create_topic("orders", queues=2)

        async with Client(namesrv, ssl=tls, credentials=ALICE) as client:
            async with Producer(client=client) as producer:
                bodies = [f"{number}".encode() for number in range(MESSAGES)]
                sent = [await producer.send(Message("orders", body)) for body in bodies]
            assert {one.queue.broker_name for one in sent} == {"a", "a-1"}
            async with Consumer(
                "orders", client=client, group="billing", start_from=StartFrom.FIRST
            ) as consumer:
                got: set[bytes] = set()

                async def all_came() -> bool:
                    for messages in (await consumer.getmany(timeout=1.0)).values():
                        got.update(each.body for each in messages)
                    return got == set(bodies)

                await until(all_came)

        wrong = Credentials(ALICE.access_key, "not-her-secret")
        for address in members:
            answer = await send_as(address, ALICE, tls)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert "signature" in (await send_as(address, wrong, tls)).remark.lower()
            if mode == "permissive":
                assert (await send_as(address, ALICE, None)).code == ResponseCode.SUCCESS
            else:
                with pytest.raises((ConnectionError, EOFError)):
                    await send_as(address, ALICE, None)

        status, text = await page(ready["metricsAddr"], "/metrics", tls=tls)
        assert status == 200
        for name in ("a", "a-1"):
            assert f'skylarkmq_tls_connections{{broker="{name}"' in text
        assert audited(tmp_path / "audit.log", RequestCode.UPDATE_AND_CREATE_TOPIC) == [
            ROOT.access_key
        ]
        assert audited(tmp_path / "audit-1.log", RequestCode.UPDATE_AND_CREATE_TOPIC) == [
            ROOT.access_key
        ]

        write_accounts(home, BOB)
        for address in members:

            async def has_changed(address: str = address) -> bool:
                old, new = [await send_as(address, who, tls) for who in (ALICE, BOB)]
                return old.code != ResponseCode.SUCCESS and new.code == ResponseCode.SUCCESS

            await until(has_changed)
