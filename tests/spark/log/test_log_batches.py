"""Log files into batches: sound ones, cut ones, damaged ones, ones being written. No JVM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.compression import CompressionKind, compression_flags
from skylarkmq.spark.log.log_batches import DamagedLogError, LogBatches, SegmentRange
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.store.stopped.segments import SegmentFile
from tests.spark.support.logs import (
    ALL,
    BASE,
    PATH,
    MemoryFile,
    read_log,
    rows_of,
    spans_of,
    written_log,
)
from tests.spark.support.records import RECORDS, V6, Written, sane_time
from tests.support.amounts import examples

MANY = [Written(number, body=b"%d" % number * (number % 60)) for number in range(200)]
CLEAN = RECORDS.filter(lambda record: 0 not in record.properties)


def placed(rows: list[dict[str, Any]]) -> list[int]:
    return [row["position"] for row in rows]


@examples(30, 100)
@given(st.lists(CLEAN, max_size=12), st.sampled_from([0, 1, 100, 300]), st.booleans())
def test_any_log_is_read_whole_however_it_is_cut(
    records: list[Written], step: int, blank: bool
) -> None:
    log, places = written_log(records, blank=blank)
    expected = [sane_time(row) for row in rows_of(log, places)]
    assert read_log(log, step=step) == expected


@pytest.mark.parametrize("step", [0, 1, 700, 4096, 20_000])
def test_a_log_of_many_windows(step: int) -> None:
    large = [Written(500, body=bytes(1_500_000)), Written(501, body=b"x" * 700_000)]
    log, places = written_log([*MANY, *large, *MANY])
    rows = read_log(log, ("position", "queueOffset"), step=step)
    assert placed(rows) == places


@pytest.mark.parametrize("rows_max", [1, 7, 200, 2048])
def test_batches_are_bounded(rows_max: int) -> None:
    log, places = written_log(MANY)
    assert placed(read_log(log, arrowBatchRows=rows_max)) == places
    assert placed(read_log(log, arrowBatchBytes=1024)) == places


def test_bodies_that_hold_records_are_not_cut_within() -> None:
    inner, _ = written_log(MANY[:40], blank=False)
    log, places = written_log([Written(n, body=bytes(inner)) for n in range(30)])
    for step in (1, 500, 3000):
        assert placed(read_log(log, ("position",), step=step)) == places


def test_a_cut_within_a_record_is_told() -> None:
    """A body that holds a record with the right offset may mislead a cut, but not in silence."""
    log, places = written_log([Written(0, body=bytes(3000)), *MANY[:9]])
    span = SegmentRange(PATH, BASE, 0, 1000, is_cut=True)
    with pytest.raises(RocketMQError, match="maxBytesPerPartition=0"):
        list(LogBatches(ALL, LogOptions("/data")).read(SegmentFile(MemoryFile(log), BASE), span))
    span = SegmentRange(PATH, BASE, 0, places[1], is_cut=True)
    batches = LogBatches(ALL, LogOptions("/data")).read(SegmentFile(MemoryFile(log), BASE), span)
    assert [batch.num_rows for batch in batches] == [1]


@pytest.mark.parametrize(
    "record", [Written(9), Written(9, born=V6, body=b""), Written(9, topic=b"")]
)
def test_a_broker_may_have_come_anywhere_within_its_last_record(record: Written) -> None:
    log, places = written_log([*MANY[:5], record], size=9000, blank=False)
    size = int.from_bytes(log[places[-1] : places[-1] + 4], "big")
    for count in range(size):
        torn = bytearray(log)
        torn[places[-1] + count :] = bytes(len(log) - places[-1] - count)
        assert placed(read_log(torn)) == places[:-1], count
        cut = log[: places[-1] + count]
        assert placed(read_log(cut)) == places[:-1], count


def test_a_last_record_with_a_wrong_checksum_is_no_end() -> None:
    log, places = written_log(MANY[:5], size=9000, blank=False)
    log[places[-1] + 90] ^= 1
    with pytest.raises(DamagedLogError, match="checksum is wrong") as caught:
        read_log(log)
    assert f"{PATH} at byte {places[-1]} (physical offset {BASE + places[-1]})" in str(caught.value)
    assert "onCorruption=skip" in str(caught.value)


def test_zeros_are_the_end_in_the_last_file_alone() -> None:
    log, places = written_log(MANY[:5], size=90_000, blank=False)
    assert placed(read_log(log)) == places
    with pytest.raises(DamagedLogError, match="nothing was written here"):
        read_log(log, is_last=False)
    assert placed(read_log(log, is_last=False, onCorruption="skip")) == places


def test_zeros_with_records_behind_are_damage() -> None:
    log, places = written_log(MANY)
    log[places[20] : places[31]] = bytes(places[31] - places[20])
    with pytest.raises(DamagedLogError):
        read_log(log)
    assert placed(read_log(log, onCorruption="skip")) == places[:20] + places[31:]
    assert placed(read_log(log, onCorruption="stop")) == places[:20]


@given(st.data())
def test_skip_passes_over_damage_and_nothing_else(data: st.DataObject) -> None:
    log, places = written_log(MANY[:40])
    sound = rows_of(log, places)
    damaged, touched = bytearray(log), set[int]()
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(log) - 101))
        noise = data.draw(st.binary(min_size=1, max_size=200) | st.just(bytes(700)))
        noise = noise[: len(log) - 100 - begin]
        damaged[begin : begin + len(noise)] = noise
        touched.update(range(begin, begin + len(noise)))
    ends = [*places[1:], len(log) - 100]
    whole = [
        row
        for row, place, end in zip(sound, places, ends, strict=True)
        if touched.isdisjoint(range(place, end)) or damaged[place:end] == log[place:end]
    ]
    step = data.draw(st.sampled_from([0, 500, 2000]))
    rows = read_log(damaged, step=step, onCorruption="skip", is_last=False)
    assert [row for row in rows if row in sound] == whole
    assert set(placed(rows)) <= set(places)
    assert placed(rows) == sorted(placed(rows))
    if len(whole) == len(places):
        assert read_log(damaged, is_last=False) == sound


@given(st.data())
def test_stop_gives_what_is_in_front_of_damage(data: st.DataObject) -> None:
    log, places = written_log(MANY[:40])
    number = data.draw(st.integers(0, 39))
    place = places[number]
    position = place + data.draw(st.sampled_from([0, 4, 30, 84, 88]))
    assume(MANY[number].body or position < place + 88)
    log[position] ^= 0x40
    parsed = LogOptions.parse({"path": "/", "onCorruption": "stop"})
    reader = LogBatches(ALL, parsed)
    rows = read_log(log, reader=reader, is_last=False, onCorruption="stop")
    assert placed(rows) == places[:number]
    assert reader.stopped and [damage.position for damage in reader.damages] == [place]


@settings(max_examples=50)
@given(st.binary(max_size=3000), st.booleans())
def test_noise_holds_no_record(noise: bytes, is_last: bool) -> None:
    assert read_log(noise, onCorruption="skip", is_last=is_last) == []


def test_a_wrong_checksum_is_a_column_when_it_is_no_damage() -> None:
    log, places = written_log(MANY[:5])
    log[places[2] + 88] ^= 1
    rows = read_log(log, ("position", "crcOk"), verifyCrc="false")
    assert [row["crcOk"] for row in rows] == [True, True, False, True, True]
    with pytest.raises(DamagedLogError):
        read_log(log)
    kept = read_log(log, ("position", "crcOk"), onCorruption="skip")
    assert placed(kept) == places[:2] + places[3:]
    assert all(row["crcOk"] for row in kept)


def test_topics_and_times_select() -> None:
    records = [
        Written(n, topic=b"abc"[n % 3 : n % 3 + 1], numbers={"stored": 1000 + n}) for n in range(30)
    ]
    log, places = written_log(records)
    assert placed(read_log(log, topic="a, c")) == [p for n, p in enumerate(places) if n % 3 != 1]
    assert placed(read_log(log, topic="nobody")) == []
    assert placed(read_log(log, startTimestamp=1010, endTimestamp=1013)) == places[10:13]
    assert placed(read_log(log, startTimestamp=1028)) == places[28:]


def test_damage_to_what_was_not_asked_for() -> None:
    log, places = written_log([Written(0, topic=b"a"), Written(1, topic=b"b"), Written(2)])
    log[places[1] + 88] ^= 1
    assert placed(read_log(log, topic="a,flights")) == [places[0], places[2]]


def test_kinds_of_records() -> None:
    flags = [0, 4, 8, 12, 0x100, 0x1C & ~0x10]
    records = [Written(n, sys_flag=flag) for n, flag in enumerate(flags)]
    kinds = ["message", "prepared", "commit", "rollback", "message", "rollback"]
    for half in ([], [Written(7, topic=b"RMQ_SYS_TRANS_HALF_TOPIC")]):
        log, _ = written_log([*records, *half])
        rows = read_log(log, ("position", "recordKind"))
        assert [row["recordKind"] for row in rows] == [*kinds, *["prepared" for _ in half]]


def test_a_body_that_cannot_be_opened_is_damage() -> None:
    flags = compression_flags(CompressionKind.ZLIB)
    log, places = written_log([Written(0), Written(1, sys_flag=flags), Written(2)])
    with pytest.raises(DamagedLogError, match="the zlib body is damaged"):
        read_log(log)
    assert placed(read_log(log, onCorruption="skip")) == [places[0], places[2]]
    assert placed(read_log(log, ("position",))) == places


def test_what_the_disk_cannot_read() -> None:
    records = [Written(number, body=bytes([number]) * 1000) for number in range(40)]
    log, places = written_log(records)
    file = MemoryFile(log)
    file.unreadable = {8192}
    with pytest.raises(DamagedLogError, match="the disk cannot read it"):
        read_log(file)
    rows = read_log(file, onCorruption="skip")
    size = places[1]
    lost = [place for place in places if place < 12288 and place + size > 8192]
    assert placed(rows) == [place for place in places if place not in lost]


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_broker_that_writes_on_makes_no_damage(moment: int) -> None:
    """Between two reads a torn record becomes whole, and the next ones follow already."""
    log, places = written_log(MANY[:8], size=9000, blank=False)
    torn = bytearray(log)
    torn[places[5] + 95 :] = bytes(len(log) - places[5] - 95)
    file, reads = MemoryFile(torn), 0

    def grow() -> None:
        nonlocal reads
        reads += 1
        if reads == moment:
            file.data = log

    file.before_read = grow
    rows = read_log(file)
    assert placed(rows) in (places, places[:5])
    if moment == 4:  # behind both windows and the look at the torn record
        assert placed(rows) == places


def test_zeros_in_properties_that_a_client_sent() -> None:
    log, places = written_log([Written(0), Written(1, properties=b"a\x01b\0c"), Written(2)])
    rows = read_log(log)
    assert placed(rows) == places
    assert rows[1]["properties"] == {"a": "b\0c"}


def test_ranges_know_their_ends() -> None:
    log, places = written_log(MANY)
    spans = spans_of(SegmentFile(MemoryFile(log), BASE), 3000)
    assert len(spans) > 3
    assert [span.begin for span in spans[1:]] == [span.end for span in spans[:-1]]
    assert {span.begin for span in spans} <= set(places)
    assert [span.is_cut for span in spans] == [True] * (len(spans) - 1) + [False]
