"""Windows, the watermark and lateness, without a JVM."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.jobs.windows import (
    DELAY_BOUNDS_MS,
    Partial,
    StateError,
    Tally,
    WindowBook,
    WindowKey,
    WindowRow,
)

WINDOW_MS = 100
DELAY_MS = 50


def partial(start_ms: int, latest_ms: int, count: int = 1, **more: bool) -> Partial:
    return Partial(WindowKey(start_ms, "T", "a"), Tally(messages=count), latest_ms, **more)


def shown(rows: Sequence[WindowRow]) -> list[tuple[str, int, int]]:
    return [(row.kind, row.key.start_ms, row.tally.rows) for row in rows]


def test_a_window_closes_when_the_watermark_reaches_its_end() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    assert book.apply(0, [partial(0, 99), partial(100, 149)]) == []
    assert book.watermark_ms == 99
    assert shown(book.apply(1, [partial(100, 150)])) == [("window", 0, 1)]
    assert (book.watermark_ms, set(book.open)) == (100, {WindowKey(100, "T", "a")})


def test_within_a_batch_nothing_is_late() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    rows = book.apply(0, [partial(1000, 1099), partial(0, 5)])
    assert shown(rows) == [("window", 0, 1)]


def test_what_comes_for_a_closed_window_is_a_row_of_its_own() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    book.apply(0, [partial(0, 10), partial(100, 150)])
    assert shown(book.apply(1, [partial(0, 20, 3), partial(0, 30, 4)])) == [("late", 0, 7)]
    assert (book.totals.closed, book.totals.late, book.totals.windows) == (1, 7, 1)


def test_a_wrong_clock_ahead_moves_nothing() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    rows = book.apply(0, [partial(10**15, 60, 2, ahead=True), partial(0, 60)])
    assert shown(rows) == [("ahead", 10**15, 2)]
    assert book.watermark_ms == 10
    assert book.totals.ahead == 2


def test_the_watermark_never_goes_back() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    book.apply(0, [partial(900, 999)])
    book.apply(1, [partial(0, 1)])
    assert book.watermark_ms == 949
    longer = WindowBook.from_json(book.as_json(), WINDOW_MS, 10 * DELAY_MS)
    longer.apply(2, [])
    assert longer.watermark_ms == 949


def test_a_batch_without_messages_changes_nothing() -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    assert book.apply(0, []) == []
    assert book.watermark_ms is None


def test_rows_come_in_an_order_of_their_own() -> None:
    def rows(partials: list[Partial]) -> list[WindowRow]:
        return WindowBook(WINDOW_MS, 0).apply(0, partials)

    partials = [
        Partial(WindowKey(start, topic, tag), Tally(messages=1), 10**6)
        for start in (0, 100)
        for topic in "AB"
        for tag in ("", "x")
    ]
    assert rows(partials) == rows(partials[::-1])


@pytest.mark.parametrize("batch_id", [0, 1, 3])
def test_a_batch_out_of_turn_is_refused(batch_id: int) -> None:
    book = WindowBook(WINDOW_MS, DELAY_MS)
    book.apply(0, [])
    book.apply(1, [])
    with pytest.raises(StateError, match=f"batch {batch_id} does not follow batch 1"):
        book.apply(batch_id, [])


@pytest.mark.parametrize(
    ("window_ms", "event_time", "text"),
    [(200, "store", "100 ms long, not 200"), (100, "born", "store time, not born")],
)
def test_a_state_of_other_windows_is_refused(window_ms: int, event_time: str, text: str) -> None:
    state = WindowBook(WINDOW_MS, DELAY_MS).as_json()
    with pytest.raises(StateError, match=text):
        WindowBook.from_json(state, window_ms, DELAY_MS, event_time)


def test_a_state_of_another_release_is_refused() -> None:
    state = WindowBook(WINDOW_MS, DELAY_MS).as_json().replace('"v":1', '"v":2')
    with pytest.raises(StateError, match="another release"):
        WindowBook.from_json(state, WINDOW_MS, DELAY_MS)


messages = st.lists(
    st.tuples(st.integers(0, 2000), st.sampled_from("AB"), st.sampled_from(["", "x"])), max_size=30
)


def partials_of(batch: list[tuple[int, str, str]]) -> list[Partial]:
    return [
        Partial(WindowKey(ms - ms % WINDOW_MS, topic, tag), Tally(messages=1, stored_bytes=ms), ms)
        for ms, topic, tag in batch
    ]


@given(st.lists(messages, max_size=8), st.integers(0, 200), st.randoms())
def test_nothing_is_lost_or_doubled_whatever_the_batches(
    batches: list[list[tuple[int, str, str]]], delay_ms: int, chance: random.Random
) -> None:
    book = WindowBook(WINDOW_MS, delay_ms)
    found = Counter[WindowKey]()
    closed = Counter[WindowKey]()
    latest = None
    for number, batch in enumerate(batches):
        chance.shuffle(batch)
        before = book.watermark_ms
        for row in book.apply(number, partials_of(batch)):
            found[row.key] += row.tally.messages
            closed[row.key] += row.kind == "window"
            end_ms = row.key.start_ms + WINDOW_MS
            if row.kind == "late":
                assert before is not None
                assert end_ms <= before
            else:
                assert book.watermark_ms is not None
                assert end_ms <= book.watermark_ms
        if chance.random() < 0.5:  # a restart
            again = WindowBook.from_json(book.as_json(), WINDOW_MS, delay_ms)
            assert again.as_json() == book.as_json()
            book = again
        times = [ms for ms, _, _ in batch]
        latest = max([*times, *([] if latest is None else [latest])], default=None)
        assert book.watermark_ms == (None if latest is None else latest - delay_ms)
    for key, tally in book.open.items():
        found[key] += tally.messages
        assert not closed[key]
    everything = [partial.key for batch in batches for partial in partials_of(batch)]
    assert found == Counter(everything)
    assert max(closed.values(), default=0) <= 1
    totals = book.totals
    opened = sum(tally.messages for tally in book.open.values())
    assert totals.closed + totals.late + opened == len(everything)


def tally_of(delays: list[int]) -> Tally:
    return Tally(
        messages=len(delays),
        delay_ms_sum=sum(delays),
        delay_ms_min=min(delays, default=None),
        delay_ms_max=max(delays, default=None),
        delays=[sum(delay <= bound for delay in delays) for bound in DELAY_BOUNDS_MS],
    )


delay_lists = st.lists(st.integers(-5, 10**7), max_size=40)


@given(delay_lists, delay_lists)
def test_tallies_add_up(some: list[int], others: list[int]) -> None:
    sum_of_both = tally_of(some)
    sum_of_both.add(tally_of(others))
    assert sum_of_both == tally_of(some + others)


@given(delay_lists, st.sampled_from([50, 95, 99]))
def test_a_percentile_is_a_bound(delays: list[int], percent: int) -> None:
    bound = tally_of(delays).percentile(percent)
    if not delays:
        assert bound is None
        return
    assert bound is not None
    assert sum(delay <= bound for delay in delays) * 100 >= len(delays) * percent
    lower = [b for b in DELAY_BOUNDS_MS if b < bound]
    if lower:
        assert sum(delay <= lower[-1] for delay in delays) * 100 < len(delays) * percent


def test_tallies_do_not_share_their_counts() -> None:
    assert Tally().delays is not Tally().delays
