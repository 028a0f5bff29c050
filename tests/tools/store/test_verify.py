"""`store verify`: a sound store is sound, and each damage is found at its file and byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.verify import Verification
from tests.support.store_samples import SIZES, by_key, is_queued
from tests.tools.store.support import Sample, flip, overwrite, run, run_json

Found = dict[str, Any]


def findings(sample: Sample) -> list[Found]:
    return run_json("verify", sample.root, exit_code=1)["findings"]


def places(found: list[Found]) -> set[tuple[str, str, int]]:
    return {(one["kind"], one["file"], one["position"]) for one in found}


def test_json_has_this_shape(pristine: Sample) -> None:
    result = run_json("verify", pristine.root)
    end = result.pop("end_offset")
    assert end > pristine.messages[-1]["physical_offset"]
    assert result == {
        "root": str(pristine.root),
        "records": len(pristine.messages),
        "units": len([message for message in pristine.messages if is_queued(message)]),
        "entries": sum(map(len, by_key(pristine.messages).values())),
        "sound": True, "errors": 0, "warnings": 0, "infos": 0,
        "kinds": {}, "left_off": 0, "findings": [],
    }  # fmt: skip


def test_it_changes_nothing(sample: Sample) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in sample.root.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    run("verify", sample.root)
    assert state() == before


def test_a_flipped_byte_of_a_body(sample: Sample) -> None:
    message = sample.of("Keyed", 5)
    path, position = sample.place(message)
    flip(path, position + 100)
    found = findings(sample)
    unit_path, unit_position = sample.unit(message)
    assert places(found) >= {
        ("log.damage", str(path), position),
        ("queue.dangling", str(unit_path), unit_position),
    }
    assert {one["kind"] for one in found} == {
        "log.damage", "log.lost-messages", "queue.dangling", "index.dangling",
    }  # fmt: skip
    assert list(found[0]) == ["severity", "kind", "file", "position", "cause", "cure"]


def test_a_record_of_another_place(sample: Sample) -> None:
    path, position = sample.place(sample.of("Plain", 4))
    overwrite(path, position + 28, struct.pack(">q", 12345))
    assert ("log.damage", str(path), position) in places(findings(sample))


def test_a_leftover_of_another_place_is_no_message(sample: Sample) -> None:
    """After damage the next message is looked for; one that says another offset is none."""
    path, position = sample.place(sample.of("Plain", 4))
    following = sample.messages[sample.messages.index(sample.of("Plain", 4)) + 1]
    small = sample.of("Once", 0)
    data = sample.place(small)[0].read_bytes()[:120]
    overwrite(path, position, b"\xee" * 88)
    overwrite(path, position + 200, data)
    (damage,) = [one for one in findings(sample) if one["kind"] == "log.damage"]
    assert f"at offset {following['physical_offset']}" in damage["cause"]


def test_a_queue_offset_that_does_not_follow(sample: Sample) -> None:
    message = sample.of("Tagged", 7)
    path, position = sample.place(message)
    overwrite(path, position + 20, struct.pack(">q", 9))
    found = places(findings(sample))
    assert ("log.lost-messages", str(path), position) in found
    assert any(kind == "log.queue-order" for kind, _, _ in found)


def test_one_wrong_number_does_not_spoil_the_rest(sample: Sample) -> None:
    """The units in front of it still lead to their messages."""
    path, position = sample.place(sample.of("Tagged", 7))
    overwrite(path, position + 20, struct.pack(">q", 1 << 40))
    found = run_json("verify", sample.root, exit_code=1)
    assert set(found["kinds"]) == {
        "log.lost-messages", "log.queue-order", "queue.dangling",
    }  # fmt: skip
    (dangling,) = [one for one in found["findings"] if one["kind"] == "queue.dangling"]
    assert dangling["cause"].startswith("unit 7:")


UNIT_DAMAGES = {
    "queue.missing-unit": (0, bytes(20)),
    "queue.wrong-unit": (8, struct.pack(">i", 77)),
    "queue.tags-code": (12, struct.pack(">q", 77)),
}


@pytest.mark.parametrize("kind", UNIT_DAMAGES)
def test_a_damaged_unit(sample: Sample, kind: str) -> None:
    path, position = sample.unit(sample.of("Tagged", 6))
    place, data = UNIT_DAMAGES[kind]
    overwrite(path, position + place, data)
    assert (kind, str(path), position) in places(findings(sample))


def test_units_without_messages(sample: Sample) -> None:
    last = sample.of("Tagged", -1)
    path, position = sample.unit(last)
    end = struct.pack(">qiq", 1 << 40, 100, 0)
    overwrite(path, position + 20, end)
    overwrite(path, position + 80, b"\1")
    assert places(findings(sample)) == {
        ("queue.ahead", str(path), position + 20),
        ("queue.leftover", str(path), position + 80),
    }


def test_a_missing_queue(sample: Sample) -> None:
    folder = sample.root / "consumequeue" / "Keyed"
    for path in sorted((folder / "0").iterdir()):
        path.unlink()
    (folder / "0").rmdir()
    (one,) = findings(sample)
    assert (one["kind"], one["file"]) == ("queue.missing", str(folder / "0" / f"{0:020d}"))


def index_damages(sample: Sample) -> dict[str, tuple[Path, int, bytes]]:
    file = sorted((sample.root / "index").iterdir())[0]
    items = 40 + 4 * SIZES["maxHashSlotNum"]
    slot = next(s for s in range(40) if any(file.read_bytes()[40 + 4 * s : 44 + 4 * s]))
    return {
        "index.wrong-key": (file, items + 20 * 9, b"\0\0\0\7"),
        "index.time": (file, items + 20 * 9 + 12, b"\0\0\7\7"),
        "index.order": (file, items + 20 * 9 + 4, bytes(8)),
        "index.chain": (file, items + 20 * 9 + 16, b"\0\0\0\7"),
        "index.structure": (file, 40 + 4 * slot, bytes(4)),
    }


@pytest.mark.parametrize(
    "kind", ["index.wrong-key", "index.time", "index.order", "index.chain", "index.structure"]
)
def test_a_damaged_index(sample: Sample, kind: str) -> None:
    path, position, data = index_damages(sample)[kind]
    overwrite(path, position, data)
    told = [one for one in findings(sample) if one["kind"] == kind]
    assert told
    item = (position - 40 - 4 * SIZES["maxHashSlotNum"]) // 20 * 20
    expected = position if kind == "index.structure" else item + 40 + 4 * SIZES["maxHashSlotNum"]
    assert (told[0]["file"], told[0]["position"]) == (str(path), expected)


def test_missing_index_entries(sample: Sample) -> None:
    files = sorted((sample.root / "index").iterdir())
    assert len(files) > 1
    files[-1].unlink()
    (one,) = findings(sample)
    assert (one["kind"], one["file"]) == ("index.missing-keys", str(files[-2]))


def test_files_by_themselves(sample: Sample) -> None:
    root = sample.root
    (root / "commitlog" / "notes").write_text("x")
    (root / "consumequeue" / "Plain" / "0" / "notes").write_text("x")
    overwrite(root / "skylarkmq" / "profile", 14, b"\xff")
    (root / "config" / "topics.json").write_text('{"a":1,\n x}')
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Plain@G":{0:9999}}}')
    (root / "abort").touch()
    (root / "other").touch()
    assert places(findings(sample)) == {
        ("log.foreign", str(root / "commitlog" / "notes"), 0),
        ("queue.foreign", str(root / "consumequeue" / "Plain" / "0" / "notes"), 0),
        ("own.damage", str(root / "skylarkmq" / "profile"), _crc_position(root)),
        ("table.damage", str(root / "config" / "topics.json"), 10),
        ("table.offset-ahead", str(root / "config" / "consumerOffset.json"), 0),
        ("store.unclean", str(root / "abort"), 0),
        ("store.foreign", str(root / "other"), 0),
    }


def _crc_position(root: Path) -> int:
    return (root / "skylarkmq" / "profile").stat().st_size - 4


def test_a_missing_log_file(sample: Sample) -> None:
    middle = sample.log(1)
    middle.unlink()
    found = places(findings(sample))
    assert ("log.gap", str(sample.log(1)), 0) in found


def test_a_torn_tail_is_usual_after_an_unclean_stop_and_else_an_error(sample: Sample) -> None:
    path, position = sample.place(sample.messages[-1])
    flip(path, position + 88)
    found = findings(sample)
    assert {one["severity"] for one in found if one["kind"] == "log.tail"} == {"error"}
    # The checkpoint of the clean stop knows of more than there is now.
    assert {"checkpoint.offset", "checkpoint.time"} <= {one["kind"] for one in found}
    (sample.root / "abort").touch()
    (tail,) = [one for one in findings(sample) if one["kind"] == "log.tail"]
    assert (tail["severity"], tail["position"]) == ("info", position)


def test_what_an_unclean_stop_leaves_is_no_finding_to_end_with_1(sample: Sample) -> None:
    (sample.root / "abort").touch()
    result = run("verify", sample.root)
    assert result.exit_code == 0
    assert "info    store.unclean" in result.stdout
    assert "the store is sound: the next start recovers it, as after a crash" in result.stdout


def test_warnings_alone_are_no_reason_not_to_start(sample: Sample) -> None:
    overwrite(sample.root / "skylarkmq" / "profile", 14, b"\xff")
    result = run("verify", sample.root)
    assert result.exit_code == 1
    assert "no errors: a broker can start on this store" in result.stdout
    assert "not sound" not in result.stdout


def test_limit_and_text(sample: Sample) -> None:
    for number in (3, 5, 7):
        flip(*_body(sample, number))
    result = run("verify", sample.root, "--limit", 1)
    assert result.exit_code == 1
    assert result.stdout.count("-> ") < 6
    assert "the store is not sound" in result.stdout
    assert "findings are not shown" in result.stdout


def _body(sample: Sample, number: int) -> tuple[Path, int]:
    path, position = sample.place(sample.of("Plain", number))
    return path, position + 90


def test_progress_is_told_for_queues_too(sample: Sample) -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    store = StoppedStore(sample.root)
    Verification(
        store,
        DelayLevels(),
        limit=5,
        progress=lambda what, done, total: told.setdefault(what, []).append((done, total)),
    ).run()
    queues = told["verifying queues"]
    assert len(queues) == len(store.queues)
    assert queues == sorted(queues)
    assert queues[-1][0] < queues[-1][1]
