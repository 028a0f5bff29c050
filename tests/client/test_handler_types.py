"""Handlers as the pages write them, for the type checkers: mypy and pyright take them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from collections.abc import Sequence
from datetime import timedelta
from signal import SIGINT, SIGTERM

from skylarkmq.client import Client, Consumer, Producer, ReceivedMessage, sync

async def one(message: ReceivedMessage) -> None:
    await message.ack()
    await message.nack(delay=timedelta(seconds=5))
    await message.nack(delay=5)

async def batch(messages: list[ReceivedMessage]) -> None: ...

async def sequence(messages: Sequence[ReceivedMessage]) -> None: ...

def blocking(messages: list[sync.ReceivedMessage]) -> None:
    messages[0].ack()

async def main(consumer: Consumer, blocks: sync.Consumer) -> None:
    await consumer.run(one, stop_on=(SIGINT, SIGTERM), stop_timeout=timedelta(seconds=5))
    await consumer.run(batch, max_batch=10)
    await consumer.run(sequence, max_batch=10)
    blocks.run(blocking, max_batch=10, stop_on={SIGTERM})
    Client(start_timeout=timedelta(minutes=1), request_timeout=2)
    Producer(send_timeout=timedelta(seconds=2))
"""
FASTSTREAM = """
from datetime import timedelta

from skylarkmq.integrations.faststream import RocketMQBroker

async def main(broker: RocketMQBroker) -> None:
    RocketMQBroker(graceful_timeout=timedelta(seconds=5))
    await broker.ping(timedelta(seconds=1))
    await broker.request("tea", "orders", timeout=timedelta(seconds=1))
    await broker.publisher("orders").request("tea", timeout=timedelta(seconds=1))
    await broker.subscriber("orders").get_one(timeout=timedelta(seconds=1))
"""
UNAWAITED = """
from skylarkmq.client import ReceivedMessage

async def handle(message: ReceivedMessage) -> None:
    message.ack()
"""


@pytest.mark.slow
def test_mypy_takes_the_handlers_and_refuses_a_call_without_await(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(PROGRAM)
    wrong.write_text(UNAWAITED)
    (tmp_path / "stream.py").write_text(FASTSTREAM)
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, tmp_path.iterdir())]
    seen = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    errors = [line for line in seen.splitlines() if "error:" in line]
    assert len(errors) == 1, seen
    assert "wrong.py:5" in errors[0]
    assert "[unused-coroutine]" in errors[0]
