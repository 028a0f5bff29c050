"""`store salvage`: what is sound is saved in its place, and what is lost is told."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from skylarkmq.protocol.record import RecordStatus, read_record
from skylarkmq.tools.store.salvage import Hole, Lost, filling
from tests.support.disk_store import DiskStore
from tests.support.store_samples import SIZES, Fields, by_key, by_queue
from tests.tools.store.support import Sample, flip, overwrite, run, run_json, run_lines

LATER_MS = 4_000_000_000_000
HOLE_SIZES = (
    *(91, 92, 104, 105, 106, 115, 190, 300, 303, 333, 360, 361, 394, 395, 500),
    *((1 << 20) + 50, 3 << 20),
)
LOG_SIZE = SIZES["mappedFileSizeCommitLog"]


def check_sound(root: Path) -> None:
    assert run_json("verify", root)["kinds"] == {}


def opened(root: Path) -> dict[tuple[str, int], list[Fields]]:
    """The messages of a store as our broker's store reads them."""
    disk = DiskStore(root, SIZES, LATER_MS)
    assert disk.start().clean
    found = disk.read()
    disk.stop()
    return found


def test_a_sound_store_is_saved_whole(sample: Sample, tmp_path: Path) -> None:
    new = tmp_path / "new"
    result = run_json("salvage", sample.root, new)
    assert result == {
        "root": str(sample.root), "into": str(new), "complete": True,
        "records": len(sample.messages), "end_offset": result["end_offset"],
        "units": sum(map(len, by_queue(sample.messages).values())),
        "entries": sum(map(len, by_key(sample.messages).values())),
        "holes": [], "lost": [], "unplaced": 0, "lost_at_end": [], "dropped": 0, "passed_over": 0,
        "tables": [{"name": name, "from": name} for name in ("topics.json", "consumerOffset.json")],
    }  # fmt: skip
    for folder in ("commitlog", "consumequeue", "index", "config"):
        for path in (sample.root / folder).rglob("*"):
            if path.is_file():
                assert (new / path.relative_to(sample.root)).read_bytes() == path.read_bytes()
    check_sound(new)


def test_lost_messages_keep_their_places(sample: Sample, tmp_path: Path) -> None:
    new = tmp_path / "new"
    lost = [sample.of("Tagged", 5), sample.of("Keyed", 9), sample.of("Plain", 20)]
    for message in lost:
        path, position = sample.place(message)
        flip(path, position + 100)
    result = run_json("salvage", sample.root, new, exit_code=1)
    names = ("topic", "queue_id", "queue_offset")
    assert result["lost"] == sorted(
        [{name: message[name] for name in names} for message in lost],
        key=lambda one: tuple(one.values()),
    )
    assert [hole["size"] for hole in result["holes"]] == [
        sample.messages[sample.messages.index(message) + 1]["physical_offset"]
        - message["physical_offset"]
        for message in lost
    ]
    check_sound(new)
    read, expected = opened(new), by_queue(sample.messages)
    for key, messages in expected.items():
        for before, after in zip(messages, read[key], strict=True):
            if before in lost:
                assert after["properties"] == {"SKYLARKMQ_LOST": "true"}
                assert (after["body"], after["queue_offset"]) == ("", before["queue_offset"])
            else:
                assert after == before


def test_damage_over_many_messages_and_their_units(sample: Sample, tmp_path: Path) -> None:
    """Without units only the numbers of the messages behind tell how many were lost."""
    new = tmp_path / "new"
    begin, end = 20, 60
    for message in sample.messages[begin:end]:
        path, position = sample.place(message)
        overwrite(path, position, b"\xee" * 84)
    shutil.rmtree(sample.root / "consumequeue")
    result = run_json("salvage", sample.root, new, exit_code=1)
    gone = by_queue(sample.messages[begin:end])
    assert len(result["lost"]) == sum(map(len, gone.values()))
    assert result["unplaced"] == 0
    check_sound(new)
    kept = by_queue([*sample.messages[:begin], *sample.messages[end:]])
    read = opened(new)
    for key, messages in kept.items():
        saved = [m for m in read[key] if "SKYLARKMQ_LOST" not in m["properties"]]
        if key[0] != "SCHEDULE_TOPIC_XXXX":
            assert saved == messages


def test_a_lost_message_takes_no_place_that_a_blank_record_has(
    sample: Sample, tmp_path: Path
) -> None:
    """Without its unit it may have lain anywhere between its neighbours; a blank lost nothing."""
    new = tmp_path / "new"
    before, lost = next(
        (one, other)
        for queue in by_queue(sample.messages).values()
        for one, other in pairwise(queue[:-1])
        if sample.place(one)[0] == sample.log(0) and sample.place(other)[0] == sample.log(1)
    )
    assert before["queue_offset"] + 1 == lost["queue_offset"]
    path, position = sample.place(lost)
    overwrite(path, position, b"\xee" * 84)
    shutil.rmtree(sample.root / "consumequeue")
    result = run_json("salvage", sample.root, new, exit_code=1)
    assert len(result["lost"]) == 1
    first = Path("commitlog", sample.log(0).name)
    assert (new / first).read_bytes() == (sample.root / first).read_bytes()
    check_sound(new)


