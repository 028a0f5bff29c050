"""Sending dead letters back: a copy each to the topic it was sent to first, with a ledger.

    letters --> intents, synced --> sends, several under way --> outcomes, synced --> next ones

The job does not send a letter whose copy is known to be stored. It looks for a letter without a
known outcome, after a time-out or a killed run, in the target queue, from where that queue ended
before the send: found, it counts as sent; not there, it is sent now; where that cannot be told any
more, because the queue has expired that far, it stays unknown, unless --resend-unknown is given.

A copy has the letter's body, keys, tags, user properties, message id and time of birth. What
belongs to the delivery that failed goes: counters of tries, delays, transaction marks, and the name
of the topic, which is its own again. ORIGIN_MESSAGE_ID stays, so a copy can be told from the
message that was sent first. A letter without a message id, as very old clients sent, gets one that
is made of its place, so that its copies can be told too.

Driver process, one thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(asyncConsumerSendMsgBack, handleRetryAndDLQ: reconsumeTimes, RETRY_TOPIC, ORIGIN_MESSAGE_ID)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from skylarkmq.client.admin.messages import DROPPED_NAMES, header_of_copy, queue_of_copy
from skylarkmq.client.errors import BrokerError, ConnectionFailed, NotConfirmed, RocketMQError
from skylarkmq.client.send_result import STORED_CODES
from skylarkmq.client.wire.api_send import send_refusal
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.compression import (
    COMPRESSION_SHIFT,
    CompressionKind,
    CompressionUnavailableError,
    compress,
)
from skylarkmq.protocol.compression import compression_flags as flags_of
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.headers.send import SendMessageRequestHeader, encode_send_header_v2
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import UNIQ_KEY
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.cluster import PAGE_BYTES, PAGE_MESSAGES, ROUTE_MAX_AGE_S, BlockingClient
from skylarkmq.spark.jobs.redrive_ledger import Entry, LetterKey, RedriveLedger
from skylarkmq.spark.jobs.replay_task import Pace
from skylarkmq.spark.jobs.reporting import instant
from skylarkmq.spark.own_loop import Pending
from skylarkmq.spark.writing.unique_keys import key_of_values

IN_FLIGHT: Final = 32
"""Letters between two syncs of the ledger; fewer when the rate is low."""
GIVE_UP_AFTER: Final = 64
"""Failures in a row after which the rest is left for another run."""
ERRORS_MAX: Final = 100


@dataclass(slots=True)
class RedriveCounts:
    """What a run did."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    """sent, found (was there already), done_before, failed, unknown, no_topic, would_send."""
    topics: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By (topic, outcome)."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """By text; so many texts only."""
    unmet: int = 0
    """Letters without a known outcome, in the ledger, that did not come by: gone or not chosen."""
    gave_up: bool = False

    def add(self, topic: str, outcome: str, error: str = "") -> None:
        """Count a letter."""
        self.outcomes[outcome] += 1
        self.topics[topic, outcome] += 1
        if error and (error in self.errors or len(self.errors) < ERRORS_MAX):
            self.errors[error] += 1


class _Step(NamedTuple):
    """A letter on its way."""

    letter: Letter
    entry: Entry
    """Its intent."""
    address: str


class Redriver:
    """Sends letters; `counts` says what became of them."""

    def __init__(
        self,
        client: BlockingClient,
        ledger: RedriveLedger,
        *,
        rate: float | None = None,
        dry_run: bool = True,
        resend_unknown: bool = False,
    ) -> None:
        """Send nothing yet.

        Args:
            rate: letters a second at most; None: as fast as it goes.
            resend_unknown: also send what may have been sent already.
        """
        self.counts = RedriveCounts()
        self._client = client
        self._ledger = ledger
        self._dry_run = dry_run
        self._resend_unknown = resend_unknown
        self._pace = Pace(rate, client.clock)
        self._chunk = IN_FLIGHT if rate is None else max(1, min(IN_FLIGHT, int(rate)))
        self._failures = 0
        self._open = {
            key for key, entry in ledger.entries.items() if entry.state in ("intent", "unknown")
        }

    def run(self, letters: Iterable[Letter], on_progress: Callable[[int], None]) -> None:
        """Send them in their order; a dry run only counts what would be sent.

        Args:
            on_progress: called now and then with how many letters are done with.

        Raises:
            OSError: the ledger cannot be written; nothing more is sent then.
        """
        source = iter(letters)
        done = 0
        self.counts.unmet = len(self._open)
        while chunk := list(islice(source, self._chunk)):
            todo = self._to_send(chunk)
            if self._dry_run:
                for letter in todo:
                    self.counts.add(self._name(letter), "would_send")
            else:
                self._send(todo)
            done += len(chunk)
            self.counts.unmet = len(self._open)
            on_progress(done)
            if self._failures >= GIVE_UP_AFTER:
                self.counts.gave_up = True
                return

    # What has to be sent

    def _to_send(self, chunk: Sequence[Letter]) -> list[Letter]:
        """Return the letters of the chunk that are to be sent now."""
        todo: list[Letter] = []
        for letter in chunk:
            before = self._ledger.entries.get(letter.key)
            self._open.discard(letter.key)
            if before is not None and before.state == "sent":
                self.counts.add(self._name(letter), "done_before")
            elif not letter.origin:
                error = "the letter does not say which topic it was sent to first"
                self._note(Entry(letter.key, "failed", at=self._now(), error=error))
                self.counts.add("", "no_topic", error)
            elif before is None or before.state == "failed" or self._may_send(letter, before):
                todo.append(letter)
        return todo

    def _may_send(self, letter: Letter, before: Entry) -> bool:
        """Find out what became of a letter whose outcome is not known; True: it is not there."""
        topic = self._name(letter)
        try:
            found = self._look_for(letter, before)
        except (_CannotTellError, RocketMQError) as error:
            if self._resend_unknown:
                return True
            self.counts.add(topic, "unknown", str(error))
            return False
        if found is None:
            return True
        sent = before._replace(state="sent", status="FOUND", queue_offset=found, at=self._now())
        self._note(sent._replace(error=""))
        self.counts.add(topic, "found")
        return False

    def _look_for(self, letter: Letter, before: Entry) -> int | None:
        """Return the queue offset of the copy, None when there is none.

        Raises:
            _CannotTellError: the queue does not reach back to where the copy would be.
            RocketMQError: no broker answered.
        """
        queue = before.target
        if queue is None:
            raise _CannotTellError("the ledger does not say where its copy went")
        place, end = before.from_offset, self._client.max_offset(queue)
        if not self._client.min_offset(queue) <= place <= end:
            raise _CannotTellError(
                f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no offset "
                f"{place} (any more), so whether its copy is there cannot be told"
            )
        wanted = copied_properties(letter)[UNIQ_KEY]
        while place < end:
            page = self._client.pull(queue, place, PAGE_MESSAGES, PAGE_BYTES)
            for message in decode_messages(page.records):
                if message.properties.get(UNIQ_KEY) == wanted:
                    return message.queue_offset
            if page.next_offset <= place:
                raise _CannotTellError(f"{queue.topic} cannot be read: {page.status.name}")
            place = page.next_offset
        return None

    # Sending

    def _send(self, letters: Sequence[Letter]) -> None:
        steps = self._plan(letters)
        self._note(*(step.entry for step in steps))
        sends = [(step, self._begin(step)) for step in steps]
        outcomes = [self._outcome(step, pending) for step, pending in sends]
        self._note(*outcomes)
        for step, entry in zip(steps, outcomes, strict=True):
            self.counts.add(self._name(step.letter), entry.state, entry.error)
            self._failures = 0 if entry.state == "sent" else self._failures + 1

    def _plan(self, letters: Sequence[Letter]) -> list[_Step]:
        """Choose queues, and ask where they end; what has none is recorded as failed."""
        chosen: list[tuple[Letter, MessageQueue, str]] = []
        failed: list[Entry] = []
        for letter in letters:
            topic = self._name(letter)
            try:
                queues = self._writable(topic)
                queue = choose_queue(letter, queues)
                chosen.append((letter, queue, self._client.master_of(queue)))
            except RocketMQError as error:
                failed.append(self._not_sent(letter, topic, error))
        silent: dict[MessageQueue, RocketMQError] = {}
        ends = self._client.max_offsets({queue for _, queue, _ in chosen}, silent)
        failed += [
            self._not_sent(letter, queue.topic, silent[queue])
            for letter, queue, _ in chosen
            if queue in silent
        ]
        self._note(*failed)
        return [
            _Step(letter, Entry(letter.key, "intent", queue, ends[queue], self._now()), address)
            for letter, queue, address in chosen
            if queue in ends
        ]

    def _not_sent(self, letter: Letter, topic: str, error: RocketMQError) -> Entry:
        self.counts.add(topic, "failed", str(error))
        self._failures += 1
        return Entry(letter.key, "failed", at=self._now(), error=str(error))

    def _writable(self, topic: str) -> list[MessageQueue]:
        route = self._client.route(topic, max_age_s=ROUTE_MAX_AGE_S)
        queues = [
            MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in route.publish_queues
        ]
        if not queues:
            raise RocketMQError(
                f"topic {topic} has no queue that can be written to",
                hint="See its permission, and whether its brokers' masters are up",
            )
        return queues

    def _begin(self, step: _Step) -> Pending | Entry:
        """Put the copy on its way; an entry when it did not get so far."""
        self._pace.take()
        assert step.entry.target is not None, "an intent has a target"
        queue = self._client.namespace.wrap_queue(step.entry.target)
        try:
            header, body = copy_of(step.letter, queue)
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, ext_fields=encode_send_header_v2(header), body=body
            )
            return self._client.begin(step.address, command)
        except (RocketMQError, CompressionUnavailableError) as error:
            reached = isinstance(error, ConnectionFailed) and error.reached
            return self._ended(step, "unknown" if reached else "failed", str(error))

    def _outcome(self, step: _Step, pending: Pending | Entry) -> Entry:
        if isinstance(pending, Entry):
            return pending
        try:
            answer = self._client.wait(pending, self._client.deadline_s())
        except RocketMQError as error:
            return self._ended(step, "unknown", str(error))
        status = STORED_CODES.get(answer.code)
        if status is None:
            refusal = send_refusal(answer, step.address)
            # A broker answers SYSTEM_ERROR for any fault, before its store and after it.
            is_any = type(refusal) is BrokerError and answer.code == ResponseCode.SYSTEM_ERROR
            open_yet = is_any or isinstance(refusal, NotConfirmed)
            return self._ended(step, "unknown" if open_yet else "failed", str(refusal))
        offset = (answer.ext_fields or {}).get("queueOffset", "-1")
        return step.entry._replace(
            state="sent", status=status.value, queue_offset=int(offset), at=self._now()
        )

    def _ended(self, step: _Step, state: Literal["failed", "unknown"], error: str) -> Entry:
        return step.entry._replace(state=state, error=error, at=self._now())

    def _note(self, *entries: Entry) -> None:
        if not self._dry_run:
            self._ledger.record(entries)

    def _name(self, letter: Letter) -> str:
        """Return the letter's topic as the application knows it."""
        return self._client.namespace.unwrap(letter.origin)

    def _now(self) -> str:
        return str(instant(self._client.clock.now_ms()))


