"""A broker that dies and lives again on what is left, while its clients live on.

    lives = BrokerLives(history)
    await lives.boot(CrashDisk())
    client = lives.client("consumer")           # the SDK's, on the same clock and in the same loop
    await lives.send("M1")                      # acknowledged, and in the history
    disk = lives.power_cut()                    # what was not synced is gone
    await lives.boot(disk, keeps="durable")     # the client connects again by itself

One clock moves all of them. Each life has a disk of its own, so a dead one changes nothing any
more. Requests go through the broker's real connections; the sockets alone are not there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from skylarkmq.client import Client, Credentials
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message
from tests.support.broker_life import ACCOUNTS_FILE, NAME, Life
from tests.support.broker_machine import Peer
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.delivery_history import DeliveryHistory
from tests.support.fake_cluster import NAMESRV
from tests.support.inline_threads import use_inline_threads
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_network import MemoryNetwork
from tests.support.raw_client import send_fields
from tests.support.scripted_stream import ScriptedNetwork

TOPIC: Final = "orders"
QUEUE: Final = (TOPIC, 0)
STEP_S: Final = 0.5
TURNS: Final = 8

T = TypeVar("T")


class BrokerLives:
    """A broker name, what stands for it now, and everybody around it."""

    def __init__(self, history: DeliveryHistory, *, sync: bool = False) -> None:
        use_inline_threads()
        self.history = history
        self.clock = ManualClock()
        self.address = f"{NAME}:10911"
        self._sync = sync
        self._scripted = ScriptedNetwork()
        self._scripted.listen(NAMESRV).on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.network = MemoryNetwork(self._scripted)
        self._life: Life | None = None
        self._topics: dict[str, TopicConfig] = {}
        self._seed = 0
        self._posted: dict[int, str] = {}  # sends without an answer yet, by their numbers
        self.standing: CrashDisk | None = None
        """The disk of a machine that stands still, as `crash_at` has it."""

    @property
    def life(self) -> Life:
        """The present one."""
        assert self._life is not None, "the broker does not live"
        return self._life

    # Lives

    async def boot(
        self, disk: CrashDisk, *, keeps: str = "nothing", address: str = "", attributes: str = ""
    ) -> None:
        """Begin a life; clients find it at once, and its topic is there.

        Args:
            keeps: what its log has to have, see `DeliveryHistory.log_became`.
            address: another one than before, as of a slave that became the master.
            attributes: of the topic.
        """
        life = self._life = Life(disk, self.clock, sync=self._sync)
        self.address = address or self.address
        await self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(attributes))
        self.history.log_became({QUEUE: self.end}, keeps=keeps)
        self.network.serve(self.address, life.accept)

    @property
    def end(self) -> int:
        """The offset after the queue's last message."""
        return self.life.parts.store.max_offset(*QUEUE)

    def physical_offset(self, offset: int) -> int:
        """Return where in the log a message of the queue begins."""
        found = self.life.parts.store.get_message(*QUEUE, offset, 1)
        return decode_message(b"".join(found.views)).physical_offset

    def power_cut(self) -> CrashDisk:
        """End this life with what was not synced; what is left."""
        return self._die(Keep.NONE)

    def kill(self) -> CrashDisk:
        """End the process alone."""
        return self._die(Keep.KILL)

    def _die(self, keep: Keep) -> CrashDisk:
        return self._forget_life().disk.crash(CrashState(keep), Random(1))

    def _forget_life(self) -> Life:
        life, self._life = self.life, None
        self.network.close(self.address)
        self._posted.clear()
        life.end()
        return life

    def crash_at(self, step: int) -> None:
        """Let the machine stand still in front of its n-th step of the disk from now on."""
        steps = itertools.count(1)
        self.standing = None

        def before_step(_op: str, _path: Path) -> None:
            if self.standing is None and next(steps) == step:
                self._stand_still()

        self.life.disk.before_step = before_step

    def _stand_still(self) -> None:
        life = self.life
        self.standing = life.disk.snapshot()
        self.network.silence(self.address)
        # What is here was said before; what comes on top of it nobody hears.
        life.peer.read()
        self._note_answers()
        life.peer.transport.write = lambda data: None

    def crashed(self) -> CrashDisk:
        """End the life of the machine that stands still, or does so now; what its disk was."""
        if self.standing is None:
            self._stand_still()
        self._forget_life()
        standing, self.standing = self.standing, None
        assert standing is not None
        return standing

    def post(self, message: str) -> None:
        """Send a message and go on; its acknowledgement may come, or never."""
        self.history.sent(message)
        fields = send_fields(TOPIC, 0, encode_properties({"UNIQ_KEY": message}))
        opaque = self.life.peer.send(RequestCode.SEND_MESSAGE_V2, fields, message.encode())
        self._posted[opaque] = message

    def _note_answers(self) -> None:
        answers = self.life.peer.answers
        for opaque in [opaque for opaque in self._posted if opaque in answers]:
            message, answer = self._posted.pop(opaque), answers.pop(opaque)
            if answer.code == ResponseCode.SUCCESS:
                offset = int(answer.ext_fields["queueOffset"])
                self.history.acked(message, QUEUE, offset, durable=self._sync)

    async def stop(self) -> CrashDisk:
        """Stop cleanly; the disk as it is then, at a root of its own."""
        self.network.close(self.address)
        await self._stop(self.life)
        disk = self.life.disk
        self.life.end()
        self._life = None
        return disk.crash(CrashState(Keep.KILL), Random(1))

    async def stopped_slave(self, copy: CrashDisk) -> CrashDisk:
        """Return the disk of a slave that has come as far as `copy`, and was stopped cleanly.

        A slave takes offsets of groups when it has their messages; what is consumed by pop it
        does not learn.
        """
        life = Life(copy.crash(CrashState(Keep.KILL), Random(1)), self.clock, sync=self._sync)
        await self._stop(life)
        life.end()
        folder = life.parts.store.paths.pop
        if life.disk.exists(folder):
            for name in life.disk.list(folder):
                life.disk.unlink(folder / name)
            life.disk.sync_folder(folder)
        return life.disk.crash(CrashState(Keep.KILL), Random(1))

    async def _stop(self, life: Life) -> None:
        stopping = asyncio.ensure_future(life.stop())
        for _ in range(400):
            await self._turn(life)
            if stopping.done():
                break
            self.clock.advance(STEP_S)
        await stopping

    # Time

    async def pump(self, seconds: float) -> None:
        """Let time pass, all threads and clients doing what they have to."""
        for _ in range(max(1, round(seconds / STEP_S))):
            self.clock.advance(STEP_S)
            await self._turn(self._life)

    async def _turn(self, life: Life | None) -> None:
        for _ in range(2):
            await settle(TURNS)
            if life is not None:
                life.work()
        await settle(TURNS)
        if self._posted and life is not None and life is self._life:
            life.peer.read()
            self._note_answers()

    async def wait(self, work: Awaitable[T]) -> T:
        """Let `work` end, time passing."""
        task = asyncio.ensure_future(work)
        for _ in range(400):
            await self._turn(self._life)
            if task.done():
                return task.result()
            self.clock.advance(STEP_S)
        raise AssertionError("still not done after 100 s of the clock")

    def hold_syncs(self) -> None:
        """The disk is slow: from now on nothing of the log becomes durable in this life."""
        self.life.stalled.add(self.life.workers.flush)

    async def keep_tables(self) -> None:
        """Let positions be committed, and the tables be written."""
        await self.pump(12.0)
        self.history.synced()

    # Clients

    def client(self, name: str, account: Credentials | None = None) -> Client:
        """Return a client of the SDK with a network of its own."""
        self._seed += 1
        return Client(
            NAMESRV, network=self.network.of(name), clock=self.clock, random=Random(self._seed),
            client_ip="192.0.2.1", instance_name=name,
            credentials=account,
        )  # fmt: skip

    async def send(self, *messages: str, peer: Peer | None = None) -> None:
        """Send messages to the queue, one after the other; their texts are their unique keys.

        Args:
            peer: who sends, in place of an administrator.
        """
        for message in messages:
            text = encode_properties({"UNIQ_KEY": message})
            self.history.sent(message)
            fields = send_fields(TOPIC, 0, text)
            sender, code = peer or self.life.peer, RequestCode.SEND_MESSAGE_V2
            answer = await self.ask(sender, code, fields, message.encode())
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            offset = int(answer.ext_fields["queueOffset"])
            self.history.acked(message, QUEUE, offset, durable=self._sync)

    async def call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Ask the broker as a producer or an administrator; it has to succeed."""
        answer = await self.ask(self.life.peer, code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def ask(
        self, peer: Peer, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer to a request of some peer."""
        opaque = peer.send(code, fields, body)
        for _ in range(100):
            await self._turn(self.life)
            peer.read()
            if opaque in peer.answers:
                return peer.answers.pop(opaque)
            self.clock.advance(STEP_S)
        raise AssertionError(f"no answer to request {code}")

    async def ask_about_the_queue(self, group: str) -> None:
        """What a command line or a member that joins asks: where it begins, ends, and a group."""
        queue = {"topic": TOPIC, "queueId": "0"}
        await self.call(RequestCode.GET_MIN_OFFSET, queue)
        await self.call(RequestCode.GET_MAX_OFFSET, queue)
        fields = {"consumerGroup": group, **queue}
        await self.ask(self.life.peer, RequestCode.QUERY_CONSUMER_OFFSET, fields)

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        """As a name server: what it knew last of a broker that is away."""
        if self._life is not None:
            self._topics = dict(self._life.parts.topics.table)
        topic = self._topics.get(request.ext_fields["topic"])
        if topic is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no route")
        broker = BrokerData(
            broker_addrs={0: self.address}, broker_name=NAME, cluster="DefaultCluster"
        )
        queues = QueueData(
            broker_name=NAME,
            perm=topic.perm,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
        )
        route = TopicRouteData(broker_datas=[broker], queue_datas=[queues])
        return request.reply(0, body=encode_body(route))


