"""Options of the commit-log reader. No JVM."""

from __future__ import annotations

import pytest

from skylarkmq.spark.log.log_options import LogOptions, local_path
from skylarkmq.spark.option_reading import OptionError


def parse(**options: str) -> LogOptions:
    return LogOptions.parse({"path": "/data/store", **options})


def test_a_path_is_enough() -> None:
    options = parse()
    assert options.path == "/data/store"
    assert options.verify_crc
    assert options.on_corruption == "fail"
    assert options.topics == frozenset()
    assert options.start_ms < 0 < 2**63 - 1 < options.end_ms


def test_keys_have_any_case_and_values_units() -> None:
    options = LogOptions.parse(
        {
            "path": "/s",
            "topic": "a, b",
            "starttimestamp": "2026-01-31T08:00:00Z",
            "ENDTIMESTAMP": "1800000000000",
            "oncorruption": "Skip",
            "verifycrc": "false",
            "maxbytesperpartition": "8m",
            "arrowbatchrows": "10",
            "arrowbatchbytes": "64KiB",
        }
    )
    assert options.topics == {"a", "b"}
    assert options.start_ms == 1769846400000
    assert options.end_ms == 1800000000000
    assert options.on_corruption == "skip"
    assert not options.verify_crc
    assert options.max_partition_bytes == 8 << 20
    assert (options.batch_rows, options.batch_bytes) == (10, 65536)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"onCorruptoin": "skip"}, "did you mean onCorruption?"),
        ({"onCorruption": "ignore"}, "one of fail, skip, stop, not 'ignore'"),
        ({"nameServer": "a:1"}, "reads files and asks no broker"),
        ({"startingTimestamp": "1"}, "here it is startTimestamp"),
        ({"startTimestamp": "yesterday"}, "ISO 8601"),
        ({"startTimestamp": "2026-01-31T08:00:00"}, "append Z"),
        ({"startTimestamp": "5", "endTimestamp": "5"}, "nothing lies between"),
        ({"maxBytesPerPartition": "100"}, "0, or at least 1024 bytes"),
        ({"arrowBatchRows": "0"}, "at least 1"),
        ({"topic": "a/b"}, "option topic"),
        ({"path": ""}, "option path is missing"),
        ({"path": "hdfs://x/store"}, "mount or copy the store"),
        ({"paths": "[]"}, "give one path"),
    ],
)
def test_what_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**given)
    assert text in str(caught.value)


def test_paths_may_be_addresses_of_files() -> None:
    assert local_path("file:/data/my%20store") == "/data/my store"
    assert local_path("file:///data") == "/data"
    assert local_path("relative/store") == "relative/store"
