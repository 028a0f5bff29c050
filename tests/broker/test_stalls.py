"""A broker that gets no processor: what waited too long is refused, the rest is served."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from skylarkmq.broker.net.fast_failure import LATE_TICKS
from skylarkmq.protocol.codes import RequestCode
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, send_fields

SEND = RequestCode.SEND_MESSAGE_V2
STALL_S = 0.3  # longer than a tick of 0.1 s and the limit together
LIMIT_MS = 100


@pytest.mark.fault
async def test_stalls_in_a_row_refuse_what_waited_and_one_alone_does_not(tmp_path: Path) -> None:
    settings = {"waitTimeMillsInSendQueue": LIMIT_MS, "brokerFastFailureEnable": "true"}
    process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
    try:
        client = await RawClient.open(process.address)
        bodies: list[bytes] = []
        refused: list[str] = []
        for number in range(4 * LATE_TICKS):
            os.kill(process.process.pid, signal.SIGSTOP)
            opaque = client.send(SEND, send_fields("T"), b"%d" % number)
            await client.writer.drain()
            await asyncio.sleep(STALL_S)  # the time that the broker is to lose
            os.kill(process.process.pid, signal.SIGCONT)
            answer = await client.answer(opaque)
            if answer.code == 0:
                bodies.append(b"%d" % number)
            else:
                refused.append(answer.remark or "")
            if number == 0:
                assert answer.code == 0, "a pause alone refuses nobody"
        assert refused and bodies
        for remark in refused:
            assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control"), remark
            assert remark.endswith(
                f"waitTimeMillsInSendQueue={LIMIT_MS}, try again later or on another broker"
            )
        where = {"topic": "T", "queueId": "0"}
        stored = await client.call(RequestCode.GET_MAX_OFFSET, where)
        assert stored.ext_fields["offset"] == str(len(bodies))
        await client.close()
    finally:
        await process.kill()
