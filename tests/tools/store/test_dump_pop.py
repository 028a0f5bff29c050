"""`store dump` of pop consumption's journal: what is in flight, and each file's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.store.pop.journal_file import FrameWriter, file_head, file_path
from skylarkmq.store.pop.journal_records import (
    Changed,
    Clean,
    Done,
    Forgot,
    Key,
    KeyState,
    Left,
    Moved,
    Record,
    Row,
    State,
    Took,
    Whole,
)
from tests.tools.store.support import Sample, flip, run, run_rows

MAIN, RETRY, OLD = Key("G", "T", 0, 3), Key("G", "T", 1, 0), Key("G", "", 2, 0)
BEGAN_MS = 1_764_000_000_000
VISIBLE_MS = BEGAN_MS + 30_000


def row(offset: int, **fields: int) -> Row:
    return Row(offset, offset * 100, BEGAN_MS, VISIBLE_MS, 1)._replace(**fields)


def write(sample: Sample, number: int, *turns: tuple[Record, ...], synced: int = 0) -> list[int]:
    """Write a file with a frame for each turn; return the places of the frames."""
    folder = sample.root / "skylarkmq" / "pop"
    folder.mkdir(parents=True, exist_ok=True)
    data, writer, places = file_head(number), FrameWriter(), list[int]()
    for records in turns:
        places.append(len(data))
        data += writer.frame(records, synced)
    file_path(folder, number).write_bytes(data + bytes(64))
    return places


def filled(sample: Sample, *more: tuple[Record, ...], synced: int = 0) -> list[int]:
    write(sample, 3, (Took(MAIN, 99, 9, (row(98),)),))  # the next one says all anew
    return write(
        sample, 4,
        (State(MAIN, KeyState(5, 400, {4: row(4)}, "open")), State(OLD, KeyState(2, 9)), Whole(7)),
        (Took(MAIN, 8, 700, (row(5), row(6), row(7))), Took(RETRY, 1, 5, (row(0, attempt=3),))),
        (Done(MAIN, 5), Left(MAIN, 6, 4321), Changed(RETRY, 0, BEGAN_MS + 9, VISIBLE_MS + 9, 3)),
        *more, synced=synced,
    )  # fmt: skip


def in_flight(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["source"], each["queue_offset"]) for each in rows if each["kind"] == "message"]


def test_the_folder_is_what_is_in_flight(sample: Sample) -> None:
    filled(sample, (Clean(),))
    journal, *rows = run_rows("dump", sample.root, "skylarkmq/pop")
    assert journal == {
        "kind": "journal", "files": [3, 4], "clean": True, "last_serial": BEGAN_MS + 9,
        "queues": 3, "in_flight": 4,
    }  # fmt: skip
    assert [each["kind"] for each in rows] == [
        "queue",
        "queue",
        *["message"] * 3,
        "queue",
        "message",
    ]
    assert rows[0] == {
        "kind": "queue", "group": "G", "topic": None, "source": "old_retries", "queue_id": 0,
        "done_below": 2, "next_offset": 2, "in_flight": 0, "attempt_id": None,
    }  # fmt: skip
    assert rows[1] == {
        "kind": "queue", "group": "G", "topic": "T", "source": "topic", "queue_id": 3,
        "done_below": 4, "next_offset": 8, "in_flight": 3, "attempt_id": None,
    }  # fmt: skip
    assert in_flight(rows) == [("topic", 4), ("topic", 6), ("topic", 7), ("retries", 0)]
    assert list(rows[2]) == [
        "kind", "group", "topic", "source", "queue_id", "queue_offset", "physical_offset",
        "attempt", "serial", "visible_timestamp", "copy_physical_offset",
    ]  # fmt: skip
    assert [each["copy_physical_offset"] for each in rows[2:5]] == [None, 4321, None]
    assert rows[-1] == {
        "kind": "message", "group": "G", "topic": "T", "source": "retries", "queue_id": 0,
        "queue_offset": 0, "physical_offset": 0, "attempt": 3, "serial": BEGAN_MS + 9,
        "visible_timestamp": VISIBLE_MS + 9, "copy_physical_offset": None,
    }  # fmt: skip


def test_a_file_is_its_records(sample: Sample) -> None:
    places = filled(sample, (Moved(MAIN, 6), Forgot(None, "T"), Clean()))
    path = sample.root / "skylarkmq" / "pop" / f"{4:020d}"
    rows = run_rows("dump", sample.root, path)
    assert [each["kind"] for each in rows] == [
        "header", "state", "state", "whole", "took", "took", "done", "left", "changed", "moved",
        "forgot", "clean", "unwritten",
    ]  # fmt: skip
    assert [each["position"] for each in rows[1:-1]] == [
        *[places[0]] * 3, *[places[1]] * 2, *[places[2]] * 3, *[places[3]] * 3
    ]  # fmt: skip
    assert rows[0] == {"kind": "header", "position": 0, "version": 1, "number": 4}
    assert rows[1]["attempt_id"] == "open"
    assert [each["queue_offset"] for each in rows[4]["messages"]] == [5, 6, 7]
    assert rows[6] == {
        "kind": "done", "position": places[2], "group": "G", "topic": "T", "source": "topic",
        "queue_id": 3, "queue_offset": 5,
    }  # fmt: skip
    assert rows[8] == {
        "kind": "changed", "position": places[2], "group": "G", "topic": "T", "source": "retries",
        "queue_id": 0, "queue_offset": 0, "serial": BEGAN_MS + 9,
        "visible_timestamp": VISIBLE_MS + 9, "attempt": 3,
    }  # fmt: skip
    assert (rows[7]["copy_physical_offset"], rows[9]["end_physical_offset"]) == (4321, None)
    assert (rows[10]["group"], rows[10]["topic"]) == (None, "T")
    assert rows[-1]["position"] + rows[-1]["size"] == path.stat().st_size


@pytest.mark.parametrize(("synced", "kind"), [(0, "torn"), (1 << 30, "damage")])
def test_where_it_ends_early(sample: Sample, synced: int, kind: str) -> None:
    places = filled(sample, (Clean(),), synced=synced)
    path = sample.root / "skylarkmq" / "pop" / f"{4:020d}"
    flip(path, places[2] + 12)
    journal, tear, *rows = run_rows("dump", sample.root, "skylarkmq/pop")
    assert (journal["clean"], journal["in_flight"]) == (False, 5)
    assert tear == {"kind": kind, "position": places[2], "file": path.name}
    assert in_flight(rows)[1] == ("topic", 5), "what was done behind it is not believed"
    assert run_rows("dump", sample.root, path)[-1]["kind"] == "damage"


def test_a_file_that_is_none(sample: Sample) -> None:
    filled(sample)
    path = sample.root / "skylarkmq" / "pop" / f"{4:020d}"
    path.write_bytes(b"other" * 9)
    (only,) = run_rows("dump", sample.root, path)
    assert only == {"kind": "damage", "position": 0, "size": 45}
    path.write_bytes(file_head(4).replace(b"\0\1", b"\0\2", 1))
    assert run("dump", sample.root, path).exit_code == 0, "its checksum is wrong, so not a version"


def test_nobody_pops(sample: Sample) -> None:
    result = run("dump", sample.root, "skylarkmq/pop")
    assert result.exit_code == 2
    assert "skylarkmq/pop" in result.stderr


def test_nothing_is_changed_and_people_can_read_it(sample: Sample) -> None:
    filled(sample)

    def bytes_of() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in sample.root.rglob("*") if p.is_file()}

    before = bytes_of()
    result = run("dump", sample.root, "skylarkmq/pop", "--max", 4)
    assert bytes_of() == before
    kinds = [line.split()[0] for line in result.stdout.splitlines()]
    assert kinds == ["journal", "queue", "queue", "message"]
