"""A process that runs transactions and dies at a step of one.

    python transaction_child.py <name server> <folder> <step>

The local transaction is a file `done/<id>`, which appears whole or not at all. `begun/<id>` says
which transactions there were, from before the first byte of each. With a step it kills itself at
that step of its third transaction; with the step `loop` it goes on until somebody kills it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from skylarkmq.client import Client, HalfMessage, Message, Producer, TransactionState
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe.hooks import ClientHook, SendContext
from skylarkmq.remoting.stream import AsyncioNetwork, Stream

GROUP = "bank"
TOPIC = "transfers"
STEPS = ["begin", "half-written", "half-stored", "local-done", "end-written"]
MARKS = {"half-written": b"TRAN_MSG", "end-written": b"commitOrRollback"}
ANSWER = b'"fromTransactionCheck":"true"'
"""In the answer to a question, which may come at any time on a slow machine."""
FATAL = 3
"""Which transaction it dies in."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fate(ClientHook):
    """Knows where the process is, and when it has to die."""

    def __init__(self, folder: Path, step: str) -> None:
        self.folder = folder
        self.step = step
        self.count = 0
        self.unique_id = ""

    def before_send(self, context: SendContext) -> None:
        self.count += 1
        (self.unique_id,) = context.unique_ids
        (self.folder / "begun" / self.unique_id).touch()
        self.at("begin")

    def at(self, step: str) -> None:
        if step == self.step and self.count == FATAL:
            die()


class FatefulStream:
    """Dies right behind the bytes of a step, when the kernel has them."""

    def __init__(self, stream: Stream, fate: Fate) -> None:
        self._stream = stream
        self._fate = fate

    @property
    def local_ip(self) -> str:
        return self._stream.local_ip

    @property
    def unsent_size(self) -> int:
        return self._stream.unsent_size

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        is_own = self._fate.unique_id.encode() in data and ANSWER not in data
        for step, mark in MARKS.items():
            if is_own and mark in data:
                self._fate.at(step)

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()


class FatefulNetwork:
    """The network of a process that is to die."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        return FatefulStream(await AsyncioNetwork().connect(address, receiver), self._fate)


async def not_known(half: HalfMessage) -> TransactionState:
    """Somebody asks while others are at work: it may all yet happen."""
    return TransactionState.UNKNOWN


async def main(namesrv: str, folder: Path, step: str) -> None:
    fate = Fate(folder, step)
    async with (
        Client(namesrv, network=FatefulNetwork(fate)) as client,
        Producer(client=client, group=GROUP, check=not_known) as producer,
    ):
        services_of(client).hooks.append(fate)
        while step == "loop" or fate.count < FATAL:
            for _ in range(4):
                await asyncio.sleep(0)  # what was to be written is written
            async with producer.transaction(Message(TOPIC, b"money")) as transaction:
                fate.at("half-stored")
                (folder / "done" / transaction.transaction_id).touch()
                fate.at("local-done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
