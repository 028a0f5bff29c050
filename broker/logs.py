"""Log lines on stderr: text for people, one JSON object a line for machines.

    {"ts":"2024-01-31T12:00:00.123Z","level":"INFO","logger":"skylarkmq.store","msg":"...",
     "broker":"broker-a", ...}

Of lines that differ in their values alone, at most 20 a second are written: a peer that provokes
warnings shall not fill the disk. Fields of a record's `extra={"fields": {...}}` follow in the JSON
form. Bodies, keys and secrets are never logged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

LogFormat = Literal["text", "json"]
TEXT_FORMAT: Final = "%(asctime)s %(levelname)-8s %(name)s: %(message)s"
FIELDS: Final = "fields"
LINES_MAX: Final = 20
"""Lines of one kind in one second."""
KINDS_MAX: Final = 1000


class RateLimit(logging.Filter):
    """Leaves out lines of a kind that comes too often; the next one that is let through says so.

    A kind is a logger with a message before its values are filled in. The second is the record's
    own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, object], list[int]] = {}  # kind -> [second, lines in it]

    def filter(self, record: logging.LogRecord) -> bool:
        kind, second = (record.name, record.msg), int(record.created)
        seen = self._seen.get(kind)
        if seen is None:
            if len(self._seen) >= KINDS_MAX:
                self._seen.clear()
            seen = self._seen[kind] = [second, 0]
        elif seen[0] != second:
            left_out = seen[1] - LINES_MAX
            seen[:] = second, 0
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} lines like this were left out)"
                record.args = ()
        seen[1] += 1
        return seen[1] <= LINES_MAX


class JsonFormatter(logging.Formatter):
    """One JSON object a record, keys in a fixed order."""

    def __init__(self, broker: str = "") -> None:
        """Name the broker in every line; an empty name is left out."""
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if self._broker:
            line["broker"] = self._broker
        fields: Mapping[str, Any] | None = getattr(record, FIELDS, None)
        if fields:
            line.update(fields)
        if record.exc_info:
            line["err"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logs(
    log_format: LogFormat, level: str, broker: str = "", *, shares_stream: bool = False
) -> None:
    """Send the logs of this process to stderr; the JSON form names the broker in each line.

    Args:
        shares_stream: other processes write there too, so the text form names `broker` as well.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RateLimit())
    text_format = TEXT_FORMAT
    if shares_stream:
        text_format = TEXT_FORMAT.replace("%(name)s", f"{broker.replace('%', '%%')} %(name)s")
    handler.setFormatter(
        JsonFormatter(broker) if log_format == "json" else logging.Formatter(text_format)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