def topic_fields(attributes: str = "") -> dict[str, str]:
    """The request that makes the topic, of one queue."""
    return {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": attributes,
    }  # fmt: skip


def disk_with_accounts(text: str) -> CrashDisk:
    """Return an empty disk of a broker with access control, and its file of accounts."""
    disk = CrashDisk()
    path = disk.root / ACCOUNTS_FILE
    disk.make_folder(path.parent)
    disk.sync_folder(disk.root)
    disk.replace_secret(path, text.encode())
    return disk.crash(CrashState(Keep.ALL), Random(1))


def to_folder(disk: CrashDisk, folder: Path) -> None:
    """Write all that is on a disk into a folder, for tools that work on folders."""
    for name, data in disk.contents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def from_folder(folder: Path) -> CrashDisk:
    """Return a disk with what a folder holds, all of it durable."""
    disk = CrashDisk()
    for path in sorted(folder.rglob("*")):
        target = disk.root / path.relative_to(folder)
        if path.is_dir():
            disk.make_folder(target)
            continue
        disk.make_folder(target.parent)
        file = disk.open(target, create=True)
        if data := path.read_bytes():
            file.pwrite(data, 0)
            file.datasync()
        file.close()
        disk.sync_folder(target.parent)
    return disk.crash(CrashState(Keep.KILL), Random(1))
