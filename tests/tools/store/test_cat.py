"""`store cat`: messages by place, queue, key and time, and what it says of damaged ones."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

from skylarkmq.client.message_json import FIELDS
from tests.support.store_samples import ODD_KEYS, SIZES, by_key, is_queued
from tests.tools.store.support import Sample, flip, run, run_lines


def test_one_message_has_this_shape(pristine: Sample) -> None:
    message = pristine.of("Keyed", 3)
    (shown,) = run_lines("cat", pristine.root, "--offset", message["physical_offset"])
    assert list(shown) == [*FIELDS, "body", "body_encoding"]
    same = set(message) & set(shown) - {"born_host", "store_host"}
    assert {name: shown[name] for name in same} == {name: message[name] for name in same}
    renamed = {
        "commit_log_offset": message["physical_offset"],
        "stored_at": _iso(message["store_timestamp"]),
        "born_at": _iso(message["born_timestamp"]),
        "origin_topic": message["topic"],
        "broker": None,
    }
    assert {name: shown[name] for name in renamed} == renamed
    assert (shown["born_host"], shown["body_encoding"]) == ("192.0.2.7:40000", "text")
    (by_id,) = run_lines("cat", pristine.root, "--id", shown["offset_msg_id"], "--json")
    assert by_id == shown


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_without_options_all_of_the_log(pristine: Sample) -> None:
    shown = run_lines("cat", pristine.root, "--body", "none")
    assert [one["commit_log_offset"] for one in shown] == [
        message["physical_offset"] for message in pristine.messages
    ]


def test_a_range_of_a_queue(pristine: Sample) -> None:
    shown = run_lines(
        "cat", pristine.root, "--topic", "Tagged", "--queue", 0, "--from", 5, "--to", 7
    )
    assert [one["queue_offset"] for one in shown] == [5, 6, 7]
    assert {one["topic"] for one in shown} == {"Tagged"}
    deals = [m for m in pristine.messages if m["topic"] == "Deals" and is_queued(m)]
    shown = run_lines("cat", pristine.root, "--topic", "Deals", "--queue", 0)
    assert [one["body"] for one in shown] == [message["body"] for message in deals]


def test_by_key_through_the_index_and_through_the_log(pristine: Sample) -> None:
    for (topic, key), offsets in by_key(pristine.messages).items():
        if key in ("every", *ODD_KEYS, "deal-2"):
            words = ("cat", pristine.root, "--key", key, "--topic", topic, "--body", "none")
            for more in ((), ("--scan",)):
                found = [one["commit_log_offset"] for one in run_lines(*words, *more)]
                if more:  # rolled-back messages are in the log and not in the index
                    found = [offset for offset in found if offset in offsets]
                assert found == offsets


def test_by_time(pristine: Sample) -> None:
    times = sorted({message["store_timestamp"] for message in pristine.messages})
    begin, end = times[len(times) // 2], times[-5]
    words = ("cat", pristine.root, "--begin", begin, "--end", end, "--body", "none")
    assert [one["commit_log_offset"] for one in run_lines(*words)] == [
        message["physical_offset"]
        for message in pristine.messages
        if begin <= message["store_timestamp"] <= end
    ]
    assert len(run_lines("cat", pristine.root, "--begin", "2001-01-01", "--max", 2)) == 2
    assert run("cat", pristine.root, "--begin", "tomorrow").exit_code == 2


def test_bodies(sample: Sample) -> None:
    message = sample.of("Plain", 0)
    words = ("cat", sample.root, "--offset", message["physical_offset"], "--body")
    (shown,) = run_lines(*words, "base64")
    assert base64.b64decode(shown["body"]).decode() == message["body"]
    assert run(*words, "raw").stdout == message["body"]


def test_a_damaged_message_is_told_and_not_shown(sample: Sample) -> None:
    message = sample.of("Tagged", 4)
    path, position = sample.place(message)
    flip(path, position + 99)
    result = run("cat", sample.root, "--topic", "Tagged", "--queue", 0, "--body", "none")
    assert result.exit_code == 1
    assert str(message["physical_offset"]) in result.stderr
    assert len(result.stdout.splitlines()) == len([m for m in sample.messages
                                                   if m["topic"] == "Tagged"]) - 1  # fmt: skip
    result = run("cat", sample.root, "--offset", message["physical_offset"])
    assert (result.exit_code, result.stdout) == (1, "")


def test_what_is_not_there(pristine: Sample) -> None:
    behind = SIZES["mappedFileSizeCommitLog"] * 1000
    assert run("cat", pristine.root, "--offset", behind).exit_code == 1
    assert run("cat", pristine.root, "--topic", "Plain", "--queue", 99).exit_code == 2
    assert run("cat", pristine.root, "--key", "x").exit_code == 2
    assert run("cat", pristine.root, "--id", "zz").exit_code == 2


def test_entries_of_expired_messages_are_passed_over(sample: Sample) -> None:
    sample.log(0).unlink()
    end = SIZES["mappedFileSizeCommitLog"]
    kept = [offset for offset in by_key(sample.messages)["Keyed", "every"] if offset >= end]
    result = run("cat", sample.root, "--topic", "Keyed", "--key", "every", "--body", "none")
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == len(kept)
