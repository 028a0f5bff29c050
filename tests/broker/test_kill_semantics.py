"""kill -9 under load takes no acknowledged delay, transaction, cancel or group (fault test S1)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message, decode_messages
from tests.support.amounts import slow
from tests.support.broker_ledger import Decision, Entry, Ledger
from tests.support.broker_process import BrokerProcess
from tests.support.heartbeats import heartbeat
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient, pull_fields, send_fields

TOPIC, QUEUES = "orders", 2
PRODUCERS = "killed-producers"
LOOK_AGAIN_S = 0.2  # another process works, and says nothing
ACKS_MIN, ACKS_MAX = 60, 400  # acknowledgements of a life
SETTINGS: dict[str, object] = {
    "messageDelayLevel": "1s 2s 4s 8s",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 10_000,  # a busy machine answers late, and may be asked often
    "timerPrecisionMs": 100,
}


class Application:
    """Producers of every kind, each on a connection of its own, until the broker is gone."""

    def __init__(self, rng: Random) -> None:
        self.ledger = Ledger()
        self.rng = rng
        self.acks = 0
        self._noted = asyncio.Event()
        self._address = ("", 0)
        self._lives = itertools.count()

    async def live(self, address: tuple[str, int], *, sending: bool = True) -> None:
        """Work until the connection ends."""
        self._address = address
        jobs = [self._answer_checks]
        if sending:
            jobs += [self._send_delayed, self._send_timed, self._transact, self._make_groups]
        await asyncio.gather(*(self._until_the_end(job) for job in jobs))

    async def acked(self, count: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = self.acks + count
        while self.acks < wanted:
            self._noted.clear()
            await self._noted.wait()

    async def _until_the_end(self, job: Callable[[RawClient], Awaitable[None]]) -> None:
        try:
            client = await RawClient.open(self._address)
        except ConnectionError:
            return
        try:
            await job(client)
        except (ConnectionError, TimeoutError):
            return
        finally:
            await client.close()

    async def _send_delayed(self, client: RawClient) -> None:
        while True:
            await self._send(client, "delayed", {"DELAY": str(self.rng.choice((1, 2)))})

    async def _send_timed(self, client: RawClient) -> None:
        while True:
            wait_ms = self.rng.choice((-1000, 300, 800, 2500))
            due_ms = int(time.time() * 1000) + wait_ms
            entry = await self._send(client, "timed", {"TIMER_DELIVER_MS": str(due_ms)})
            if wait_ms == 2500 and self.rng.random() < 0.5:
                await self._cancel(client, entry)

    async def _send(self, client: RawClient, kind: str, properties: dict[str, str]) -> Entry:
        entry = self.ledger.add(kind, int(time.time() * 1000), properties)
        named = {"UNIQ_KEY": f"{entry.number:032X}", "N": str(entry.number)}
        fields = send_fields(TOPIC, entry.number % QUEUES, encode_properties(properties | named))
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, entry.body)
        assert answer.code == ResponseCode.SUCCESS, (properties, answer.remark)
        entry.acked = True
        self._note(entry)
        return entry

    async def _cancel(self, client: RawClient, entry: Entry) -> None:
        entry.cancelled = True
        text = encode_properties(
            {
                "TIMER_DELIVER_MS": entry.properties["TIMER_DELIVER_MS"],
                "TIMER_DEL_UNIQKEY": f"{entry.number:032X}",
            }
        )
        fields = send_fields(TOPIC, entry.number % QUEUES, text)
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"cancel")
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if time.time() * 1000 < entry.due_ms() - 1000:  # a late one promises nothing
            entry.cancel_acked = True
            self._note(entry)

    async def _transact(self, client: RawClient) -> None:
        while True:
            entry = self.ledger.add("half", int(time.time() * 1000), {})
            named = {"UNIQ_KEY": f"{entry.number:032X}", "N": str(entry.number)}
            text = encode_properties({"TRAN_MSG": "true", "PGROUP": PRODUCERS, **named})
            fields = send_fields(TOPIC, entry.number % QUEUES, text)
            fields["f"] = str(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
            fields["g"] = str(entry.sent_ms)  # an old one is given up after a single question
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, entry.body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            _, physical_offset = decode_offset_message_id(answer.ext_fields["msgId"])
            entry.half_at = int(answer.ext_fields["queueOffset"]), physical_offset
            entry.acked = True
            self._note(entry)
            if self.rng.random() < 0.1:
                continue  # for ever undecided
            entry.decision = self.rng.choice((Decision.COMMIT, Decision.ROLLBACK))
            if self.rng.random() < 0.7:
                await self._end(client, entry, *entry.half_at, checked=False)

    async def _end(
        self, client: RawClient, entry: Entry, queue_offset: int, offset: int, *, checked: bool
    ) -> None:
        fields = {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(offset),
            "commitOrRollback": str(entry.decision.value),
            "fromTransactionCheck": str(checked).lower(),
            "msgId": f"{entry.number:032X}",
        }
        answer = await client.call(RequestCode.END_TRANSACTION, fields)
        if answer.code == ResponseCode.SUCCESS:
            entry.end_acked = True
            self._note(entry)

    async def _answer_checks(self, client: RawClient) -> None:
        body = heartbeat(f"192.0.2.1@{next(self._lives)}", producers=[PRODUCERS])
        await client.call(RequestCode.HEART_BEAT, {}, body)
        while True:
            try:
                push = await client.push()
            except TimeoutError:
                continue  # nobody asks
            if push.code == RequestCode.CHECK_TRANSACTION_STATE:
                await self._checked(client, push)

    async def _checked(self, client: RawClient, push: RemotingCommand) -> None:
        entry = self.ledger.entries[int(decode_message(push.body).properties["N"])]
        entry.checks += 1
        if entry.decision is not Decision.NONE:
            queue_offset = int(push.ext_fields["tranStateTableOffset"])
            offset = int(push.ext_fields["commitLogOffset"])
            await self._end(client, entry, queue_offset, offset, checked=True)

    async def _make_groups(self, client: RawClient) -> None:
        while True:
            name = f"group-{len(self.ledger.groups)}"
            body = json.dumps({"groupName": name}).encode()
            answer = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
            self.ledger.made(self.ledger.groups, name, answer)
            self._count()

    def _note(self, entry: Entry) -> None:
        self.ledger.touch(entry, durable=True)
        self._count()

    def _count(self) -> None:
        self.acks += 1
        self._noted.set()


async def messages(address: tuple[str, int]) -> list[MessageExt]:
    """Everything in the topic."""
    client = await RawClient.open(address)
    found: list[MessageExt] = []
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            fields = pull_fields(TOPIC, queue_id, offset, group="looking")
            answer = await client.call(RequestCode.PULL_MESSAGE, fields)
            if answer.code != ResponseCode.SUCCESS:
                break
            found += decode_messages(answer.body)
            offset = int(answer.ext_fields["nextBeginOffset"])
    await client.close()
    return found


async def all_came(address: tuple[str, int], ledger: Ledger) -> None:
    """Return when nothing is missing any more, and everything undecided was asked about."""
    while True:
        try:
            seen = ledger.check_messages(await messages(address), killed=True)
            missing = [entry for entry in ledger.undecided() if not entry.checks]
            if not missing:
                break
        except AssertionError as error:
            if not str(error).startswith(("I1", "I9")) or " times" in str(error):
                raise
        await asyncio.sleep(LOOK_AGAIN_S)
    for kind in ("delayed", "timed", "cancelled", "commit", "rollback", "none"):
        assert seen[kind], f"no {kind} message was ever acknowledged: {seen}"


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        slow("SYNC_FLUSH", 2),
        slow("ASYNC_FLUSH", 2),
        pytest.param("SYNC_FLUSH", 12, marks=pytest.mark.fault),
        pytest.param("ASYNC_FLUSH", 12, marks=pytest.mark.fault),
    ],
)
async def test_kills_under_load_keep_what_was_acknowledged(
    tmp_path: Path, mode: str, kills: int
) -> None:
    rng = Random(int(os.environ.get("SKYLARKMQ_SEED", "1")))
    application = Application(rng)
    settings = {**SETTINGS, "flushDiskType": mode}
    for _ in range(kills):
        process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
        living = asyncio.ensure_future(application.live(process.address))
        try:
            async with asyncio.timeout(LIMIT_S):
                await application.acked(rng.randrange(ACKS_MIN, ACKS_MAX))
        finally:
            await process.kill()
            await living
    process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
    living = asyncio.ensure_future(application.live(process.address, sending=False))
    try:
        async with asyncio.timeout(LIMIT_S):
            await all_came(process.address, application.ledger)
        table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_bytes())
        assert application.ledger.groups.keys() <= table["subscriptionGroupTable"].keys(), "I8"
    finally:
        await process.kill()
        await living
