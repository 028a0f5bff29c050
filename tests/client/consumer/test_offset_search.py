"""The first message since a time: nothing stored then or later is passed over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.client.consumer.offset_search import PULLS_MAX, first_since
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.message import MessageQueue
from tests.client.consumer.support import Group
from tests.support.fake_cluster import STORE_MS, Stored

QUEUE = MessageQueue("orders", "broker-a", 0)


class Search:
    """A queue with messages of given times, and a started client."""

    def __init__(self, *times: int, min_offset: int = 0) -> None:
        self.it = Group({"orders": 1})
        topic = self.it.broker.topics["orders"]
        topic.queues[0] = [Stored(b"", {}, store_timestamp=STORE_MS + time) for time in times]
        topic.min_offset[0] = min_offset
        self.client = self.it.client()

    async def __aenter__(self) -> Search:
        await self.it.wait(self.client.start())
        await self.it.wait(services_of(self.client).routes.refresh("orders"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.it.wait(self.client.stop())

    async def __call__(self, time: int) -> int:
        services, address = services_of(self.client), self.it.broker.address
        work = first_since(services, address, "billing", QUEUE, STORE_MS + time)
        return await self.it.wait(work)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), max_size=80), st.integers(-1, 14), st.integers(0, 6))
async def test_it_is_the_first_one_whatever_the_times(
    times: list[int], when: int, gone: int
) -> None:
    times.sort()
    gone = min(gone, len(times))
    async with Search(*times, min_offset=gone) as search:
        expected = next(
            (n for n in range(gone, len(times)) if times[n] >= when), len(times) if times else 0
        )
        assert await search(when) == expected


async def test_before_all_time_is_the_first_readable_message() -> None:
    async with Search(1, 2, 3, min_offset=2) as search:
        assert await search(-STORE_MS - 5) == 2


async def test_very_many_of_one_millisecond_end_the_search_early_never_late() -> None:
    count = PULLS_MAX * 32 + 50
    async with Search(*[0] * count, 1) as search:
        found = await search(1)
        assert found < count
        assert len(search.it.broker.of_code(RequestCode.PULL_MESSAGE)) == PULLS_MAX


async def test_messages_that_cannot_be_read_start_it_a_little_early() -> None:
    async with Search(0, 10, 20) as search:
        search.it.broker.refuse(RequestCode.PULL_MESSAGE, 16)
        assert await search(12) == 1, "the nearest to it, which lies before it"


async def test_the_store_starts_by_time() -> None:
    async with Search(0, 10, 10, 20) as search:
        store = OffsetStore(services_of(search.client), "billing")
        assert await search.it.wait(store.at_time(QUEUE, STORE_MS + 10)) == 1
        assert await search.it.wait(store.at_time(QUEUE, STORE_MS + 21)) == 4


@pytest.mark.parametrize("when", [9, 10, 11])
async def test_it_reads_in_nobody_s_name_and_commits_nothing(when: int) -> None:
    async with Search(0, 10, 20) as search:
        await search(when)
        assert search.it.broker.offsets == {}
