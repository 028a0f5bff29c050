"""What an archive's commits say, and the sum of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.spark.archive import state as archive_state
from skylarkmq.spark.archive.spans import OverlapError, Spans
from skylarkmq.spark.archive.state import (
    ArchiveError,
    ArchiveState,
    Change,
    read_note,
    sum_up,
    write_note,
)
from skylarkmq.spark.offsets import QueueKey, QueueOffsets

Q = [QueueKey("%RETRY%g", "broker-a", 0), QueueKey("T", "broker-b", 7)]


def note_of(state: ArchiveState, change: Change, kind: str = "append") -> str:
    return write_note(state, change, kind=kind, run="r", token="t")


def told(changes: Sequence[Change]) -> tuple[ArchiveState, list[str]]:
    """The sum of changes, and what their commits say, newest first."""
    state, texts = ArchiveState(), list[str]()
    for change in changes:
        texts.insert(0, note_of(state, change))
        state.apply(change)
    return state, texts


def parts(state: ArchiveState) -> tuple[object, ...]:
    return state.number, state.start, state.spans, state.gone, state.ends


@given(
    st.lists(st.tuples(st.sampled_from(Q), st.integers(1, 5), st.booleans()), max_size=40),
    st.integers(0, 3),
    st.integers(1, 5),
)
def test_the_sum_is_told(steps: list[tuple[QueueKey, int, bool]], small: int, every: int) -> None:
    """By the newest commit alone, or by those back to the last one that is whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_state, "SMALL", small)
        patch.setattr(archive_state, "WHOLE_EVERY", every)
        changes, ends = [Change(start=QueueOffsets(dict.fromkeys(Q, 3)))], dict.fromkeys(Q, 3)
        for key, size, goes in steps:
            run = Spans.of([(key, ends[key], ends[key] + size)])
            last = {key: Fingerprint(size, ends[key], 7)}
            changes.append(Change(spans=run, ends=QueueOffsets({key: ends[key] + size}, last)))
            ends[key] += size + size % 2  # a hole now and then
            if goes:
                changes.append(Change(gone=run))
        state, texts = told(changes)
        notes = [read_note(text, "here") for text in texts]
        found = sum_up(notes, len(changes))
        assert found is not None and parts(found) == parts(state)
        # One of them is not there any more: then nothing is told, or it was not needed.
        for missing in range(len(notes)):
            found = sum_up([*notes[:missing], *notes[missing + 1 :]], len(changes))
            assert found is None or parts(found) == parts(state)
        assert sum_up(notes, len(changes) + 1) is None
        assert sum_up([], 1) is None


def test_a_long_text_is_packed() -> None:
    queues = {QueueKey("T", "broker-a", n): n for n in range(5_000)}
    text = note_of(ArchiveState(), Change(start=QueueOffsets(queues)), "start")
    assert text.startswith("z:") and len(text) < 40_000
    note = read_note(text, "here")
    assert (note.number, note.kind, note.run, note.token, note.whole) == (
        1,
        "start",
        "r",
        "t",
        True,
    )
    assert note.change.start == queues


def test_what_has_gone_is_never_archived_again() -> None:
    state = ArchiveState()
    state.apply(Change(spans=Spans.of([(Q[0], 0, 10)])))
    state.apply(Change(gone=Spans.of([(Q[0], 2, 12), (Q[1], 0, 1)])))  # some of it unknown so far
    state.apply(Change(gone=Spans.of([(Q[0], 5, 13)])))
    assert state.gone == Spans.of([(Q[0], 2, 13), (Q[1], 0, 1)])
    assert state.present() == Spans.of([(Q[0], 0, 2)])
    assert (state.next_offset(Q[0]), state.next_offset(Q[1])) == (13, 1)
    with pytest.raises(OverlapError, match=r"\[12, 13\)"):
        state.apply(Change(spans=Spans.of([(Q[0], 12, 14)])))
    assert state.number == 3


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"v": None}, {"kind": "x"}, {"n": "y"}, {"spans": {"T": 3}}, {"spans": []},
     {"start": {"v": 3, "o": {}}}, {"ends": {"v": 3, "o": {}}},
     {"gone": {"T": {"b": {"0": [[0, 2], [1, 3]]}}}}],
)  # fmt: skip
def test_damaged(change: dict[str, object]) -> None:
    document = json.loads(note_of(ArchiveState(), Change()))
    with pytest.raises(ArchiveError, match="the archive there"):
        read_note(json.dumps(document | change), "there")


def test_a_note_of_an_earlier_release_knows_no_messages() -> None:
    last = QueueOffsets({Q[0]: 3}, {Q[0]: Fingerprint(1, 2, 3)})
    document = json.loads(note_of(ArchiveState(), Change(ends=last)))
    assert read_note(json.dumps(document), "there").change.ends == last
    del document["ends"]
    assert read_note(json.dumps(document), "there").change.ends == {}


@pytest.mark.parametrize("text", [None, 5, "", "{", "[]", "z:", "z:!!", "z:aGVsbG8=", "{}"])
def test_no_note(text: object) -> None:
    with pytest.raises(ArchiveError, match="is damaged"):
        read_note(text, "there")
