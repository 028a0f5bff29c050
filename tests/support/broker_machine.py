"""A whole broker driven by hand: its disk, its clock, its threads, its peers, its power switch.

    machine = BrokerMachine(sync=True, rng=rng)
    await machine.boot()
    await machine.run(40)                # sends, delays, transactions, offsets, groups, time
    point = machine.crash_point          # a moment of the run, chosen evenly over all disk steps

Requests go in as bytes through real connections; the sockets alone are not there. What the broker
owes is kept in a `Ledger`, whose copy at the crash point is the promise that a recovery is held to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from skylarkmq.broker.components import BrokerState, make_server
from skylarkmq.broker.config import BrokerConfig
from skylarkmq.broker.connection import Connection
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message
from tests.store.support import HOST, store_config
from tests.support.broker_ledger import Decision, Ledger
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import Names
from tests.support.fake_transport import Transport
from tests.support.manual_clock import START_MS, ManualClock, settle
from tests.support.raw_client import send_fields
from tests.support.workers import manual_store_workers

MEMORY_SIZE = 1 << 33
TOPIC, QUEUES = "orders", 2
PRODUCERS, CONSUMERS = "simulated-producers", ("consumers-a", "consumers-b")
LEVELS = "1s 2s 4s 8s"
STEP_S = 0.1
TURNS = 6  # of the loop, for a step: a request, a worker's result and an answer pass


class CrashPoint(NamedTuple):
    """A machine that stands still, and what it had promised by then."""

    disk: CrashDisk
    ledger: Ledger
    now_ms: int


class Peer:
    """A client without a socket."""

    def __init__(self, connection: Connection, transport: Transport) -> None:
        self.connection = connection
        self.transport = transport
        self.answers: dict[int, RemotingCommand] = {}
        self.pushes: list[RemotingCommand] = []
        self._decoder = FrameDecoder()
        self._opaque = 0

    def send(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, oneway: bool = False,
    ) -> int:  # fmt: skip
        """Write a request; its opaque."""
        self._opaque += 1
        command = RemotingCommand.request(
            code, fields or {}, body, oneway=oneway, opaque=self._opaque
        )
        self.connection.data_received(encode_command(command))
        return self._opaque

    def read(self) -> None:
        """Take what the broker has written."""
        for data in self.transport.writes:
            for frame in self._decoder.feed(bytes(data)):
                command = decode_command(frame)
                if command.is_response:
                    self.answers[command.opaque] = command
                else:
                    self.pushes.append(command)
        self.transport.writes.clear()


class BrokerMachine:
    """A broker and everything around it."""

    def __init__(
        self,
        *,
        sync: bool,
        rng: Random,
        disk: CrashDisk | None = None,
        ledger: Ledger | None = None,
        start_ms: int = START_MS,
    ) -> None:
        self.sync = sync
        self.rng = rng
        self.disk = disk or CrashDisk(rng.choice((Names.STRICT, Names.ORDERED)))
        self.ledger = ledger or Ledger()
        self.crash_point: CrashPoint | None = None
        self._start_ms = start_ms
        self._steps = 0
        self._waiting: dict[int, Callable[[RemotingCommand], None]] = {}

    # Power

    async def boot(self, *, watch: bool = True) -> None:
        """Load and start a broker from the disk as it is."""
        self.clock = ManualClock(self._start_ms)
        self.disk.now_ms = self.clock.now_ms
        self.disk.used_percent = 10
        self.workers = manual_store_workers()
        self.disk.before_step = self._before_step if watch else None
        config = self._config()
        self.state = BrokerState(config, self.disk, self.clock, self.workers.workers, MEMORY_SIZE)
        self.state.load()
        self.state.store.start()
        self.server, self.router = make_server(self.state, self.clock, HOST, Random(1))
        self.state.start_services()
        self._waiting.clear()
        self.peer = self._connect()
        self._call(RequestCode.HEART_BEAT, body=_heartbeat(), done=lambda answer: None)
        await self.pump(0.2)

    def _config(self) -> BrokerConfig:
        return BrokerConfig(
            store=store_config(
                self.disk.root,
                message_delay_level=LEVELS,
                flush_disk_type="SYNC_FLUSH" if self.sync else "ASYNC_FLUSH",
            ),
            broker_name="broker-a",
            transaction_time_out=1000,
            transaction_check_interval=2000,
        )

    def _connect(self) -> Peer:
        transport = Transport()
        connection = Connection(self.router, self.server)
        transport.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, transport))
        return Peer(connection, transport)

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        self.server.stop_reading()
        stopping = asyncio.ensure_future(self._stop())
        while not stopping.done():
            await self._turn()
            self.clock.advance(STEP_S)
        await stopping
        self.ledger.keep(self.ledger.mark())
        self._start_ms = self.clock.now_ms() + self.rng.choice((10, 3000))
        await self.boot()

    async def _stop(self) -> None:
        await self.state.topics.flush()
        self.state.holding.stop()
        self.state.housekeeping.stop()
        await self.state.stop_services()
        store = self.state.store
        store.stop_writing()
        for worker in self.workers.all():
            worker.stop()
            while worker.deliver():
                pass
        store.close()
        assert not self.disk.exists(store.paths.abort)

    def _before_step(self, _op: str, _path: Path) -> None:
        self._steps += 1
        if self.rng.random() * self._steps < 1:
            self.crash_point = CrashPoint(
                self.disk.snapshot(), deepcopy(self.ledger), self.clock.now_ms()
            )

    # Time

    async def pump(self, seconds: float) -> None:
        """Let time pass, all threads and the peer doing what they have to."""
        for _ in range(max(1, round(seconds / STEP_S))):
            self.clock.advance(STEP_S)
            await self._turn()

    async def _turn(self) -> None:
        for _ in range(2):
            await settle(TURNS)
            self.workers.run_all()
        await settle(TURNS)
        self._read()

    def _read(self) -> None:
        self.peer.read()
        for opaque in [opaque for opaque in self._waiting if opaque in self.peer.answers]:
            self._waiting.pop(opaque)(self.peer.answers.pop(opaque))
        pushes, self.peer.pushes = self.peer.pushes, []
        for push in pushes:
            if push.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._checked(push)

    def _call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, done: Callable[[RemotingCommand], None],
    ) -> None:  # fmt: skip
        self._waiting[self.peer.send(code, fields, body)] = done

    # What happens to it

    async def run(self, count: int) -> None:
        """Do `count` random things."""
        choices: list[tuple[int, Callable[[], Awaitable[None] | None]]] = [
            (3, self.send_plain),
            (5, self.send_delayed),
            (5, self.send_timed),
            (5, self.cancel),
            (6, self.send_half),
            (6, self.decide),
            (4, self.commit_offset),
            (2, self.make_group),
            (2, self.make_topic),
            (8, lambda: self.pump(self.rng.choice((0.1, 0.1, 0.5, 2.0)))),
            (3, self.settle),
            (1, self.restart),
        ]
        weights = [weight for weight, _ in choices]
        for action in self.rng.choices([action for _, action in choices], weights, k=count):
            result = action()
            if result is not None:
                await result

    async def settle(self) -> None:
        """Let the intervals of flushing and of tables pass: what was done before is durable."""
        mark = self.ledger.mark()
        await self.pump(0.6)
        self.ledger.keep(mark, offsets=False)
        if self.rng.random() < 0.5:
            await self.pump(5.5)
            self.ledger.keep(mark)

    def send_plain(self) -> None:
        """An ordinary message."""
        self._send("plain", {})

    def send_delayed(self) -> None:
        """A message of a delay level."""
        self._send("delayed", {"DELAY": str(self.rng.randrange(1, 5))})

    def send_timed(self) -> None:
        """A message that names the time itself, in one of three ways; some are long past."""
        wait_ms = self.rng.choice((-5000, 0, 700, 1500, 4000, 9000, 15_000))
        name, value = self.rng.choice(
            (
                ("TIMER_DELIVER_MS", self.clock.now_ms() + wait_ms),
                ("TIMER_DELIVER_MS", self.clock.now_ms() + wait_ms),
                ("TIMER_DELAY_MS", max(1, wait_ms)),
                ("TIMER_DELAY_SEC", max(1, wait_ms // 1000)),
            )
        )
        self._send("timed", {name: str(value)})

    def _send(self, kind: str, properties: dict[str, str]) -> None:
        entry = self.ledger.add(kind, self.clock.now_ms(), properties)
        text = encode_properties(
            {**properties, "UNIQ_KEY": f"{entry.number:032X}", "N": str(entry.number)}
        )
        queue_id = entry.number % QUEUES

        def done(answer: RemotingCommand) -> None:
            assert answer.code == ResponseCode.SUCCESS, (kind, properties, answer.remark)
            entry.acked = True
            self.ledger.touch(entry, durable=self.sync)

        fields = send_fields(TOPIC, queue_id, text)
        self._call(RequestCode.SEND_MESSAGE_V2, fields, entry.body, done=done)

    def cancel(self) -> None:
        """Take one that is pending back."""
        pending = self.ledger.cancellable(self.clock.now_ms() + 1500)
        if not pending:
            return
        entry = self.rng.choice(pending)
        due_ms = entry.due_ms()
        text = encode_properties(
            {"TIMER_DELIVER_MS": str(due_ms), "TIMER_DEL_UNIQKEY": f"{entry.number:032X}"}
        )

        def done(answer: RemotingCommand) -> None:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            entry.cancel_acked = True
            self.ledger.touch(entry, durable=self.sync)

        entry.cancelled = True
        fields = send_fields(TOPIC, entry.number % QUEUES, text)
        self._call(RequestCode.SEND_MESSAGE_V2, fields, b"cancel", done=done)

    def send_half(self) -> None:
        """The first phase of a transaction."""
        entry = self.ledger.add("half", self.clock.now_ms(), {})
        key = f"{entry.number:032X}"
        text = encode_properties(
            {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": key, "N": str(entry.number)}
        )

        def done(answer: RemotingCommand) -> None:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            _, physical_offset = decode_offset_message_id(answer.ext_fields["msgId"])
            entry.half_at = int(answer.ext_fields["queueOffset"]), physical_offset
            entry.acked = True
            self.ledger.touch(entry, durable=self.sync)

        fields = send_fields(TOPIC, entry.number % QUEUES, text)
        fields["f"] = str(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
        self._call(RequestCode.SEND_MESSAGE_V2, fields, entry.body, done=done)

    def decide(self) -> None:
        """The second phase of one that is open; sometimes the producer does not know."""
        undecided = self.ledger.undecided()
        if not undecided:
            return
        entry = self.rng.choice(undecided)
        entry.decision = self.rng.choice((Decision.COMMIT, Decision.COMMIT, Decision.ROLLBACK))
        if self.rng.random() < 0.3:
            return  # it never arrives: the broker has to ask
        self._end(entry.number, entry.decision, *entry.half_at, checked=False)

    def _checked(self, push: RemotingCommand) -> None:
        """The broker asks; the producer tells what it decided."""
        number = int(decode_message(push.body).properties["N"])
        entry = self.ledger.entries[number]
        entry.checks += 1
        if entry.decision is Decision.NONE:
            return
        fields = push.ext_fields
        place = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        self._end(number, entry.decision, *place, checked=True)

    def _end(
        self, number: int, decision: Decision, queue_offset: int, offset: int, *, checked: bool
    ) -> None:
        entry = self.ledger.entries[number]
        fields = {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(offset),
            "commitOrRollback": str(decision.value),
            "fromTransactionCheck": str(checked).lower(),
            "msgId": f"{number:032X}",
        }

        def done(answer: RemotingCommand) -> None:
            # A check may have written the half anew meanwhile, so an old place can be refused.
            if answer.code == ResponseCode.SUCCESS:
                entry.end_acked = True
                self.ledger.touch(entry, durable=self.sync)

        self._call(RequestCode.END_TRANSACTION, fields, done=done)

    def commit_offset(self) -> None:
        """A consumer's progress."""
        group, queue_id = self.rng.choice(CONSUMERS), self.rng.randrange(QUEUES)
        number = self.ledger.next_offset(group, queue_id)
        fields = {
            "consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id),
            "commitOffset": str(number),
        }  # fmt: skip

        def done(answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self.ledger.offset_committed(group, queue_id, number)

        self._call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, done=done)

    def make_group(self) -> None:
        """A group by an administrator."""
        name = f"group-{len(self.ledger.groups)}"
        body = json.dumps({"groupName": name, "retryMaxTimes": 3}).encode()
        self._call(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body,
            done=lambda answer: self.ledger.made(self.ledger.groups, name, answer),
        )  # fmt: skip

    def make_topic(self) -> None:
        """A topic by an administrator."""
        name = f"topic-{len(self.ledger.topics)}"
        fields = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        self._call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, fields,
            done=lambda answer: self.ledger.made(self.ledger.topics, name, answer),
        )  # fmt: skip

    def messages(self, topic: str, queues: int) -> list[Any]:
        """All visible messages of a topic, queue by queue."""
        found: list[Any] = []
        store = self.state.store
        for queue_id in range(queues):
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get_message(topic, queue_id, offset, 32)
                assert result.count, f"{topic}-{queue_id} at {offset}: {result.status}"
                data, position = b"".join(result.views), 0
                while position < len(data):
                    message = decode_message(data, position)
                    found.append(message)
                    position += message.store_size
                offset = result.next_begin_offset
        return found

    def close(self) -> None:
        """Forget the peers; nothing is stopped."""
        with suppress(Exception):
            self.peer.connection.connection_lost(None)


def _heartbeat() -> bytes:
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [],
        }
        for group in CONSUMERS
    ]
    body = {
        "clientID": "192.0.2.9@simulated",
        "consumerDataSet": consumers,
        "producerDataSet": [{"groupName": PRODUCERS}],
    }
    return json.dumps(body).encode()
