"""Signed requests whose signature nobody looks at: without access control, or from a white list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.net.connection import Connection
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import sign_request
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL = 310, 11
COUNT = 20


def signed(fields: dict[str, str], body: bytes, kind: int) -> dict[str, str]:
    """The fields with an account that no broker knows, its signature and a token."""
    command = RemotingCommand.request(0, fields, body, serialize_type=kind)
    sign_request(command, "nobody-known", b"any secret", "token")
    return command.ext_fields


def settings(root: Path, *, white: bool) -> dict[str, Any]:
    """A broker without access control, or with it and everybody in its white list."""
    if not white:
        return {}
    (root / "home" / "conf").mkdir(parents=True)
    text = "globalWhiteRemoteAddresses: [127.0.0.*]\naccounts: []\n"
    (root / "home" / "conf" / "plain_acl.yml").write_text(text)
    return {"acl_enable": True, "rocketmq_home": root / "home"}


@pytest.mark.parametrize("white", [False, True])
@pytest.mark.parametrize("kind", list(SerializeType))
async def test_they_take_the_plain_roads_and_mean_what_unsigned_ones_mean(
    tmp_path: Path, kind: int, white: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_broker(tmp_path / "store", **settings(tmp_path, white=white)) as broker:
        router = broker.router
        assert router is not None and router._send is not None
        client = await RawClient.open(broker.listen_address)
        first = signed(send_fields("T"), b"first", kind)
        assert (await client.call(SEND, first, b"first", serialize_type=kind)).code == 0
        on_slow_path: list[RemotingCommand] = []
        slow_path = router._send.request

        def noted(connection: Connection, request: RemotingCommand) -> None:
            on_slow_path.append(request)
            slow_path(connection, request)

        monkeypatch.setattr(router._send, "request", noted)
        opaques = []
        for number in range(COUNT):
            body = b"%d" % number
            fields = send_fields("T") if number % 3 else signed(send_fields("T"), body, kind)
            opaques.append(client.send(SEND, fields, body, serialize_type=kind))
        answers = [await client.answer(opaque) for opaque in opaques]
        assert {answer.code for answer in answers} == {0}
        assert on_slow_path == []
        plain = await client.call(PULL, pull_fields("T", 0), serialize_type=kind)
        fields = signed(pull_fields("T", 0), b"", kind)
        again = await client.call(PULL, fields, serialize_type=kind)
        assert (again.code, again.body) == (plain.code, plain.body) == (0, plain.body)
        messages = decode_messages(plain.body)
        assert [each.body for each in messages] == [b"first", *(b"%d" % n for n in range(COUNT))]
        assert not [each for each in messages if "Signature" in str(each.properties)]
        await client.close()


async def test_a_peer_that_signs_nothing_is_not_read_twice(tmp_path: Path) -> None:
    async with live_broker(tmp_path / "store") as broker:
        server = broker.server
        assert server is not None
        plain = await RawClient.open(broker.listen_address)
        signing = await RawClient.open(broker.listen_address)
        assert (await plain.call(SEND, send_fields("T"), b"x")).code == 0
        assert (await signing.call(SEND, signed(send_fields("T"), b"x", 0), b"x")).code == 0
        assert sorted(each.signs for each in server.connections) == [False, True]
        await plain.close()
        await signing.close()


async def test_what_cannot_be_read_ends_the_connection_after_what_came_before(
    tmp_path: Path,
) -> None:
    async with live_broker(tmp_path / "store") as broker:
        client = await RawClient.open(broker.listen_address)
        fields = signed(send_fields("T"), b"x", 0)
        assert (await client.call(SEND, fields, b"x")).code == 0
        opaque = client.send(SEND, fields, b"x")
        client.writer.write(b"\0\0\0\x08\0\0\0\x04{[}]")
        assert (await client.answer(opaque)).code == 0
        await client.closed()
        await client.close()
