"""Sending: codes 10, 310 and 320.

All sends that one turn of the loop reads, from all connections, are laid out in one store batch and
written once: where 64 connections have one send each under way, a commit for each of them would
cost as much again as the rest. The turn's end commits, or what must find the messages stored. A
sender that waits is answered when the batch is stored, and with replicas when they have it, too;
one that said WAIT=false, at once. The first messages of a topic made on demand are stored at once
too, but acknowledged only when `topics.json` is on the disk, so an acknowledged topic survives a
power cut.

    kernel         plain sends that follow each other, also of batches, in one call, to queues that
                   have a lane: a message was stored there since the topic was made or changed.
                   Those that came alone in a read wait for others of their turn
    fast path      header with short names, known ordinary topic, no delay, no batch: small structs,
                   templates, no dict
    slow path      everything else, and whatever the fast path is not sure of
    other          of another protocol (`put`): the slow path without a frame

All give the same records and answers; tests hold that. The kernel takes nothing for a topic with a
deduplication window; the other paths look whether such a message is stored already
(`store/deduplication.py`).

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from skylarkmq.broker.base.stats import BrokerStats, TrafficIn
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.fast_failure import OVERLOAD, refusal
from skylarkmq.broker.processor.recall import handle_of
from skylarkmq.broker.processor.send_answers import Callback, SendAnswers
from skylarkmq.broker.processor.send_checks import SendChecks, Target, check_busy, level_of
from skylarkmq.broker.processor.send_messages import (
    BatchHead,
    BatchPart,
    SendMessages,
    take_wait,
)
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.kernel import compiled as kernel
from skylarkmq.protocol import header_json, header_msgpack, header_rocketmq
from skylarkmq.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from skylarkmq.protocol.command import CODECS, ONEWAY_FLAG, RemotingCommand
from skylarkmq.protocol.compression import looks_compressed
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_GROUP_TOPIC_PREFIX,
    RMQ_SYS_TRANS_HALF_TOPIC,
    MessageSysFlag,
    transaction_type,
)
from skylarkmq.protocol.frame import PREFIX_SIZE, RawFrame, SerializeType
from skylarkmq.protocol.headers.fields import java_int, java_long
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, decode_send_header
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    TAGS_AND_SEPARATOR,
    find_property,
)
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.protocol.topic_attributes import has_priorities
from skylarkmq.store.deduplication import digest_of
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.results import MessageInner

# How a send's header begins, of a message and of a batch: codes 310 and 320 as Java and we write
# them.
_BEGINS: Final = {
    int(SerializeType.JSON): (b'{"code":310,', b'{"code":320,'),
    int(SerializeType.MSGPACK): (b"\x97\xcd\x01\x36", b"\x97\xcd\x01\x40"),
    int(SerializeType.ROCKETMQ): (b"\x01\x36", b"\x01\x40"),
}
# What sends a message down the slow path. Looked for in text: `in` on bytes costs ten times as
# much, because it first tries the right side as a number, and fails by an exception.
_DELAY = "DELAY\x01"
_TRANSACTION = "TRAN_MSG\x01"
_TIMER = "TIMER_"
_RECEIPT = "POP_CK\x01"
_CLUSTER = "CLUSTER\x01"
TURN_SIZE_MAX = 1 << 20
"""Bytes of records that wait for the end of a turn; more are committed after the read."""
_LOOKED_AT = MessageSysFlag.TRANSACTION_MASK | MessageSysFlag.COMPRESSED_FLAG


PlainCommand = header_json.SendCommand | header_msgpack.SendCommand | header_rocketmq.SendCommand
_DECODE: Final[dict[int, Callable[[bytes], PlainCommand | None]]] = {
    kind: codec.decode_send_v2_fast for kind, codec in CODECS.items()
}
SendLane = tuple[ConsumeQueue, TrafficIn]
"""Where plain sends go, and what counts them."""


class Sender(NamedTuple):
    """Who sends a message."""

    host: bytes  # packed
    address: str  # host:port
    version: int = CURRENT_VERSION  # of the client


class Placed(NamedTuple):
    """Where a message lies when its batch is stored."""

    target: Target
    inner: MessageInner  # as it is stored: what waits is in another topic than its target's
    physical_offset: int
    queue_id: int  # of the target
    queue_offset: int  # of the queue in which it is stored


class SendProcessor:
    """Stores the messages of sends. Loop thread.

    Its size is one idea: on whatever path a send comes, it goes into the one batch of its turn.

    Attributes:
        store_host: packed address of the broker, which goes into every record.
        give_back: of the router: handles a send that came alone, and that the kernel does not take.
    """

    give_back: Callable[[Connection, RawFrame], None]

    codes = frozenset(
        int(code)
        for code in (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
        )
    )

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        checks: SendChecks,
        stats: BrokerStats,
        store_host: bytes,
        on_half: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the processor.

        Args:
            on_half: called before the first half of a transaction is stored, and each one after.
        """
        self._config = config
        self._store = store
        self._topics = topics
        self._checks = checks
        self._stats = stats
        self._deduplication = store.deduplication
        self._windows = store.deduplication.windows
        self.store_host = store_host
        self._max_body_size = config.store.max_message_size
        self._cluster_pair = b"\x02" + _CLUSTER.encode() + config.broker_cluster_name.encode()
        self._answers = SendAnswers(config, store_host, stats, topics)
        self._maker = SendMessages(
            config.broker_cluster_name,
            store_host,
            config.store,
            store.delay_levels,
            store.timer_rules,
            transaction_refusal=_transaction_refusal(config),
        )
        self._on_half = on_half
        self._batch: AppendBatch = store.commit_log.batch
        # By topic, and queue id as a header has it; the kernel must not see those of windows.
        self._lanes: dict[tuple[str, str], SendLane] = {}
        self._window_lanes: dict[tuple[str, str], SendLane] = {}
        self._skips_kernel = False  # the last plain send went to one of them
        topics.add_change_listener(self._close_lanes)
        topics.add_deletion_listener(self._close_lanes)
        self.gathering = False
        # Sends of this turn that came alone in a read, until the kernel takes them all in one call.
        self._single: list[RawFrame] = []
        self._single_peers: list[Connection] = []
        self._single_size = 0
        self._taking_single = False
        self._last_sender: Connection | None = None
        self._planned = False  # the end of this turn

    def _close_lanes(self, _: object) -> None:
        self._lanes.clear()
        self._window_lanes.clear()
        self._skips_kernel = False

    # The fast path

    def take(self, connection: Connection, frames: list[RawFrame], start: int) -> int:
        """Take plain sends from `start` on; return how many, 0 for what is something else.

        One that came alone waits for the kernel (`_take_single`).
        """
        kind, header, body = frames[start]
        begins = _BEGINS.get(kind)
        if begins is None or not header.startswith(begins):
            return 0
        if not self.gathering and not self._begin():
            return 0
        if (
            len(frames) == 1
            and kernel is not None
            and connection is not self._last_sender
            and not self._taking_single
        ):
            self._single.append(frames[0])
            self._single_peers.append(connection)
            self._single_size += len(body)
            return 1
        self._take_single()
        packed = 0 if self._skips_kernel else self._pack([connection], frames, start)
        if packed:
            return packed
        if not header.startswith(begins[0]):
            return 0
        command = _DECODE[kind](header)
        try:
            if command is None or not self._plain(connection, kind, command, body):
                return 0
        except OSError as error:
            self._store.fail(error)
            return 0
        except (RemoteProtocolError, StoreFullError):
            return 0  # the slow path meets the same and words the refusal
        traffic = self._stats.frames_in[kind]
        traffic.count += 1
        traffic.bytes += len(header) + len(body) + PREFIX_SIZE
        return 1

    def _pack(self, peers: list[Connection], frames: list[RawFrame], start: int) -> int:
        """Do as `take`, in the kernel; frames after those of `peers` are the last one's, too."""
        if kernel is None:
            return 0
        batch, answers, kind = self._batch, self._answers, frames[start].serialize_type
        packed = kernel.take_sends(
            frames, peers, start, self._lanes, self._max_body_size, self._maker.batch_size_max,
            self._cluster_pair, batch.physical_offset, batch.room, batch.store_timestamp,
            self.store_host, answers.id_prefix, answers.parts(kind), batch.units,
        )  # fmt: skip
        if packed is None:
            return 0
        count: int
        count, wire_size, records, sent = packed
        batch.extend(records)
        answers.add_waiting(sent)
        traffic = self._stats.frames_in[kind]
        traffic.count += count
        traffic.bytes += wire_size
        return count

    def _take_single(self) -> None:
        """Take the sends that came alone in a read; those that are not plain go their own way."""
        if not self._single:
            return
        frames, self._single = self._single, []
        peers, self._single_peers = self._single_peers, []
        self._single_size = 0
        self._taking_single = True
        position = 0
        try:
            while position < len(frames):
                try:
                    packed = self._pack(peers, frames, position) if self.gathering else 0
                except Exception:
                    packed = 0  # the router will meet the same, and answer
                if not packed:
                    self.give_back(peers[position], frames[position])
                position += packed or 1
        finally:
            self._taking_single = False

    def _plain(self, connection: Connection, kind: int, command: PlainCommand, body: bytes) -> bool:
        """Store a send in which everything is usual; False, and nothing done, otherwise.

        Raises:
            RemoteProtocolError, StoreFullError, OSError: a wrong field, or no place; nothing done.
        """
        fields = command.ext_fields
        topic, batch, text = fields.topic, fields.batch, fields.properties or ""
        if (
            len(body) > self._max_body_size
            or (batch is not None and batch != "false")
            or (_DELAY in text or _TRANSACTION in text or _TIMER in text or _CLUSTER in text)
            or (_RECEIPT in text or "\0" in text)
        ):
            return False
        properties, wait = take_wait(text.encode())
        properties = properties + self._cluster_pair if properties else self._cluster_pair[1:]
        if len(properties) > MAX_PROPERTIES_SIZE:
            return False
        tags = find_property(properties, TAGS_AND_SEPARATOR)
        sys_flag = java_int(fields.sys_flag, "sysFlag")
        if sys_flag & _LOOKED_AT and (
            transaction_type(sys_flag) or not looks_compressed(body, sys_flag)
        ):
            return False
        born_timestamp = java_long(fields.born_timestamp, "bornTimestamp")
        flag = java_int(fields.flag, "flag")
        java_int(fields.default_topic_queue_nums, "defaultTopicQueueNums")
        _int_or_0(fields.max_reconsume_times, "maxReconsumeTimes")
        reconsume_times = _int_or_0(fields.reconsume_times, "reconsumeTimes")
        key = topic, fields.queue_id
        lane = self._lanes.get(key) or self._window_lanes.get(key) or self._open(*key)
        if lane is None:
            return False
        queue, counter = lane
        records = self._batch
        self._skips_kernel = topic in self._windows  # which the kernel cannot look into
        mark = self._deduplication.mark(topic, properties) if self._skips_kernel else None
        if mark is not None and (first := mark.look(records.store_timestamp)) is not None:
            queue_id, queue_offset, physical_offset, _ = first
        else:
            size_before = records.size
            physical_offset = records.add(
                queue, body, properties, born_timestamp, connection.host_bytes, self.store_host,
                0 if tags is None else cached_tags_code(tags), flag, sys_flag, reconsume_times,
            )  # fmt: skip
            # As `TrafficIn.add`, whose call would cost more than what it does.
            size = records.size - size_before
            counter.count += 1
            counter.bytes += size
            counter.sizes.observe(size)
            queue_id, queue_offset = queue.queue_id, queue.next_offset - 1
            if mark is not None:
                mark.note(records.store_timestamp, queue_id, queue_offset, physical_offset)
        if not command.flag & ONEWAY_FLAG:
            frame = self._answers.of_message(
                kind, command.opaque, physical_offset, queue_id, queue_offset
            )
            self._answers.add((connection, kind, 1, frame), wait, topic)
        return True

    def _open(self, topic: str, queue_id_text: str) -> SendLane | None:
        """Return the lane of a queue, made if there is none; None when sends to it are not plain.

        Raises:
            RemoteProtocolError: the queue id is no number.
        """
        config = self._topics.table.get(topic)
        queue_id = java_int(queue_id_text, "queueId")
        if (
            config is None
            or topic[0] == "%"
            or (config.order or config.topic_filter_type != "SINGLE_TAG")
            or has_priorities(config.attributes_map)
            or topic in NOT_ALLOWED_SEND_TOPICS
            or not 0 <= queue_id < config.write_queue_nums
        ):
            return None
        lane = self._store.queues.open(topic, queue_id), self._stats.topic_in(topic)
        if queue_id_text == str(queue_id) and not self._answers.is_fresh(topic):
            lanes = self._window_lanes if topic in self._windows else self._lanes
            lanes[topic, queue_id_text] = lane
        return lane

    # The slow path

    def request(self, connection: Connection, request: RemotingCommand) -> None:
        """Handle a send that was decoded in full."""
        try:
            self._request(connection, request)
        except RemoteProtocolError as error:
            connection.reply(
                request,
                request.reply(error.response_code, error.remark, self._answers.extras(request)),
            )

    def _request(self, connection: Connection, request: RemotingCommand) -> None:
        header = decode_send_header(request.code, request.ext_fields)
        self._open_turn()
        target = self._target(header, connection.remote_address)
        try:
            if header.batch:
                self._put_batch(connection, request, header, target)
                return
            sender = Sender(connection.host_bytes, connection.remote_address, request.version)
            placed = self._place(sender, request.body, header, target)
        except (StoreFullError, OSError) as error:
            raise self._unavailable(error) from error
        place = placed.queue_id, placed.queue_offset
        wait, target = placed.inner.wait_store_ok, placed.target
        handle = handle_of(placed.inner, target.topic, self._config.broker_name)
        self._note(connection, request, target, [placed.physical_offset], place, wait, handle)

    def put(
        self, sender: Sender, body: bytes, header: SendMessageRequestHeader, callback: Callback
    ) -> Placed:
        """Store a message of another protocol, together with the others of this turn.

        Args:
            header: of one message; WAIT among its properties does nothing.
            callback: called once, as soon as an answer to `request` would be sent; perhaps before
                this returns, never after a refusal.

        Raises:
            RemoteProtocolError: with RocketMQ's code for what is wrong; nothing is stored.
        """
        self._open_turn()
        target = self._target(header, sender.address)
        try:
            placed = self._place(sender, body, header, target)
        except (StoreFullError, OSError) as error:
            raise self._unavailable(error) from error
        self._answers.add_callback(callback, placed.target.topic)
        if self._batch.size + self._single_size >= TURN_SIZE_MAX:
            self.commit()
        else:
            self._plan_end()
        return placed

    def _open_turn(self) -> None:
        """Have the batch of this turn open, or refuse what comes."""
        self._take_single()
        if self._store.failure is not None or (not self.gathering and not self._begin()):
            why = self._store.refusal()
            if why is None:
                check_busy(self._store)
                self._check_full()
                why = "the broker does not take messages yet"
            raise RemoteProtocolError(ResponseCode.SERVICE_NOT_AVAILABLE, why)

    def _target(self, header: SendMessageRequestHeader, remote_address: str) -> Target:
        target = self._checks.target(header, remote_address)
        if target.fresh:
            self._answers.note_fresh(target.topic)
        return target

    def _unavailable(self, error: StoreFullError | OSError) -> RemoteProtocolError:
        why = str(error)
        if isinstance(error, OSError):
            self._store.fail(error)
            why = self._store.refusal() or why
        return RemoteProtocolError(ResponseCode.SERVICE_NOT_AVAILABLE, why)

    def _place(
        self, sender: Sender, body: bytes, header: SendMessageRequestHeader, target: Target
    ) -> Placed:
        """Lay a message out in the batch of this turn, unless it is stored already."""
        if target.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            target = self._checks.retry_target(
                target, sender.version, header.reconsume_times, header.max_reconsume_times
            )
            if target.fresh:
                self._answers.note_fresh(target.topic)
        inner = self._maker.single(sender.host, body, header, target)
        if inner.topic == RMQ_SYS_TRANS_HALF_TOPIC:
            self._on_half()
        mark = self._deduplication.mark(inner.topic, inner.properties)
        if mark is not None and (first := mark.look(self._batch.store_timestamp)) is not None:
            return Placed(target, inner, first.physical_offset, first.queue_id, first.queue_offset)
        queue = self._store.queues.open(inner.topic, inner.queue_id)
        size_before = self._batch.size
        physical_offset = self._batch.add_message(queue, inner)
        record_size = self._batch.size - size_before
        if inner.topic != target.topic:  # counted where it was sent to, not where it waits
            is_half = inner.topic == RMQ_SYS_TRANS_HALF_TOPIC
            parked = self._stats.topic_in(target.topic, "transaction" if is_half else "delay")
            parked.add(record_size)
        else:
            message_type = "priority" if target.has_priorities else "normal"
            self._stats.topic_in(inner.topic, message_type).add(record_size)
        if target.to_dlq:
            origin = self._checks.origin_of(inner.properties, header.topic)
            dead = self._stats.dead_letter(origin, header.topic[len(RETRY_GROUP_TOPIC_PREFIX) :])
            dead.count += 1
            dead.bytes += len(inner.body)
        offset = queue.next_offset - 1
        if mark is not None:
            mark.note(self._batch.store_timestamp, inner.queue_id, offset, physical_offset)
        return Placed(target, inner, physical_offset, target.queue_id, offset)

    def _put_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        target: Target,
    ) -> None:
        body, born_host, store_host = request.body, connection.host_bytes, self.store_host
        born_timestamp, reconsume_times = header.born_timestamp, header.reconsume_times
        head = self._maker.batch_head(body, header, target)
        parts = self._maker.batch_parts(body, head)
        queue = self._store.queues.open(target.topic, target.queue_id)
        self._batch.reserve(len(body) + len(parts) * head.extra_size)
        if target.has_priorities or target.topic in self._deduplication.windows:
            self._put_each_part(connection, request, header, target, head, parts)
            return
        add, size_before = self._batch.add, self._batch.size
        offsets = [
            add(
                queue, part_body, properties, born_timestamp, born_host, store_host, tags_code,
                flag, head.sys_flag, reconsume_times,
            )
            for part_body, properties, flag, tags_code in parts
        ]  # fmt: skip
        count = len(offsets)
        self._stats.topic_in(target.topic).add(self._batch.size - size_before, count)
        first_offset = queue.next_offset - count
        place = target.queue_id, first_offset
        self._note(connection, request, target, offsets, place, head.wait)
        self._open(target.topic, str(target.queue_id))

    def _put_each_part(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        target: Target,
        head: BatchHead,
        parts: list[BatchPart],
    ) -> None:
        """Store the messages of a batch one by one.

        Each goes to the queue of its priority, where the topic has those, unless its deduplication
        window knows the key. Each id in the answer is that of the first copy of its message. The
        queue id is that of the batch's first message; so is the queue offset, but -1 where the
        messages do not follow each other in one queue.
        """
        batch, topic = self._batch, target.topic
        queue = self._store.queues.open(topic, target.queue_id)
        window = self._windows.get(topic)
        queue_ids = [target.queue_id] * len(parts)
        if target.has_priorities:
            queue_ids = [level_of(properties, target.config) for _, properties, _, _ in parts]
        now_ms, size_before, added = batch.store_timestamp, batch.size, 0
        offsets: list[int] = []
        places: list[tuple[int, int]] = []
        for queue_id, (body, properties, flag, tags_code) in zip(queue_ids, parts, strict=True):
            digest = None if window is None else digest_of(properties)
            first = None if window is None or digest is None else window.look(digest, now_ms)
            if first is None:
                if queue_id != queue.queue_id:
                    queue = self._store.queues.open(topic, queue_id)
                physical_offset = batch.add(
                    queue, body, properties, header.born_timestamp, connection.host_bytes,
                    self.store_host, tags_code, flag, head.sys_flag, header.reconsume_times,
                )  # fmt: skip
                added += 1
                here = queue_id, queue.next_offset - 1
                if window is not None and digest is not None:
                    window.note(digest, now_ms, *here, physical_offset)
            else:
                physical_offset, here = first.physical_offset, (first.queue_id, first.queue_offset)
            offsets.append(physical_offset)
            places.append(here)
        if added:
            message_type = "priority" if target.has_priorities else "normal"
            self._stats.topic_in(topic, message_type).add(batch.size - size_before, added)
        queue_id, queue_offset = places[0]
        if places != [(queue_id, queue_offset + number) for number in range(len(places))]:
            queue_offset = -1
        self._note(connection, request, target, offsets, (queue_id, queue_offset), head.wait)

    def _note(
        self,
        connection: Connection,
        request: RemotingCommand,
        target: Target,
        physical_offsets: list[int],
        place: tuple[int, int],
        wait: bool,
        recall_handle: str | None = None,
    ) -> None:
        """Answer with the place, queue id and queue offset, of the first message."""
        if request.is_oneway:
            return
        frame = self._answers.of_request(request, physical_offsets, *place, recall_handle)
        self._answers.add((connection, request.serialize_type, 1, frame), wait, target.topic)

    # One turn of the loop

    @property
    def _is_full(self) -> bool:
        return self._answers.waiting_count >= self._config.send_thread_pool_queue_capacity

    def _check_full(self) -> None:
        """Refuse what comes while too many sends wait for the disk or for replicas."""
        if self._is_full:
            why = (
                f"{OVERLOAD}, {self._answers.waiting_count} sends wait for the disk or for replicas"
            )
            raise refusal(self._stats, "send", "queue_full", f"{why}; sendThreadPoolQueueCapacity")

    def _begin(self) -> bool:
        """Open the batch of this turn; False when the store does not take messages."""
        if self._store.refusal() is not None or self._store.is_busy or self._is_full:
            return False
        self._batch = self._store.begin(self.commit)
        if self._batch.store_timestamp < self._config.start_accept_send_request_time_stamp:
            return False
        self.gathering = True
        return True

    def end_read(self, connection: Connection) -> None:
        """Commit what was gathered, or leave that to the end of the turn.

        The peer of the read before that sends again is alone, with nobody to share a commit with.
        """
        gathered_size = self._batch.size + self._single_size
        if connection is self._last_sender or gathered_size >= TURN_SIZE_MAX:
            self.commit()
            return
        self._last_sender = connection
        self._plan_end()

    def _plan_end(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._planned = False
        if self.gathering:
            self.commit()

    def commit(self) -> None:
        """Commit what was gathered, and answer when it is stored."""
        self._take_single()
        self.gathering = False
        if self._batch.is_empty and not self._answers.has_some:
            return
        turn = self._answers.take()
        commit = self._store.answer_known if self._batch.is_empty else self._store.commit
        commit(turn.answer if turn.waits else None, turn.unwaited)
        turn.committed()


def _int_or_0(text: str | None, name: str) -> int:
    return 0 if text is None else java_int(text, name)


def _transaction_refusal(config: BrokerConfig) -> str | None:
    if not config.reject_transaction_message:
        return None
    return (
        f"the broker[{config.broker_name}] sending transaction message is forbidden "
        "(rejectTransactionMessage is true)"
    )
