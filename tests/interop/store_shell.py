"""RocketMQ's own store as a child process that is told what to do, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.children import Child, Children, Event
from tests.interop.java import HERE, java
from tests.support.store_samples import SIZES, Command, Fields, expected, from_java

STORE = HERE / "java_store"
MAIN = "skylarkmq.interop.store.Shell"
EXPIRE_S = 120
OPTIONS = (
    "-Xmx128m",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    # A test writes a few kilobytes, wherever the disk stands.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=1.0",
)


class JavaStore:
    """A store opened by RocketMQ 4.9.8. `options` are keys of its configuration."""

    def __init__(self, children: Children, root: Path, **options: Any) -> None:
        keys = {**SIZES, "root": str(root), **options}
        home = f"-Duser.home={children.folder}"
        command = java(STORE, MAIN, json.dumps(keys), options=(*OPTIONS, home))
        self._child: Child = children.start("Store", command)
        self._answered = 0
        self.loaded = self._child.event("loaded")
        self._child.event("started")

    def run(self, commands: Iterable[Command]) -> list[Fields]:
        """Store the messages of commands; what must be read back of them."""
        listed = list(commands)
        self._tell(listed)
        answers = self._child.count("put", self._answered + len(listed))[self._answered :]
        self._answered += len(listed)
        stored: list[Fields] = []
        for command, answer in zip(listed, answers, strict=True):
            assert answer["status"] == "PUT_OK", answer
            stored += expected(command, answer)
        return stored

    def read(self) -> dict[tuple[str, int], list[Fields]]:
        """All messages of all queues that have some."""
        before = len(self._child.events)
        self._tell([{"op": "read"}])
        self._child.wait_for("done", lambda: self._has("done", before))
        queues: dict[tuple[str, int], list[Fields]] = {}
        for event in self._child.events[before:]:
            if event["event"] == "queue" and event["max_offset"] > event["min_offset"]:
                queues[event["topic"], event["queue_id"]] = []
            elif event["event"] == "message":
                queues[event["topic"], event["queue_id"]].append(from_java(event))
        return queues

    def look(self, physical_offsets: list[int]) -> list[Fields]:
        """The messages at places of the log, without their tags codes."""
        asked = [{"op": "look", "offset": offset} for offset in physical_offsets]
        return [from_java(event) for event in self._ask("message", asked)]

    def query(self, keys: Iterable[tuple[str, str]], begin: int = 0) -> list[list[int]]:
        """Places of the messages with each (topic, key), oldest first."""
        asked = [
            {"op": "key", "topic": topic, "key": key, "begin": begin, "end": 1 << 52}
            for topic, key in keys
        ]
        return [event["offsets"] for event in self._ask("key", asked)]

    def offsets_by_time(self, topic: str, queue_id: int, times: list[int]) -> list[int]:
        """Queue offsets of the messages nearest to times."""
        asked = [
            {"op": "time", "topic": topic, "queue_id": queue_id, "time": time} for time in times
        ]
        return [event["offset"] for event in self._ask("time", asked)]

    def expire(self) -> int:
        """Remove all log files but the last; the log's new first offset. Takes a minute."""
        self._tell([{"op": "expire"}])
        found = self._child.wait_for("expired", lambda: self._child.named("expired"), EXPIRE_S)
        offset: int = found[0]["min_offset"]
        return offset

    def stop(self) -> None:
        """A clean stop."""
        self._child.finish()
        assert self._child.named("stopped")[0]["clean"]

    def kill(self) -> None:
        """End the process at once."""
        self._child.kill()

    def _ask(self, answer: str, commands: list[Command]) -> list[Event]:
        before = len(self._child.named(answer))
        self._tell(commands)
        return self._child.count(answer, before + len(commands))[before:]

    def _has(self, name: str, before: int) -> bool:
        return any(event["event"] == name for event in self._child.events[before:])

    def _tell(self, commands: list[Command]) -> None:
        assert self._child.process.stdin is not None
        text = "".join(f"{json.dumps(command)}\n" for command in commands)
        self._child.process.stdin.write(text.encode())
        self._child.process.stdin.flush()
