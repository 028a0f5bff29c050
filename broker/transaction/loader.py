"""At a start: which half messages have ended, read from the op messages that a crash has left.

First all op messages from the op topic's offset on; then the half messages that are open after
them, for the places that they were written anew from. One that was written anew, and whose former
place has no op message because a crash came between the two, ends that place.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (fillOpRemoveMap)
"""

from __future__ import annotations

import asyncio
import logging

from skylarkmq.broker.transaction.half_reader import PAGE_COUNT, HalfReader
from skylarkmq.broker.transaction.half_table import HalfTable
from skylarkmq.broker.transaction.messages import ended_by, first_offset_of

log = logging.getLogger(__name__)


async def load_table(
    table: HalfTable, halves: HalfReader, ops: HalfReader, op_offset: int, end: int
) -> None:
    """Fill the table, page by page; the loop turns in between.

    Args:
        op_offset: where the op messages to read begin.
        end: behind the last half message that was there at the start.
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
    await _load_places(table, halves, end)
    if unreadable:
        log.error(
            "%d op messages can not be read: the transactions that they end will be asked about "
            "again",
            unreadable,
        )
    log.info("%d transactions are open, the first at %d", table.pending_count(end), table.start)


async def _load_places(table: HalfTable, halves: HalfReader, end: int) -> None:
    at = table.start
    while True:
        offsets: list[int] = []
        while len(offsets) < PAGE_COUNT and (at := table.next_pending(at, end)) < end:
            offsets.append(at)
            at += 1
        page = halves.page_of(offsets)
        if not page:
            return
        for place, half, _ in await halves.read(page):
            if half is None:
                continue
            offset = place.queue_offset
            first = first_offset_of(half, offset)
            if first != offset:
                table.end(table.moved.get(first, first))
                table.move(first, offset)
        at = page[-1].queue_offset + 1
        await asyncio.sleep(0)
