"""The end of a transaction by its producer (37), and another chance for one given up (323).

A commit makes the half message visible under its real topic, a rollback leaves nothing; both are
stored with an op message, and answered when that is as durable as the flush mode makes it. Java
clients send 37 one-way and hear nothing. "I do not know" (0) is not answered at all.

A verdict counts for a half message that is open, wherever it is now (`ledger.py`). For one that
was given up a late verdict counts as well, as long as this broker remembers it.

Unlike RocketMQ, where the answer does not wait for the disk, and a transaction that has ended takes
further verdicts, a commit after a rollback too.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/EndTransactionProcessor.java,
AdminBrokerProcessor.java (resumeCheckHalfMessage)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.access.accounts import PUB, Kind
from skylarkmq.broker.access.control import ensure
from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place
from skylarkmq.broker.net.handlers import UNANSWERED, Answer, Call, handles, refused
from skylarkmq.broker.processor.send_answers import CODES, remark_of
from skylarkmq.broker.requests.processor import Context, Processor, check_producer_group
from skylarkmq.broker.transaction.ledger import End, TransactionLedger
from skylarkmq.broker.transaction.messages import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    QUEUE_ID,
    first_offset_of,
    group_of,
    named_first_offset_of,
    renewed,
    resumed,
    topic_of,
)
from skylarkmq.broker.transaction.verdicts import Verdicts
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.headers.send import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import RecordStatus, read_record
from skylarkmq.store.results import STORED, PutMessageResult

_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT_TYPE
_ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
_NOT_FOUND: Final = "Find prepared transaction message failed"
_NOT_PUT_BACK: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed"


class EndTransactionProcessor(Processor):
    """Ends transactions. Loop thread."""

    def __init__(self, context: Context, ledger: TransactionLedger, verdicts: Verdicts) -> None:
        super().__init__(context)
        self._ledger = ledger
        self._verdicts = verdicts

    # 37

    @handles(RequestCode.END_TRANSACTION, EndTransactionRequestHeader)
    def end_transaction(
        self, call: Call[EndTransactionRequestHeader]
    ) -> Answer | Coroutine[Any, Any, RemotingCommand]:
        """Commit or roll back (37)."""
        header = call.header
        check_producer_group(header.producer_group)
        if header.commit_or_rollback not in (_COMMIT, _ROLLBACK):
            return UNANSWERED
        return self._end(call.request, header)

    async def _end(
        self, request: RemotingCommand, header: EndTransactionRequestHeader
    ) -> RemotingCommand:
        try:
            await self._ledger.ready()
            place, half = await self._find(header)
            ensure(request, Kind.TOPIC, topic_of(half), PUB)
            commits = header.commit_or_rollback == _COMMIT
            result = await self._verdicts.end(place, half, commits=commits)
        except RemoteProtocolError:
            self._ledger.stats.refused += 1
            raise
        return (Answer() if result is None else _answer(result)).reply(request)

    async def _find(self, header: EndTransactionRequestHeader) -> tuple[Place, Parked]:
        """Return the half message that a verdict names by both its offsets and its group."""
        halves, offset = self._ledger.halves, header.tran_state_table_offset
        if not await self._ledger.visible(offset):
            raise refused(
                f"The transaction state table offset wrong: no half message is at {offset}"
            )
        place = halves.place(offset)
        if place is None:
            raise refused(f"{_NOT_FOUND}: the one at {offset} was removed with its log file")
        if place.physical_offset != header.commit_log_offset:
            raise refused(
                f"The commit log offset wrong: half message {offset} is not at "
                f"{header.commit_log_offset}"
            )
        (found,) = await halves.read([place])
        if found.message is None:
            raise refused(f"{_NOT_FOUND}: {found.why}")
        if group_of(found.message) != header.producer_group:
            raise refused(f"The producer group wrong: half message {offset} belongs to another one")
        return place, found.message

    # 323

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader)
    async def resume_check_half_message(
        self, call: Call[ResumeCheckHalfMessageRequestHeader]
    ) -> Answer:
        """Store a half message, or one that was given up, again, as if never checked (323)."""
        _, physical_offset = decode_offset_message_id(call.header.msg_id)
        await self._ledger.ready()
        topic, place, half = await self._half_at(physical_offset)
        if topic == GIVEN_UP_TOPIC:
            return _answer(await self._take_back(half))
        first = first_offset_of(half, place.queue_offset)
        offset = await self._ledger.place_of(place.queue_offset, first)
        if self._ledger.table.is_ended(offset):
            raise refused(f"{_NOT_PUT_BACK}: its transaction has ended")
        end = End(offset, first, renewed(half, first, 0), half.store_host)
        (result,) = await self._ledger.end([end])
        return _answer(result)

    async def _half_at(self, physical_offset: int) -> tuple[str, Place, Parked]:
        (record,) = await self._read_records([physical_offset])
        view = None if record is None else read_record(record, 0, physical_offset=physical_offset)
        if record is None or view is None or view.status is not RecordStatus.MESSAGE:
            raise refused(f"{_NOT_PUT_BACK}: no message is at {physical_offset}")
        topic = view.topic.decode("utf-8", "replace")
        if topic not in (HALF_TOPIC, GIVEN_UP_TOPIC):
            raise refused(f"{_NOT_PUT_BACK}: the message at {physical_offset} is no half message")
        place = Place(physical_offset, len(record), view.queue_offset)
        reader = ParkedReader(self._store.commit_log, topic, QUEUE_ID)
        try:
            return topic, place, reader.parse(record, place)
        except ValueError as error:
            raise refused(f"{_NOT_PUT_BACK}: {error}") from error

    async def _take_back(self, half: Parked) -> PutMessageResult:
        """Store what was given up as a half message that is open again."""
        first = named_first_offset_of(half)
        if first in self._ledger.table.moved:
            raise refused(f"{_NOT_PUT_BACK}: it is a half message again already")
        stored: asyncio.Future[PutMessageResult] = asyncio.get_running_loop().create_future()

        def done(result: PutMessageResult) -> None:
            if result.status in STORED:
                self._ledger.note_reopened(first, result.queue_offset)
            if not stored.done():
                stored.set_result(result)

        self._ledger.expect()
        self._store.put_message(resumed(half), done)
        return await stored


def _answer(result: PutMessageResult) -> Answer:
    code = CODES.get(result.status, ResponseCode.MESSAGE_ILLEGAL)
    return Answer(code=code, remark=remark_of(result))