class _CannotTellError(Exception):
    """It cannot be found out whether a copy is there."""


COLUMNS: Final = (
    "brokerName string, queueId int, queueOffset bigint, msgId string, keys string, tags string, "
    "body binary, properties map<string,string>, bornTimestamp timestamp, "
    "storeTimestamp timestamp, reconsumeTimes int, flag int, sysFlag int, storeSize int"
)
"""What is read of each letter, as a schema of the source."""

HOUR_MS: Final = 3_600_000
AGES: Final = (
    (HOUR_MS, "under 1 hour"),
    (24 * HOUR_MS, "under 1 day"),
    (72 * HOUR_MS, "under 3 days"),
    (7 * 24 * HOUR_MS, "under 7 days"),
)
OLDEST: Final = "7 days and more"


class Letter(NamedTuple):
    """One dead letter, its body opened."""

    key: LetterKey
    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    flag: int
    sys_flag: int
    reconsume_times: int

    @property
    def origin(self) -> str:
        """The topic that it was sent to first, as brokers know it; empty if it does not say."""
        return self.properties.get(names.RETRY_TOPIC, "")


def letter_of(row: Mapping[str, Any]) -> Letter:
    """Return the letter of a row with COLUMNS, its times as ms in `bornMs`."""
    key = LetterKey(row["brokerName"], row["queueId"], row["queueOffset"], row["msgId"] or "")
    return Letter(
        key,
        bytes(row["body"] or b""),
        dict(row["properties"] or {}),
        row["bornMs"],
        row["flag"],
        row["sysFlag"],
        row["reconsumeTimes"],
    )


