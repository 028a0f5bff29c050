"""At a start: which half messages have ended, read from the op messages that a crash has left.

First all op messages from the op topic's offset on; then the half messages that are open after
them, for the places that they were written anew from. One that was written anew, and whose former
place has no op message because a crash came between the two, ends that place; the caller stores the
op message, or a later start would find the place open when the new one has ended.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (fillOpRemoveMap)
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from skylarkmq.broker.transaction.half_reader import PAGE_COUNT, HalfReader
from skylarkmq.broker.transaction.half_table import HalfTable
from skylarkmq.broker.transaction.messages import ended_by, first_offset_of

log = logging.getLogger(__name__)


class Left(NamedTuple):
    """A place that a half message has left."""

    offset: int
    host: bytes  # packed


async def load_table(
    table: HalfTable, halves: HalfReader, ops: HalfReader, op_offset: int, end: int
) -> list[Left]:
    """Fill the table, page by page; the loop turns in between.

    Args:
        op_offset: where the op messages to read begin.
        end: behind the last half message that was there at the start.

    Returns:
        The places that have ended and have no op message.
    """
    unreadable = 0
    op_end = ops.end
    while op_offset < op_end:
        page = ops.page(op_offset, op_end)
        if not page:
            break
        for place, message, _ in await ops.read(page):
            offsets = [] if message is None else [at for at in ended_by(message) if at < end]
            unreadable += message is None
            for offset in offsets:
                table.end(offset)
            table.note_op(place.queue_offset, max(offsets, default=-1))
        op_offset = page[-1].queue_offset + 1
        await asyncio.sleep(0)
    left = await _load_places(table, halves, end)
    if unreadable:
        log.error(
            "%d op messages can not be read: the transactions that they end will be asked about "
            "again",
            unreadable,
        )
    log.info("%d transactions are open, the first at %d", table.pending_count(end), table.start)
    return left


async def _load_places(table: HalfTable, halves: HalfReader, end: int) -> list[Left]:
    at, left = table.start, list[Left]()
    while True:
        offsets: list[int] = []
        while len(offsets) < PAGE_COUNT and (at := table.next_pending(at, end)) < end:
            offsets.append(at)
            at += 1
        page = halves.page_of(offsets)
        if not page:
            return left
        for place, half, _ in await halves.read(page):
            if half is None:
                continue
            offset = place.queue_offset
            first = first_offset_of(half, offset)
            if first != offset:
                former = table.moved.get(first, first)
                if not table.is_ended(former):
                    table.end(former)
                    left.append(Left(former, half.store_host))
                table.move(first, offset)
        at = page[-1].queue_offset + 1
        await asyncio.sleep(0)
