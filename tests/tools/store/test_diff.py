"""`store diff`: the same messages or not, and where they part."""

from __future__ import annotations

from tests.support.store_samples import is_queued
from tests.tools.store.support import Sample, flip, run, run_json


def test_a_copy_is_the_same(pristine: Sample, sample: Sample) -> None:
    assert run_json("diff", pristine.root, sample.root) == {
        "left": str(pristine.root),
        "right": str(sample.root),
        "same": True,
        "same_messages": len([message for message in sample.messages if is_queued(message)]),
        "queues": [],
    }


def test_a_store_that_has_less(pristine: Sample, sample: Sample) -> None:
    message = sample.of("Tagged", 40)
    run_json("truncate", sample.root, "--to", message["physical_offset"], "--write")
    result = run_json("diff", pristine.root, sample.root, exit_code=1)
    (row,) = [queue for queue in result["queues"] if queue["topic"] == "Tagged"]
    assert row == {
        "topic": "Tagged", "queue_id": 0,
        "left": {"min_offset": 0, "max_offset": 48},
        "right": {"min_offset": 0, "max_offset": 40},
        "different": 0, "first": None,
    }  # fmt: skip


def test_the_first_difference(pristine: Sample, sample: Sample) -> None:
    for number in (8, 6):
        path, position = sample.place(sample.of("Tagged", number))
        flip(path, position + 19)  # the message's flag, which no checksum covers
    result = run_json("diff", pristine.root, sample.root, exit_code=1)
    (row,) = result["queues"]
    assert (row["different"], row["first"]["queue_offset"]) == (2, 6)
    assert row["first"]["field"] == "flag"
    assert "not the same" in run("diff", pristine.root, sample.root).stdout
