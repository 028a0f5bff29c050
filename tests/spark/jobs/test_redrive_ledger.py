"""The ledger of a redrive: what is written, cut, damaged, or held by another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.jobs.redrive_ledger import STATES, Entry, LetterKey, RedriveLedger
from skylarkmq.spark.storage import Location

QUEUE = MessageQueue("orders", "broker-a", 1)


def entry(offset: int, state: str = "intent") -> Entry:
    key = LetterKey("broker-a", 0, offset, f"ID{offset}")
    return Entry(key, state, QUEUE, 120, "2026-01-31T05:00:00Z")  # type: ignore[arg-type]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(
    st.builds(LetterKey, texts, st.integers(0, 9), st.integers(0, 2**62), texts),
    st.sampled_from(STATES),
    st.none() | st.builds(MessageQueue, texts, texts, st.integers(0, 9)),
    texts,
)
def test_lines(key: LetterKey, state: str, target: MessageQueue | None, error: str) -> None:
    offset, status = (7, "SEND_OK") if state == "sent" else (-1, "")
    place = -1 if target is None else 5
    one = Entry(key, state, target, place, "now", error, status, offset)  # type: ignore[arg-type]
    assert b"\n" not in one.line()
    assert Entry.of_line(one.line()) == one


def test_the_last_line_of_a_letter_counts(place: Location) -> None:
    with RedriveLedger(place, "g") as ledger:
        ledger.record([entry(1), entry(2)])
        ledger.record([entry(1, "sent")])
    for read_only in (True, False):
        with RedriveLedger(place, "g", read_only=read_only) as ledger:
            assert {key.queue_offset: one.state for key, one in ledger.entries.items()} == {
                1: "sent",
                2: "intent",
            }


def test_a_cut_first_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(b'{"v":1,"gro')
    place = Location.parse(str(path))
    with RedriveLedger(place, "g") as ledger:
        ledger.record([entry(1)])
    with RedriveLedger(place, "g") as ledger:
        assert len(ledger.entries) == 1


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"letter":[1],"event":"sent"}', b"[]"])
def test_damage_is_told_with_its_line(place: Location, line: bytes) -> None:
    with RedriveLedger(place, "g") as ledger:
        ledger.record([entry(1)])
        ledger._log.append([line, entry(2).line()])
    with (
        pytest.raises(JobError, match=r"line 3 of the ledger .* is damaged"),
        RedriveLedger(place, "g"),
    ):
        pass


def test_another_group_has_another_ledger(place: Location) -> None:
    with RedriveLedger(place, "g"):
        pass
    with pytest.raises(JobError, match="is of group g, not h"), RedriveLedger(place, "h"):
        pass


def test_nothing_is_written_to_read(place: Location) -> None:
    with RedriveLedger(place, "g", read_only=True) as ledger:
        assert not ledger.entries
    with RedriveLedger(place, "other"):
        pass
