"""`store dump`: each layout."""

from __future__ import annotations

from tests.support.store_samples import SIZES, is_queued
from tests.tools.store.support import Sample, flip, run, run_rows


def test_log_records(pristine: Sample) -> None:
    rows = run_rows("dump", pristine.root, pristine.log(0))
    first = pristine.messages[0]
    assert list(rows[0]) == [
        "kind", "position", "total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset",
        "physical_offset", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
        "store_host", "reconsume_times", "prepared_transaction_offset", "body_size", "topic",
        "properties",
    ]  # fmt: skip
    assert rows[0]["magic"] == "0xdaa320a7"
    assert rows[0]["born_host"] == "192.0.2.7:40000"
    assert rows[0]["body_size"] == len(first["body"])
    assert [row["position"] for row in rows[:-1]] == [
        message["physical_offset"] for message in pristine.messages[: len(rows) - 1]
    ]
    assert rows[-1]["kind"] == "blank"


def test_damage_is_a_row_and_the_next_record_follows(sample: Sample) -> None:
    path, position = sample.place(sample.messages[1])
    flip(path, position + 120)
    rows = run_rows("dump", sample.root, path, "--max", 3)
    assert [row["kind"] for row in rows] == ["message", "corrupt", "message"]
    assert rows[1]["why"] == "the body's checksum is wrong"
    assert rows[2]["position"] == sample.messages[2]["physical_offset"]


def test_queue_units(pristine: Sample) -> None:
    rows = run_rows("dump", pristine.root, "consumequeue/Tagged/0/00000000000000000000")
    tagged = [m for m in pristine.messages if m["topic"] == "Tagged" and is_queued(m)]
    assert [(row["commit_offset"], row["tags_code"]) for row in rows[:20]] == [
        (message["physical_offset"], message["tags_code"]) for message in tagged[:20]
    ]
    assert list(rows[0]) == [
        "kind", "position", "queue_offset", "commit_offset", "record_size", "tags_code",
        "ext_offset",
    ]  # fmt: skip


def test_index_header_slots_and_items(pristine: Sample) -> None:
    name = sorted((pristine.root / "index").iterdir())[0]
    rows = run_rows("dump", pristine.root, name, "--with-slots")
    assert rows[0]["kind"] == "header"
    assert rows[0]["slot_count"] == SIZES["maxHashSlotNum"]
    assert rows[0]["item_count"] == SIZES["maxIndexNum"]
    items = {row["item"]: row for row in rows if row["kind"] == "item"}
    assert len(items) == SIZES["maxIndexNum"] - 1
    slots = [row for row in rows if row["kind"] == "slot"]
    assert len(slots) == rows[0]["slots_used"]
    assert all(items[row["item"]]["slot"] == row["slot"] for row in slots)


def test_small_files(pristine: Sample) -> None:
    (row,) = run_rows("dump", pristine.root, "checkpoint")
    assert row["size"] == 4096
    (row,) = run_rows("dump", pristine.root, "config/consumerOffset.json")
    assert row["content"] == {"offsetTable": {"Plain@G": {"0": 2, "1": 1}}}
    (row,) = run_rows("dump", pristine.root, "skylarkmq/profile")
    assert row["content"]["maxIndexNum"] == SIZES["maxIndexNum"]


def test_a_table_for_people(pristine: Sample) -> None:
    result = run("dump", pristine.root, pristine.log(0), "--max", 1)
    assert result.stdout.split()[:2] == ["0", "message"]


def test_what_no_store_has_is_refused(sample: Sample) -> None:
    (sample.root / "notes.txt").write_text("hello")
    result = run("dump", sample.root, "notes.txt")
    assert result.exit_code == 2
    assert "notes.txt" in result.stderr
