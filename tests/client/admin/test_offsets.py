"""Where groups stand: queues that are read but not written to any more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from skylarkmq.client import Consumer, NotSupported, StartFrom
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