def copied_properties(letter: Letter) -> dict[str, str]:
    """Return the properties of the copy."""
    left = DROPPED_NAMES | {names.RETRY_TOPIC}
    kept = {name: value for name, value in letter.properties.items() if name not in left}
    kept.setdefault(names.UNIQ_KEY, key_of_values(tuple(letter.key)))
    kept[names.STORE_AGAIN] = "true"  # the topic may know the letter's id
    return kept


def choose_queue(letter: Letter, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return where the copy goes, of the topic's writable queues, at least one."""
    key = letter.properties.get(names.SHARDING_KEY)
    return queue_of_copy(queues, key, letter.key.broker_name, letter.key.queue_offset)


def copy_of(letter: Letter, queue: MessageQueue) -> tuple[SendMessageRequestHeader, bytes]:
    """Return the header and the body of the copy's send.

    A body that was compressed is compressed again, since the broker's limit is on what it stores.

    Args:
        queue: as brokers know it.

    Raises:
        CompressionUnavailableError: its compression's library is not installed.
    """
    body, sys_flag = letter.body, 0
    if letter.sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        number = (letter.sys_flag & MessageSysFlag.COMPRESSION_MASK) >> COMPRESSION_SHIFT
        kind = CompressionKind(number) if number else CompressionKind.ZLIB
        # The bits stay as they were: old releases know no number.
        sys_flag = flags_of(kind) if number else MessageSysFlag.COMPRESSED_FLAG
        body = compress(body, kind)
    header = header_of_copy(
        queue,
        copied_properties(letter),
        born_ms=letter.born_ms,
        flag=letter.flag,
        sys_flag=sys_flag,
    )
    return header, body


def age_of(age_ms: int) -> str:
    """Return the class of an age."""
    return next((name for bound, name in AGES if age_ms < bound), OLDEST)
