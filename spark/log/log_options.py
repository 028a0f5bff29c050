"""Options of `format("skylarkmq-commitlog")`.

    path                  the store's folder, or its commitlog folder, or one log file, which is
                          taken for the last: it may end in zeros or a torn record
    topic                 these alone, a comma list; all when it is not given
    startTimestamp        store times from here on: ms since 1970, or ISO 8601 with a zone
    endTimestamp          store times before this
    verifyCrc             true: a body with a wrong checksum is damage; false: see column crcOk
    onCorruption          fail, skip (go on with the next sound record), stop (the log ends here)
    maxBytesPerPartition  larger files are cut at records; 0 never cuts; 256 MiB
    arrowBatchRows        of one Arrow batch, at most; 2048
    arrowBatchBytes       of one Arrow batch's records, at most; 4 MiB

Pure; driver. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from skylarkmq.protocol.flags import validate_topic
from skylarkmq.spark.option_reading import OptionError, OptionReader
from skylarkmq.spark.reading.positions import instant_ms

OnCorruption = Literal["fail", "skip", "stop"]
ON_CORRUPTION: Final[tuple[OnCorruption, ...]] = ("fail", "skip", "stop")

KNOWN: Final = (
    "path",
    "topic",
    "startTimestamp",
    "endTimestamp",
    "verifyCrc",
    "onCorruption",
    "maxBytesPerPartition",
    "arrowBatchRows",
    "arrowBatchBytes",
)
HINTS: Final = {
    "paths": "give one path; read several stores one by one and union them",
    "nameserver": "this format reads files and asks no broker; format('skylarkmq') does",
    "startingtimestamp": "here it is startTimestamp",
    "endingtimestamp": "here it is endTimestamp",
    "subscribe": "here it is topic",
}
MAX_PARTITION_BYTES: Final = 256 * 1024 * 1024
MIN_PARTITION_BYTES: Final = 1024
_ROWS_MAX: Final = 1_000_000
_BATCH_BYTES_MAX: Final = 1024 * 1024 * 1024
_TIME_MIN, _TIME_MAX = -(2**63), 2**63  # an int64, and behind it


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is read of a commit log, and how. Times are ms; `end_ms` is behind the last one."""

    path: str
    topics: frozenset[str] = frozenset()
    start_ms: int = _TIME_MIN
    end_ms: int = _TIME_MAX
    verify_crc: bool = True
    on_corruption: OnCorruption = "fail"
    max_partition_bytes: int = MAX_PARTITION_BYTES
    batch_rows: int = 2048
    batch_bytes: int = 4 * 1024 * 1024

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LogOptions:
        """Read the options as Spark hands them over.

        Raises:
            OptionError: one is unknown, missing, wrong, or contradicts another.
        """
        options = OptionReader(given, KNOWN, hints=HINTS)
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
        size = options.size("maxBytesPerPartition", MAX_PARTITION_BYTES, low=0)
        if 0 < size < MIN_PARTITION_BYTES:
            raise options.wrong(
                "maxBytesPerPartition", f"0, or at least {MIN_PARTITION_BYTES} bytes"
            )
        return cls(
            path=local_path(options.required("path", "load(path) names the store's folder")),
            topics=frozenset(topics),
            start_ms=_TIME_MIN if start is None else start,
            end_ms=_TIME_MAX if end is None else end,
            verify_crc=options.flag("verifyCrc", True),
            on_corruption=options.choice("onCorruption", ON_CORRUPTION, "fail"),
            max_partition_bytes=size,
            batch_rows=options.number("arrowBatchRows", 2048, low=1, high=_ROWS_MAX),
            batch_bytes=options.size(
                "arrowBatchBytes", 4 * 1024 * 1024, low=1024, high=_BATCH_BYTES_MAX
            ),
        )


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
