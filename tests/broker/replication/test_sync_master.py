"""What clients of a SYNC_MASTER are told, over the wire, for every kind of send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.batch import encode_batch
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from tests.broker.replication.test_ha_live import RawSlave
from tests.support.live_broker import live_broker
from tests.support.patience import until
from tests.support.raw_client import RawClient, long_names, send_fields

pytestmark = pytest.mark.timing

SEND, SEND_V1, SEND_BACK, END_TRANSACTION, BATCH = 310, 10, 36, 37, 320
NEVER_MS = 3_600_000


class MuteSlave(RawSlave):
    """Takes everything, and confirms nothing after its first report."""

    def data_received(self, data: bytes) -> None:
        for part in self._decoder.feed(data):
            self.data += part.data


@asynccontextmanager
async def client_of(
    root: Path, **keys: object
) -> AsyncIterator[tuple[BrokerController, RawClient]]:
    async with live_broker(root, broker_role="SYNC_MASTER", **keys) as broker:
        client = await RawClient.open(broker.listen_address)
        try:
            yield broker, client
        finally:
            await client.close()


async def codes_of_sends(client: RawClient) -> dict[str, int]:
    """Send in every form; return what was answered. All are stored, whatever that is."""
    two = encode_batch([Message("T", b"b0"), Message("T", b"b1")])
    half = send_fields("T", 0, "TRAN_MSG\x01true\x02PGROUP\x01pg", f="4")
    answers = {
        "new topic": await client.call(SEND, send_fields("T"), b"x"),
        "v2": await client.call(SEND, send_fields("T"), b"x"),
        "rocketmq": await client.call(
            SEND, send_fields("T"), b"x", serialize_type=SerializeType.ROCKETMQ
        ),
        "v1": await client.call(SEND_V1, long_names(send_fields("T")), b"x"),
        "batch": await client.call(BATCH, send_fields("T", m="true"), two),
        "delay": await client.call(SEND, send_fields("T", 0, "DELAY\x0118"), b"x"),
        "half": await client.call(SEND, half, b"x"),
    }
    opaques = [client.send(SEND, send_fields("T"), b"%d" % number) for number in range(50)]
    pipelined = [await client.answer(opaque) for opaque in opaques]
    assert len({answer.code for answer in pipelined}) == 1
    answers["pipelined"] = pipelined[0]
    place = int(answers["half"].ext_fields["msgId"][-16:], 16)
    answers["end of a transaction"] = await client.call(
        END_TRANSACTION,
        {
            "producerGroup": "pg",
            "tranStateTableOffset": answers["half"].ext_fields["queueOffset"],
            "commitLogOffset": str(place),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "",
        },
    )
    for form, answer in answers.items():
        assert answer.ext_fields.get("msgId") or form.startswith("end"), form
    return {form: answer.code for form, answer in answers.items()}


async def codes_without_statuses(client: RawClient) -> list[int]:
    """Send what says SUCCESS once it is stored: WAIT=false, and what a consumer sends back."""
    answer = await client.call(SEND, send_fields("T"), b"x")
    unwaited = await client.call(SEND, send_fields("T", 0, "WAIT\x01false"), b"x")
    back = {
        "offset": str(int(answer.ext_fields["msgId"][-16:], 16)),
        "group": "cg",
        "delayLevel": "0",
        "originMsgId": "",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    return [unwaited.code, (await client.call(SEND_BACK, back)).code]


async def test_without_a_slave(tmp_path: Path) -> None:
    async with client_of(tmp_path, slave_timeout=NEVER_MS) as (_, client):
        codes = await codes_of_sends(client)
        assert set(codes.values()) == {ResponseCode.SLAVE_NOT_AVAILABLE}, codes
        assert await codes_without_statuses(client) == [0, 0]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_with_a_slave(tmp_path: Path, flush: str) -> None:
    async with client_of(tmp_path, slave_timeout=NEVER_MS, flush_disk_type=flush) as (
        broker,
        client,
    ):
        slave = await RawSlave.follow(broker, 0)
        server = broker.parts.ha_server
        assert server is not None
        await until(lambda: server.slaves, "the slave")
        codes = await codes_of_sends(client)
        assert set(codes.values()) == {0}, codes
        assert await codes_without_statuses(client) == [0, 0]
        log = broker.parts.store.commit_log
        await until(lambda: slave.end == log.wrote_offset, "the copy")


async def test_with_a_slave_that_confirms_nothing(tmp_path: Path) -> None:
    async with client_of(tmp_path, slave_timeout=20) as (broker, client):
        await MuteSlave.follow(broker, 0)
        server = broker.parts.ha_server
        assert server is not None
        await until(lambda: server.slaves, "the slave")
        codes = await codes_of_sends(client)
        assert set(codes.values()) == {ResponseCode.FLUSH_SLAVE_TIMEOUT}, codes
        assert await codes_without_statuses(client) == [0, 0]


async def test_a_stop_waits_for_sends_that_wait_for_a_slave(tmp_path: Path) -> None:
    async with client_of(tmp_path, slave_timeout=NEVER_MS) as (broker, client):
        slave = await MuteSlave.follow(broker, 0)
        server = broker.parts.ha_server
        assert server is not None
        await until(lambda: server.slaves, "the slave")
        opaque = client.send(SEND, send_fields("T"), b"x")
        log = broker.parts.store.commit_log
        await until(lambda: slave.data and len(slave.data) == log.wrote_offset, "the message")
        stop = asyncio.ensure_future(broker.stop())
        await until(lambda: not broker.parts.topics.pending, "the topic")
        slave.transport.write((log.wrote_offset).to_bytes(8, "big"))
        assert (await client.answer(opaque)).code == 0
        await stop
        broker.stop = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    """The broker has stopped."""
