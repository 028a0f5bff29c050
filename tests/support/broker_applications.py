"""What the applications of a simulated broker do: producers, consumers, administrators.

Each method sends one request; what is acknowledged goes into the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Protocol

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message
from tests.support import heartbeats
from tests.support.broker_ledger import Decision, Ledger
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import send_fields

TOPIC, QUEUES = "orders", 2
PRODUCERS, CONSUMERS = "simulated-producers", ("consumers-a", "consumers-b")
LEVELS = "1s 2s 4s 8s"


class Call(Protocol):
    """Sends a request; `done` gets the answer."""

    def __call__(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, done: Callable[[RemotingCommand], None],
    ) -> None: ...  # fmt: skip


class Applications:
    """All that talk to one broker; the machine hands in clock, random source and the way to it."""

    sync: bool
    rng: Random
    clock: ManualClock
    ledger: Ledger
    call: Call

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
            if not stored(answer):
                return
            entry.acked = True
            self.ledger.touch(entry, durable=self.sync)

        fields = send_fields(TOPIC, queue_id, text)
        self.call(RequestCode.SEND_MESSAGE_V2, fields, entry.body, done=done)

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
            if not stored(answer):
                return
            if self.clock.now_ms() < due_ms:  # a late one promises nothing
                entry.cancel_acked = True
                self.ledger.touch(entry, durable=self.sync)

        entry.cancelled = True
        fields = send_fields(TOPIC, entry.number % QUEUES, text)
        self.call(RequestCode.SEND_MESSAGE_V2, fields, b"cancel", done=done)

    def send_half(self) -> None:
        """The first phase of a transaction."""
        entry = self.ledger.add("half", self.clock.now_ms(), {})
        key = f"{entry.number:032X}"
        text = encode_properties(
            {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": key, "N": str(entry.number)}
        )

        def done(answer: RemotingCommand) -> None:
            if not stored(answer):
                return
            _, physical_offset = decode_offset_message_id(answer.ext_fields["msgId"])
            entry.half_at = int(answer.ext_fields["queueOffset"]), physical_offset
            entry.acked = True
            self.ledger.touch(entry, durable=self.sync)

        fields = send_fields(TOPIC, entry.number % QUEUES, text)
        fields["f"] = str(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
        self.call(RequestCode.SEND_MESSAGE_V2, fields, entry.body, done=done)

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

    def checked(self, push: RemotingCommand) -> None:
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

        self.call(RequestCode.END_TRANSACTION, fields, done=done)

    def commit_offset(self) -> None:
        """A consumer has caught up with its queue."""
        group, queue_id = self.rng.choice(CONSUMERS), self.rng.randrange(QUEUES)
        queue = {"topic": TOPIC, "queueId": str(queue_id)}

        def commit(answer: RemotingCommand) -> None:
            end = answer.ext_fields["offset"]
            self.ledger.offset_asked(group, queue_id, int(end))
            fields = {"consumerGroup": group, **queue, "commitOffset": end}
            self.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, done=lambda a: done(end, a))

        def done(end: str, answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self.ledger.offset_committed(group, queue_id, int(end))

        self.call(RequestCode.GET_MAX_OFFSET, queue, done=commit)

    def make_group(self) -> None:
        """A group by an administrator."""
        name = f"group-{len(self.ledger.groups)}"
        body = json.dumps({"groupName": name, "retryMaxTimes": 3}).encode()
        self.call(
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
        self.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, fields,
            done=lambda answer: self.ledger.made(self.ledger.topics, name, answer),
        )  # fmt: skip


def stored(answer: RemotingCommand) -> bool:
    """Whether it is as durable as the flush mode promises.

    A late sync leaves that open, and a refusal for a slow disk promises nothing.
    """
    if answer.code in (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SYSTEM_BUSY):
        return False
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return True


def heartbeat() -> bytes:
    """The body of the heartbeat of all of them."""
    members = [heartbeats.consumer_data(group) for group in CONSUMERS]
    return heartbeats.heartbeat("192.0.2.9@simulated", *members, producers=[PRODUCERS])
