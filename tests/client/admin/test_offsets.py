"""Where groups stand: queues that are read but not written to any more, and groups that pop."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from skylarkmq.client import Consumer, NotSupported, ReceiptExpired, SimpleConsumer, StartFrom
from tests.client.admin.support import site


async def test_queues_that_nothing_is_written_to_any_more(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=2)
        await it.send("orders", 8)
        await it.consume("orders", "billing", 8)
        await it.admin.update_topic("orders", queues=1, read_queues=2)
        reset = partial(it.admin.reset_offset, "billing", "orders")
        planned = await reset(when="begin", dry_run=True)
        done = await reset(when="begin")
        assert done.queues == planned.queues
        assert [(row.before, row.after, row.how) for row in done.queues] == [
            (4, 0, "broker"), (4, 0, "written"),
        ]  # fmt: skip
        rows = (await it.admin.progress("billing", "orders")).queues
        assert [row.committed for row in rows] == [0, 0]
        async with Consumer(
            "orders", client=it.client, group="billing", start_from=StartFrom.FIRST, ack="manual"
        ) as member:
            await member.getone(30)
            for dry_run in (True, False):
                with pytest.raises(NotSupported, match="Stop the members"):
                    await reset(when="end", dry_run=dry_run)
            (row,) = (await reset(offset={rows[0].queue: 3})).queues
            assert (row.after, row.how) == (3, "members")


async def test_a_group_that_pops_is_moved_by_its_broker(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        await it.send("orders", 4)
        reset = partial(it.admin.reset_offset, "billing", "orders")
        async with SimpleConsumer("orders", client=it.client, group="billing") as member:
            held = await member.receive(3)
            planned = await reset(offset=2, dry_run=True)
            assert [(row.before, row.after, row.how) for row in planned.queues] == [
                (0, 2, "broker")
            ]
            assert (await reset(offset=2)).queues == planned.queues
            assert (await it.admin.progress("billing", "orders")).queues[0].committed == 2
            with pytest.raises(ReceiptExpired):
                await member.ack(held[2])
            assert [message.body for message in await member.receive()] == [b"2", b"3"]
            (row,) = (await reset(when=held[1].stored_at)).queues
            assert row.how == "broker"
            assert row.after <= 1, "messages of one ms may have been stored together"
            await it.admin.update_topic("orders", queues=1, read_queues=2)
            for dry_run in (True, False):
                with pytest.raises(NotSupported, match="Stop the members"):
                    await reset(when="end", dry_run=dry_run)
        (row, _) = (await reset(when="end")).queues
        assert (row.after, row.how) == (4, "broker")
