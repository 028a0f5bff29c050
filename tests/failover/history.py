"""What clients did and what came of it: one JSON object a line, in the order in which they ended.

    op       send       read                   fault
    who      producer   reader                 kind of fault
    start    s          s                      when it began; all on one monotonic clock
    end      s          s                      when all was mended again
    result   acked,     read                   done
             unknown
    queue    topic/id, where the message is; of a send that was acknowledged
    offset   in the queue
    body     digest of all its bytes
    tries    how often it may have been stored, at most
    final    true: read when all was over, from whoever leads then
    detail   for a human

A send is acknowledged or its end is unknown; nobody counts an unknown one as failed. Bodies are
told apart by their digests, so each body is sent by one call alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TextIO

DIGEST_SIZE = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """One line."""

    op: Literal["send", "read", "fault"]
    who: str
    start: float
    end: float
    result: Literal["acked", "unknown", "read", "done"]
    queue: str = ""
    offset: int = -1
    body: str = ""
    tries: int = 1
    final: bool = False
    detail: str = ""


DEFAULTS = {field.name: field.default for field in fields(Operation)}


def digest(body: bytes) -> str:
    """Return what tells a body apart."""
    return hashlib.blake2b(body, digest_size=DIGEST_SIZE).hexdigest()


class History:
    """Writes the lines as they come, and counts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acked = 0
        self.unknown = 0
        self.read = 0
        self.last_ack = 0.0
        self.longest_gap = 0.0
        """Between two acknowledgements since `new_gap`; a hint for whoever watches."""
        self._file: TextIO = path.open("w", encoding="utf-8")

    def add(self, operation: Operation) -> None:
        """Write a line."""
        row = {key: value for key, value in asdict(operation).items() if value != DEFAULTS[key]}
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        if operation.result == "acked":
            self.acked += 1
            self.longest_gap = max(self.longest_gap, self.gap(operation.end))
            self.last_ack = operation.end
        elif operation.result == "unknown":
            self.unknown += 1
        elif operation.op == "read":
            self.read += 1

    def gap(self, now: float) -> float:
        """How long nothing was acknowledged; nothing before the first acknowledgement."""
        return now - self.last_ack if self.last_ack else 0.0

    def new_gap(self) -> None:
        """Forget the longest gap."""
        self.longest_gap = 0.0

    def flush(self) -> None:
        """Let readers of the file see all lines."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> Iterator[Operation]:
    """Yield the operations of a file.

    Raises:
        ValueError: a line is no operation.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row: dict[str, Any] = json.loads(line)
                yield Operation(**row)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number} is no operation: {error}") from error