def test_the_last_message_of_a_queue(sample: Sample, tmp_path: Path) -> None:
    """Only its unit tells of it; its number must not be given out again."""
    last = by_queue(sample.messages)["Batched", 1][-1]
    path, position = sample.place(last)
    flip(path, position + 90)
    result = run_json("salvage", sample.root, tmp_path / "new", exit_code=1)
    assert result["lost"] == [
        {"topic": "Batched", "queue_id": 1, "queue_offset": last["queue_offset"]}
    ]
    queues = run_json("info", tmp_path / "new")["queues"]
    (queue,) = [queue for queue in queues if queue["topic"] == "Batched"]
    assert queue["max_offset"] == last["queue_offset"] + 1
    check_sound(tmp_path / "new")


def test_a_missing_file_and_a_short_one(sample: Sample, tmp_path: Path) -> None:
    new = tmp_path / "new"
    sample.log(1).unlink()
    with sample.log(0).open("r+b") as file:
        file.truncate(70_000)
    result = run_json("salvage", sample.root, new, exit_code=1)
    assert [hole["why"] for hole in result["holes"]][-1] == "no file is there"
    assert sum(hole["size"] for hole in result["holes"]) > LOG_SIZE
    assert (new / "commitlog" / f"{LOG_SIZE:020d}").stat().st_size == LOG_SIZE
    check_sound(new)
    assert opened(new)["Tagged", 0][-1] == by_queue(sample.messages)["Tagged", 0][-1]


def test_a_log_that_has_lost_its_end(sample: Sample, tmp_path: Path) -> None:
    new = tmp_path / "new"
    cut = sample.messages[-30]
    path, position = sample.place(cut)
    overwrite(path, position, b"\xee" * (LOG_SIZE - position))
    for later in sorted((sample.root / "commitlog").iterdir()):
        if later.name > path.name:
            later.unlink()
    result = run_json("salvage", sample.root, new, exit_code=1)
    assert result["end_offset"] == cut["physical_offset"]
    assert sum(row["count"] for row in result["lost_at_end"]) == sum(
        map(len, by_queue(sample.messages[-30:]).values())
    )
    kinds = run("verify", new).stdout
    assert "the store is sound" in kinds
    assert opened(new) == by_queue(sample.messages[:-30])


def test_tables_come_from_their_backups(sample: Sample, tmp_path: Path) -> None:
    config = sample.root / "config"
    shutil.copy(config / "topics.json", config / "topics.json.bak")
    (config / "topics.json").write_text("{")
    (config / "consumerOffset.json").write_text("{")
    result = run_json("salvage", sample.root, tmp_path / "new", exit_code=1)
    assert result["tables"] == [
        {"name": "topics.json", "from": "topics.json.bak"},
        {"name": "consumerOffset.json", "from": None},
    ]
    saved = tmp_path / "new" / "config" / "topics.json"
    assert saved.read_text() == (config / "topics.json.bak").read_text()


def test_queues_without_messages_keep_their_place(sample: Sample, tmp_path: Path) -> None:
    """The only message of a queue has left the log; the next one must not be number 0."""
    sample.log(0).unlink()
    new = tmp_path / "new"
    assert run_json("salvage", sample.root, new)["complete"]
    (queue,) = [queue for queue in run_json("info", new)["queues"] if queue["topic"] == "Once"]
    assert (queue["min_offset"], queue["max_offset"]) == (1, 1)


def test_where_it_may_not_write(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for target in (tmp_path / "full", sample.root / "new"):
        result = run("salvage", sample.root, target)
        assert result.exit_code == 2
        assert str(target) in result.stderr
    assert not (sample.root / "new").exists()


def test_lost_messages_may_be_shown(sample: Sample, tmp_path: Path) -> None:
    path, position = sample.place(sample.of("Tagged", 5))
    flip(path, position + 100)
    assert (
        "lost    message 5 of queue 0 of Tagged"
        in run("salvage", sample.root, tmp_path / "new").stdout
    )
    (shown,) = run_lines(
        "cat", tmp_path / "new", "--topic", "Tagged", "--queue", 0, "--from", 5, "--to", 5
    )
    assert shown["properties"] == {"SKYLARKMQ_LOST": "true"}


@pytest.mark.parametrize("ends_file", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("size", HOLE_SIZES)
def test_a_hole_is_filled_to_the_byte(size: int, count: int, ends_file: bool) -> None:
    lost = [Lost("Topic", 1, number) for number in range(count)]
    hole = Hole(1000, 1000 + size, ends_file, "", 5, lost)
    if hole.room < 0:
        return  # such a hole is never planned
    position, found = 0, []
    data = bytearray(size)
    for offset, record in filling(hole):
        assert offset == 1000 + position
        data[position : position + len(record)] = record
        position += len(record)
        if not ends_file or record[4] == 0xDA:
            view = read_record(record, 0, physical_offset=offset)
            assert view.status is RecordStatus.MESSAGE, view.why
            found += [view.queue_offset] if view.topic == b"Topic" else []
    assert found == list(range(count))
    if not ends_file:
        assert position == size
        return
    blank = read_record(bytes(data), position - 8)
    assert (blank.status, blank.size) == (RecordStatus.BLANK, size - position + 8)
