"""Accounts that change while a client of the SDK is connected: its next requests are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.client import AuthError, Client, Credentials, Message, Producer
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.signature import sign_request
from tests.behaviour.support import Inbox, consuming
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import until
from tests.support.raw_client import RawClient, pull_fields

pytestmark = pytest.mark.timing

ALICE = Credentials("alice-of-sales", "secret-of-alice")
ADMINISTRATOR = "accounts:\n- {accessKey: administrator, secretKey: secret-of-root, admin: true}\n"
ACCOUNTS = (
    f"{ADMINISTRATOR}- {{accessKey: {ALICE.access_key}, secretKey: {ALICE.secret_key}, "
    "topicPerms: [T=PUB|SUB], groupPerms: [G=SUB]}\n"
)


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def change(broker: BrokerController, file: Path, text: str) -> None:
    """Write the file, and have it looked at now."""
    files = broker.parts.access_files
    assert files is not None
    before = files.rules
    write(file, text)
    files._look()
    await until(lambda: files.rules is not before, "the new rules")


async def test_an_account_that_changes_under_its_client(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    write(file, ACCOUNTS)
    changes = {"acl_enable": True, "rocketmq_home": tmp_path}
    inbox = Inbox()
    async with (
        live_broker(tmp_path / "store", **changes) as broker,
        Client(namesrv_of(broker), credentials=ALICE) as client,
        Producer(client=client) as producer,
    ):
        await producer.send(Message("T", "before"))
        async with consuming(client, "T", "G", inbox):
            await inbox.wait(lambda: len(inbox.messages) == 1)
            for text, why in (
                (ACCOUNTS.replace(ALICE.secret_key, "a-newer-secret"), "Check signature failed"),
                (ADMINISTRATOR, f"No acl config for {ALICE.access_key}"),
            ):
                await change(broker, file, text)
                with pytest.raises(AuthError) as refused:
                    await producer.send(Message("T", "no"))
                assert why in str(refused.value) and not refused.value.retryable
                assert ALICE.secret_key not in str(refused.value)
            await change(broker, file, ACCOUNTS)
            await producer.send(Message("T", "after"))
            await inbox.wait(lambda: {message.body for message in inbox.messages} >= {b"after"})
    assert [message.body for message in inbox.messages] == [b"before", b"after"]


async def test_a_pull_that_waits_while_its_account_goes_gets_no_message(tmp_path: Path) -> None:
    """Over sockets: its connection ends, and the next one is refused."""
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    write(file, ACCOUNTS)
    changes = {"acl_enable": True, "rocketmq_home": tmp_path}
    async with live_broker(tmp_path / "store", **changes) as broker:
        reader = await RawClient.open(broker.listen_address)
        waits = pull_fields("TBW102", group="G", sysFlag="6", suspendTimeoutMillis="600000")
        text = ACCOUNTS.replace("[T=PUB|SUB]", "[TBW102=SUB]")
        await change(broker, file, text)
        pull = asyncio.create_task(reader.call(11, signed(waits, ALICE)))
        await until(lambda: broker.parts.holding.count, "the pull that waits")
        await change(broker, file, ADMINISTRATOR)
        with pytest.raises(ConnectionResetError):
            await pull
        assert not broker.parts.holding.count
        await reader.close()
        again = await RawClient.open(broker.listen_address)
        answer = await again.call(11, signed(waits, ALICE))
        assert f"No acl config for {ALICE.access_key}" in (answer.remark or "")
        await again.close()


def signed(fields: Mapping[str, str], account: Credentials, body: bytes = b"") -> dict[str, str]:
    """The fields of a request with key and signature."""
    command = RemotingCommand.request(0, fields, body)
    sign_request(command, account.access_key, account.secret_key.encode())
    return command.ext_fields
