"""The place of a time in a queue, whatever a broker makes of messages of one millisecond."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.admin.reading import Page, QueueReader
from skylarkmq.client.wire.api_admin import AdminApi
from skylarkmq.protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class Stored:
    """What `place_of` looks at of a message."""

    def __init__(self, queue_offset: int, store_timestamp: int) -> None:
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp


class FakeReader(QueueReader):
    """A queue whose first message has the offset `first`, stored at `times`."""

    def __init__(self, times: list[int], first: int, page_size: int, seed: int) -> None:
        super().__init__(cast(AdminApi, None))
        self.times = times
        self.first = first
        self.page_size = page_size
        self.random = Random(seed)
        self.read_count = 0

    async def begin(self, address: str, queue: MessageQueue) -> int:
        return self.first

    async def end(self, address: str, queue: MessageQueue) -> int:
        return self.first + len(self.times)

    async def nearest(self, address: str, queue: MessageQueue, instant_ms: int) -> int:
        """By the rule of 4.9: any exact one, else the nearer neighbour, the earlier on a tie."""
        exact = [n for n, time in enumerate(self.times) if time == instant_ms]
        if exact:
            return self.first + self.random.choice(exact)
        later = bisect_left(self.times, instant_ms)
        if later == 0:
            return self.first
        if later == len(self.times):
            return self.first + len(self.times) - 1
        before = instant_ms - self.times[later - 1]
        return self.first + (later - 1 if before <= self.times[later] - instant_ms else later)

    async def page(self, address: str, queue: MessageQueue, offset: int, count: int = 32) -> Page:
        self.read_count += 1
        start = offset - self.first
        times = self.times[start : start + self.page_size]
        found = [Stored(offset + n, time) for n, time in enumerate(times)]
        return Page(cast(list[MessageExt], found), offset + len(found))


def drive(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


@given(
    st.lists(st.integers(1, 30), max_size=40).map(sorted),
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(0, 32),
    st.integers(0, 2**32),
)
def test_place_of(times: list[int], first: int, page_size: int, instant: int, seed: int) -> None:
    reader = FakeReader(times, first, page_size, seed)
    place = drive(reader.place_of("broker-a:10911", QUEUE, instant))
    assert place == first + bisect_left(times, instant)
    # Never more than the messages of the one ms before are passed.
    assert reader.read_count <= times.count(instant - 1) // page_size + 2
