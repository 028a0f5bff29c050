"""Makes tests/golden/stores: stores written by RocketMQ's own store, and what it read from them.

    .venv/bin/python -m tests.interop.make_golden_stores [store ...]     needs Maven and a JDK

All of them take three minutes.

Each archive has the folder `store` and `expected.json`:

    messages   in the order of the log; those in queues as RocketMQ read them from there, the others
               by their place; bodies whole
    queues     [topic, queue id, first offset, end offset]
    keys       [topic, key, physical offsets], as RocketMQ's key index answered
    begin      first offset of the log

The manifest beside them says how each was made; `pause_s` is between two rounds of messages.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skylarkmq.protocol.tags_code import tags_code
from tests.interop.children import Children
from tests.interop.store_shell import MAIN, JavaStore
from tests.support.store_samples import (
    SCHEDULE_TOPIC,
    SIZES,
    Fields,
    by_key,
    by_queue,
    sample_commands,
)

TARGET = Path(__file__).resolve().parent.parent / "golden" / "stores"
VERSION = "org.apache.rocketmq:rocketmq-store:4.9.8"
ROUNDS = 40
ROUNDS_OF_POOL = 60  # until a buffer that was used before has filled a file
UNREAD_ROUNDS = 4  # stored right before a kill

STORES: dict[str, dict[str, Any]] = {
    "clean": {
        "options": {},
        "pause_s": 1.1,  # items of the index have whole seconds
        "end": "stopped cleanly",
    },
    "killed": {
        "options": {"flushDiskType": "SYNC_FLUSH"},
        "end": "killed with SIGKILL right after the last answer",
    },
    "pool-killed": {
        "options": {"transientStorePoolEnable": True, "transientStorePoolSize": 3},
        "end": "killed with SIGKILL once all was committed; buffers were used twice, so that log "
        "files have leftovers of older ones behind their blank records",
    },
    "ext": {
        "options": {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 500},
        "end": "killed with SIGKILL right after the last answer; tags codes in extensions of "
        "queues",
    },
    "expired": {
        "options": {"fileReservedTime": 0},
        "end": "all log files but the last removed by executeDeleteFilesManually, with the queue "
        "and index files that go with them; then more messages; stopped cleanly",
    },
    "rebuilt": {
        "options": {"fileReservedTime": 0},
        "end": "made as `expired`; then queues, index and checkpoint removed, `abort` made, the "
        "store opened by RocketMQ again, which built them from the log, and stopped cleanly; its "
        "delayed messages have the hash of their tags where their due time should be: RocketMQ "
        "reads the delay levels after the recovery that needs them",
    },
}


def main() -> None:
    """Make the stores that are named, or all, and their manifest."""
    TARGET.mkdir(parents=True, exist_ok=True)
    path = TARGET / "manifest.json"
    names = sys.argv[1:] or list(STORES)
    made = json.loads(path.read_text("utf-8"))["stores"] if sys.argv[1:] else {}
    made |= {name: _make(name, **STORES[name]) for name in names}
    manifest = {
        "made_by": f"tests/interop/make_golden_stores.py, {MAIN} over {VERSION}",
        "jdk": _jdk(),
        "date": time.strftime("%Y-%m-%d"),
        "sizes": SIZES,
        "stores": made,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", "utf-8")


def _make(name: str, options: dict[str, Any], end: str, pause_s: float = 0) -> dict[str, Any]:
    with _folder() as (folder, children):
        root = folder / "store"
        expected = _write(JavaStore(children, root, **options), name, pause_s)
        if name == "rebuilt":
            _rebuild(children, root, expected)
        path = TARGET / f"{name}.tar.xz"
        _pack(path, root, expected)
        log_files = sorted(file.name for file in (root / "commitlog").iterdir())
        return {
            "file": path.name,
            "options": options,
            "pause_s": pause_s,
            "end": end,
            "messages": len(expected["messages"]),
            "begin": expected["begin"],
            "log_files": log_files,
            "index_files": sorted(file.name for file in (root / "index").iterdir()),
        }


@contextmanager
def _folder() -> Iterator[tuple[Path, Children]]:
    with tempfile.TemporaryDirectory() as name:
        children = Children(Path(name))
        try:
            yield Path(name), children
        finally:
            children.stop_all()


def _write(java: JavaStore, name: str, pause_s: float) -> dict[str, Any]:
    stored: list[Fields] = []
    for number in range(ROUNDS_OF_POOL if "pool" in name else ROUNDS):
        stored += java.run(sample_commands(1, number))
        time.sleep(pause_s)
    begin = 0
    if name in ("expired", "rebuilt"):
        begin = java.expire()
        stored += java.run(sample_commands(UNREAD_ROUNDS, ROUNDS))
        stored = [one for one in stored if one["physical_offset"] >= begin]
    queues, keys = java.read(), by_key(stored)
    if queues != by_queue(stored) or java.query(keys) != list(keys.values()):
        raise AssertionError(f"{name}: RocketMQ does not read what it was told to write")
    if name in ("killed", "ext"):
        stored += java.run(sample_commands(UNREAD_ROUNDS, ROUNDS))
    if "SIGKILL" in STORES[name]["end"]:
        java.kill()
    else:
        java.stop()
    return _expected(stored, begin)


def _rebuild(children: Children, root: Path, expected: dict[str, Any]) -> None:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder)
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    stored: list[Fields] = expected["messages"]
    for message in stored:
        if message["topic"] == SCHEDULE_TOPIC:
            message["tags_code"] = tags_code(message["properties"]["TAGS"])
    java = JavaStore(children, root)
    keys = by_key(stored)
    if java.read() != by_queue(stored) or java.query(keys) != list(keys.values()):
        raise AssertionError("RocketMQ does not build again what it had")
    java.stop()


def _expected(stored: list[Fields], begin: int) -> dict[str, Any]:
    return {
        "begin": begin,
        "messages": stored,
        "queues": [
            [*queue, messages[0]["queue_offset"], messages[-1]["queue_offset"] + 1]
            for queue, messages in sorted(by_queue(stored).items())
        ],
        "keys": [[*key, places] for key, places in by_key(stored).items()],
    }


def _pack(path: Path, root: Path, expected: dict[str, Any]) -> None:
    with tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(root, "store", filter=_anonymous)
        text = json.dumps(expected, ensure_ascii=False, indent=1).encode()
        entry = tarfile.TarInfo("expected.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _jdk() -> str:
    result = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return result.stderr.splitlines()[1]


if __name__ == "__main__":
    main()
