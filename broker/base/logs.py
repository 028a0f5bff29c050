"""Log lines on stderr: text for people, one JSON object a line for machines.

    2024-01-31 13:00:00.123+01:00 INFO     skylarkmq.store: ...
    {"ts":"2024-01-31T12:00:00.123Z","level":"INFO","logger":"skylarkmq.store","msg":"...",
     "broker":"broker-a", ...}

Replicas and slaves share the name of their broker, so their lines name the id too: `"brokerId":2`
after the name, and `broker-a:2` in the text form.

Of lines that differ in their values alone, at most 20 a second are written: a peer that provokes
warnings shall not fill the disk. Fields of a record's `extra={"fields": {...}}` follow in the JSON
form. Bodies, keys and secrets are never logged.

Levels are text: `INFO` for all, and other levels for parts of the broker, by the names that their
lines show: `INFO,skylarkmq.broker.net=DEBUG`. They can be changed while the process runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec

from skylarkmq.protocol.flags import MASTER_ID

LogFormat = Literal["text", "json"]
LogFormatOption = Literal["auto", "text", "json"]
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
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

    def __init__(self, broker: str = "", broker_id: int = MASTER_ID) -> None:
        """Name the broker in every line; an empty name and a master's id are left out."""
        super().__init__()
        self._broker = broker
        self._broker_id = broker_id

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
            if self._broker_id != MASTER_ID:
                line["brokerId"] = self._broker_id
        fields: Mapping[str, Any] | None = getattr(record, FIELDS, None)
        if fields:
            line.update(fields)
        if record.exc_info:
            line["err"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """A line for people; the time has its zone."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        return moment.isoformat(sep=" ", timespec="milliseconds")


class ServerHandler(logging.StreamHandler[TextIO]):
    """The one handler of a server's process; where it is missing, levels are somebody else's."""


def chosen_format(option: LogFormatOption) -> LogFormat:
    """Return the form of the lines; auto is text on a terminal, and JSON elsewhere."""
    if option != "auto":
        return option
    return "text" if sys.stderr.isatty() else "json"


def parse_levels(text: str) -> dict[str, str]:
    """Return logger -> level; the empty name is the level of all others.

    Raises:
        ValueError: says what is wrong with the text.
    """
    levels: dict[str, str] = {}
    for part in text.split(","):
        name, equals, level = part.rpartition("=")
        name, level = name.strip(), level.strip().upper()
        if level not in LEVELS:
            raise ValueError(f"{level or 'nothing'!r} is no level; use {', '.join(LEVELS)}")
        if equals and not name:
            raise ValueError(f"{part.strip()!r} names no logger; write skylarkmq.store=DEBUG")
        levels[name] = level
    if "" not in levels:
        raise ValueError("say the level of all others as well: INFO,skylarkmq.store=DEBUG")
    return levels


def set_levels(text: str) -> None:
    """Put levels in force; does nothing in a process whose logs `set_up_logs` has not set up."""
    root = logging.getLogger()
    if not any(isinstance(each, ServerHandler) for each in root.handlers):
        return
    levels = parse_levels(text)
    for name, logger in list(logging.root.manager.loggerDict.items()):  # threads make others
        if isinstance(logger, logging.Logger) and name not in levels and logger.level:
            logger.setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def set_up_logs(
    log_format: LogFormat,
    levels: str,
    broker: str = "",
    broker_id: int = MASTER_ID,
    *,
    shares_stream: bool = False,
) -> None:
    """Send the logs of this process to stderr; the JSON form names the broker in each line.

    Args:
        levels: as `parse_levels` reads them.
        broker_id: as it is configured; with another one than a master's, both forms name it,
            the text form together with `broker`.
        shares_stream: other processes write there too, so the text form names `broker` as well.
    """
    handler = ServerHandler(sys.stderr)
    handler.addFilter(RateLimit())
    text_format = TEXT_FORMAT
    name = broker if broker_id == MASTER_ID else f"{broker}:{broker_id}"
    if shares_stream or broker_id != MASTER_ID:
        text_format = TEXT_FORMAT.replace("%(name)s", f"{name.replace('%', '%%')} %(name)s")
    json_formatter = JsonFormatter(broker, broker_id)
    handler.setFormatter(json_formatter if log_format == "json" else TextFormatter(text_format))
    logging.getLogger().handlers[:] = [handler]
    set_levels(levels)
