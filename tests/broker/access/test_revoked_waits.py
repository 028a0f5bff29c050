"""What waits at a broker for messages ends with the right to them; nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from skylarkmq.client import Credentials
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.support.broker_life import ROOT
from tests.support.broker_lives import TOPIC, BrokerLives, disk_with_accounts
from tests.support.broker_machine import Peer
from tests.support.delivery_history import DeliveryHistory
from tests.support.heartbeats import consumer_data, heartbeat
from tests.support.raw_client import pull_fields

READER: Final = Credentials("waiting-reader", "secret-of-reader")
OTHER: Final = Credentials("another-reader", "secret-of-other")
GROUP: Final = "billing"
RIGHTS: Final = f"topicPerms: [{TOPIC}=SUB, more=SUB], groupPerms: [{GROUP}=SUB]"
ACCOUNTS: Final = "\n".join(
    [
        "globalWhiteRemoteAddresses: []",
        "accounts:",
        f"- {{accessKey: {ROOT.access_key}, secretKey: {ROOT.secret_key}, admin: true}}",
        f"- {{accessKey: {READER.access_key}, secretKey: {READER.secret_key}, {RIGHTS}}}",
        f"- {{accessKey: {OTHER.access_key}, secretKey: {OTHER.secret_key}, {RIGHTS}}}",
    ]
)
POP: Final = {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "4", "initMode": "0",
    "invisibleTime": "60000", "pollTime": "60000", "bornTime": "0",
}  # fmt: skip
WAITS: Final = {
    RequestCode.PULL_MESSAGE: {
        **pull_fields(TOPIC, group=GROUP),
        "sysFlag": "6",
        "suspendTimeoutMillis": "60000",
    },
    RequestCode.POP_MESSAGE: POP,
    RequestCode.NOTIFICATION: POP,
}
Change = Callable[[BrokerLives], Awaitable[object]]


async def removed(lives: BrokerLives) -> None:
    fields = {"accessKey": READER.access_key}
    await lives.call(RequestCode.DELETE_ACL_CONFIG, fields)


async def changed(lives: BrokerLives, account: Credentials = READER, **members: str) -> None:
    fields = {"accessKey": account.access_key, "secretKey": account.secret_key, **members}
    await lives.call(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)


async def another_secret(lives: BrokerLives) -> None:
    await changed(lives, secretKey="a-newer-secret")


async def no_topic(lives: BrokerLives) -> None:
    await changed(lives, topicPerms="more=SUB")


async def no_group(lives: BrokerLives) -> None:
    await changed(lives, groupPerms="another=SUB")


async def white(lives: BrokerLives, patterns: str) -> None:
    fields = {"globalWhiteAddrs": patterns}
    await lives.call(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields)


@pytest.fixture
async def lives() -> BrokerLives:
    made = BrokerLives(DeliveryHistory())
    await made.boot(disk_with_accounts(ACCOUNTS))
    await made.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=json.dumps({"groupName": GROUP, "retryMaxTimes": 16}).encode(),
    )
    return made


async def join(lives: BrokerLives, peer: Peer) -> None:
    body = heartbeat("192.0.2.9@1", consumer_data(GROUP))
    answer = await lives.ask(peer, RequestCode.HEART_BEAT, {}, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def answered(lives: BrokerLives, peer: Peer, opaque: int) -> RemotingCommand | None:
    """The answer that a request has got by now."""
    await lives.pump(1.0)
    peer.read()
    return peer.answers.get(opaque)


@pytest.mark.parametrize("code", WAITS, ids=lambda code: code.name)
@pytest.mark.parametrize("change", [removed, another_secret, no_topic, no_group])
async def test_it_ends_with_the_account_or_its_right(
    lives: BrokerLives, code: RequestCode, change: Change
) -> None:
    peer, other = lives.life.connect(READER), lives.life.connect(OTHER)
    waits, others = peer.send(code, WAITS[code]), other.send(code, WAITS[code])
    assert await answered(lives, peer, waits) is None
    await change(lives)
    await lives.send("b0")
    assert await answered(lives, peer, waits) is None
    assert peer.connection.close_reason == "revoked" and peer.transport.ended == "close"
    answer = await answered(lives, other, others)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert not lives.life.parts.holding.count and not lives.life.parts.pop.receiver.waiting_count


async def test_a_membership_ends(lives: BrokerLives) -> None:
    peer, consumers = lives.life.connect(READER), lives.life.parts.consumers
    await join(lives, peer)
    assert peer.connection in consumers.clients(GROUP)
    await removed(lives)
    await lives.pump(0.2)
    assert not consumers.clients(GROUP)


async def test_more_rights_change_nothing(lives: BrokerLives) -> None:
    peer = lives.life.connect(READER)
    code = RequestCode.PULL_MESSAGE
    waits = peer.send(code, WAITS[code])
    await changed(lives, topicPerms=f"{TOPIC}=PUB|SUB,more=SUB,new=PUB")
    await white(lives, "198.51.100.*")
    await lives.send("b0")
    answer = await answered(lives, peer, waits)
    assert answer is not None and b"b0" in answer.body


async def test_it_ends_with_the_white_list(lives: BrokerLives) -> None:
    await white(lives, "192.0.2.*")
    peer, other = lives.life.connect(READER), lives.life.connect(OTHER)
    peer.sign = None
    code = RequestCode.PULL_MESSAGE
    waits = peer.send(code, WAITS[code])
    await white(lives, "192.0.2.*,198.51.100.7")
    others = other.send(code, WAITS[code])
    assert await answered(lives, peer, waits) is None
    await white(lives, "198.51.100.7")
    await lives.send("b0", peer=lives.life.connect(ROOT))
    assert await answered(lives, peer, waits) is None
    assert peer.connection.closed
    # Its signature was not looked at, but it used the address.
    assert await answered(lives, other, others) is None


async def test_who_takes_a_right_from_itself_is_answered(lives: BrokerLives) -> None:
    """`lives.peer` is the administrator's."""
    admin = lives.life.peer
    await changed(lives, OTHER, admin="true")
    await changed(lives, ROOT, admin="false")
    await lives.pump(0.2)
    assert admin.connection.close_reason == "revoked"


async def test_a_peer_that_does_not_read_gets_nothing_more(lives: BrokerLives) -> None:
    peer = lives.life.connect(READER)
    peer.transport.keeps = True
    code = RequestCode.PULL_MESSAGE
    peer.send(code, WAITS[code])
    await removed(lives)
    await lives.pump(0.2)
    written = len(peer.transport.writes)
    await lives.send("b0")
    await lives.pump(1.0)
    assert len(peer.transport.writes) == written
    lives.clock.advance(130.0)
    lives.life.server._drop_idle()
    assert peer.transport.ended == "abort", "it does not take its last answers"
