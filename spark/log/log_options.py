"""Options of `format("skylarkmq-commitlog")`.

`LOG_OPTIONS` has them all; docs/reference/spark-options.md is made of it.

Pure; driver. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from skylarkmq.protocol.flags import validate_topic
from skylarkmq.spark.option_reading import (
    KIB,
    MIB,
    Option,
    OptionError,
    OptionReader,
    choice,
    flag,
    number,
    options_of,
    size,
    special,
)
from skylarkmq.spark.reading.positions import INSTANT, instant_ms

OnCorruption = Literal["fail", "skip", "stop"]
ON_CORRUPTION: Final[tuple[OnCorruption, ...]] = ("fail", "skip", "stop")

HINTS: Final = {
    "paths": "give one path; read several stores one by one and union them",
    "nameserver": "this format reads files and asks no broker; format('skylarkmq') does",
    "startingtimestamp": "here it is startTimestamp",
    "endingtimestamp": "here it is endTimestamp",
    "subscribe": "here it is topic",
}
MIN_PARTITION_BYTES: Final = 1024
_TIME_MIN, _TIME_MAX = -(2**63), 2**63  # the range of an int64, its end exclusive


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is read of a commit log, and how. Times are ms, the end exclusive."""

    path: str
    topics: frozenset[str] = special("topic", frozenset(), "these alone; else all", "a list")
    start_ms: int = special("startTimestamp", _TIME_MIN, "the first store time", INSTANT)
    end_ms: int = special("endTimestamp", _TIME_MAX, "the first store time not read", INSTANT)
    verify_crc: bool = flag("verifyCrc", True, "a wrong checksum is damage; else see column crcOk")
    on_corruption: OnCorruption = choice(
        "onCorruption", "fail", ON_CORRUPTION, "skip: up to the next sound record; stop: ends here"
    )
    max_partition_bytes: int = size(
        "maxBytesPerPartition", 256 * MIB, "larger files are cut at records; 0 never cuts", low=0
    )
    batch_rows: int = number("arrowBatchRows", 2048, "rows of one Arrow batch", 1, 1_000_000)
    batch_bytes: int = size("arrowBatchBytes", 4 * MIB, "its bytes", KIB, 1024 * MIB)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LogOptions:
        """Read the options as Spark hands them over.

        Raises:
            OptionError: one is unknown, missing, wrong, or contradicts another.
        """
        options = OptionReader(given, [each.name for each in LOG_OPTIONS], hints=HINTS)
        topics = options.listing("topic")
        for topic in topics:
            why = validate_topic(topic)
            if why is not None:
                raise OptionError(f"option topic: {why}", "topic")
        start, end = _instant(options, "startTimestamp"), _instant(options, "endTimestamp")
        if start is not None and end is not None and start >= end:
            raise OptionError(
                f"startTimestamp {start} is not before endTimestamp {end}: nothing lies between",
                "endTimestamp",
            )
        values = options.values(cls)
        if 0 < values["max_partition_bytes"] < MIN_PARTITION_BYTES:
            raise options.wrong(
                "maxBytesPerPartition", f"0, or at least {MIN_PARTITION_BYTES} bytes"
            )
        return cls(
            path=local_path(options.required("path", "load(path) names the store's folder")),
            topics=frozenset(topics),
            start_ms=_TIME_MIN if start is None else start,
            end_ms=_TIME_MAX if end is None else end,
            **values,
        )


_PATH: Final = Option(
    "path",
    "the store's folder, its commitlog folder, or one log file; a file is taken for the last",
)
LOG_OPTIONS: Final = options_of(_PATH, LogOptions)


def local_path(text: str) -> str:
    """Return the path of a local folder or file, which may be given as a `file:` address.

    Raises:
        OptionError: it lies on another file system.
    """
    if "://" not in text and not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise OptionError(
            f"option path is {text}, but log files are read from a local folder: mount or copy "
            "the store where every executor sees it under the same path",
            "path",
        )
    return unquote(parts.path)


def _instant(options: OptionReader, name: str) -> int | None:
    if not options.given(name):
        return None
    try:
        return instant_ms(options.text(name))
    except ValueError as error:
        raise options.wrong(name, str(error)) from error
