"""RocketMQ's own store opens what the tools for stopped stores wrote, and is left alone by them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.interop.children import Children
from tests.interop.store_shell import JavaStore
from tests.support.store_samples import Fields, by_key, by_queue
from tests.tools.store.support import Sample, flip, run, run_json, write_sample

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return write_sample(tmp_path / "store")


def check(java: JavaStore, stored: list[Fields]) -> None:
    """RocketMQ reads these messages and no others, by queue and by key."""
    assert java.read() == by_queue(stored)
    keys = by_key(stored)
    assert java.query(keys) == [offsets[-64:] for offsets in keys.values()]


def test_rebuilt(children: Children, sample: Sample) -> None:
    shutil.rmtree(sample.root / "consumequeue")
    shutil.rmtree(sample.root / "index")
    run_json("rebuild", sample.root, "--write")
    java = JavaStore(children, sample.root)
    check(java, sample.messages)
    java.stop()


def test_truncated(children: Children, sample: Sample) -> None:
    end = sample.messages[100]["physical_offset"]
    run_json("truncate", sample.root, "--to", end, "--write")
    java = JavaStore(children, sample.root)
    check(java, sample.messages[:100])
    java.stop()


def test_salvaged(children: Children, sample: Sample, tmp_path: Path) -> None:
    lost = [sample.of("Tagged", 5), sample.of("Keyed", 9), sample.of("Plain", 20)]
    for message in lost:
        path, position = sample.place(message)
        flip(path, position + 100)
    run_json("salvage", sample.root, tmp_path / "new", exit_code=1)
    java = JavaStore(children, tmp_path / "new")
    read = java.read()
    for key, messages in by_queue(sample.messages).items():
        for before, after in zip(messages, read[key], strict=True):
            if before in lost:
                assert after["properties"] == {"SKYLARKMQ_LOST": "true"}
            else:
                assert after == before
    java.stop()


def test_a_store_that_rocketmq_has_open_is_refused(children: Children, sample: Sample) -> None:
    java = JavaStore(children, sample.root)
    for words in (("verify",), ("rebuild", "--write"), ("truncate", "--to", 0, "--write")):
        result = run(words[0], sample.root, *words[1:])
        assert result.exit_code == 2
        assert "(java); stop that broker first" in result.stderr
    java.stop()
    assert run_json("info", sample.root)["running"] is None
