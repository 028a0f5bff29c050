"""Stores written by the real store for the tools' tests, damage by hand, and running the tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from skylarkmq.cli import main
from tests.support.disk_store import DiskStore
from tests.support.store_samples import SIZES, Fields, put, sample_commands

ROUNDS = 48


@dataclass(frozen=True)
class Sample:
    """A stopped store and the messages in it, in log order."""

    root: Path
    messages: list[Fields]

    def log(self, index: int) -> Path:
        """A log file by its number from the oldest."""
        return sorted((self.root / "commitlog").iterdir())[index]

    def place(self, message: Fields) -> tuple[Path, int]:
        """Log file and byte place of a message."""
        size = SIZES["mappedFileSizeCommitLog"]
        offset = message["physical_offset"]
        return self.root / "commitlog" / f"{offset - offset % size:020d}", offset % size

    def unit(self, message: Fields) -> tuple[Path, int]:
        """Queue file and byte place of a message's unit."""
        size = SIZES["mappedFileSizeConsumeQueue"]
        position = message["queue_offset"] * 20
        folder = self.root / "consumequeue" / message["topic"] / str(message["queue_id"])
        return folder / f"{position - position % size:020d}", position % size

    def of(self, topic: str, number: int) -> Fields:
        """The `number`-th message of a topic."""
        return [message for message in self.messages if message["topic"] == topic][number]


def write_sample(root: Path, rounds: int = ROUNDS) -> Sample:
    """Write a store and stop it cleanly, with one table as RocketMQ writes them."""
    disk = DiskStore(root, SIZES)
    disk.start()
    commands = [put("Once", 0, "the only one"), *sample_commands(rounds)]
    messages = [message for command in commands for message in disk.run(command)]
    disk.stop()
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text('{"dataVersion":{"counter":3},"topicConfigTable":{}}')
    (config / "consumerOffset.json").write_text('{\n\t"offsetTable":{"Plain@G":{0:2,1:1}\n\t}\n}')
    return Sample(root, messages)


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Damage a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    """Damage one byte of a file."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x55]))


def run(*arguments: object) -> Result:
    """Run `skylarkmq store` with these words, as on a terminal where they do not say otherwise."""
    words = [*map(str, arguments)]
    if words[0] not in ("cat", "--help") and not {"--json", "-o", "--output"} & {*words}:
        words += ["-o", "table"]
    return CliRunner().invoke(main, ["store", *words], catch_exceptions=False)


def run_json(*arguments: object, exit_code: int = 0) -> Any:
    """The one JSON document that a command prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def run_rows(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    """The JSON lines that a command prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def run_lines(*arguments: object) -> list[dict[str, Any]]:
    """The JSON lines of a command that prints nothing else."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
