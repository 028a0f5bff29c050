"""The text of trace records: byte for byte what RocketMQ's client writes, read with forgiveness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.producer.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceMessageType,
    TraceRecord,
    decode_traces,
    encode_trace,
    trace_keys,
)

PUB = PubTrace(
    timestamp_ms=1_700_000_000_000,
    region_id="DefaultRegion",
    group="P",
    topic="orders",
    msg_id="7F0000010BD8251A69D7123456780001",
    tags="A",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_size=3,
    cost_ms=12,
    message_type=TraceMessageType.HALF,
    offset_msg_id="7F00000100002A9F0000000000000000",
    success=True,
)
BEFORE = SubBeforeTrace(1_700_000_000_001, "DefaultRegion", "G", "R1", "M1", 2, "k1")
AFTER = SubAfterTrace(
    "R1", "M1", 5, False, "k1", TraceContextCode.EXCEPTION, 1_700_000_000_006, "G"
)
END = EndTransactionTrace(
    timestamp_ms=1_700_000_000_002,
    region_id="DefaultRegion",
    group="P",
    topic="orders",
    msg_id="M1",
    tags="",
    keys="",
    store_host="127.0.0.1:10911",
    message_type=TraceMessageType.COMMIT,
    transaction_id="",
    state="COMMIT_MESSAGE",
    from_check=True,
)

# As TraceDataEncoder.encoderFromContextBean of the Java client 4.9.8 writes them, `|` for 0x01.
TEXTS: list[tuple[TraceRecord, str]] = [
    (
        PUB,
        "Pub|1700000000000|DefaultRegion|P|orders|7F0000010BD8251A69D7123456780001|A|k1 k2|"
        "127.0.0.1:10911|3|12|1|7F00000100002A9F0000000000000000|true",
    ),
    (BEFORE, "SubBefore|1700000000001|DefaultRegion|G|R1|M1|2|k1"),
    (AFTER, "SubAfter|R1|M1|5|false|k1|2|1700000000006|G"),
    (
        END,
        "EndTransaction|1700000000002|DefaultRegion|P|orders|M1|null|null|127.0.0.1:10911|2|null|"
        "COMMIT_MESSAGE|true",
    ),
]


@pytest.mark.parametrize(("record", "text"), TEXTS)
def test_a_record_and_its_text(record: TraceRecord, text: str) -> None:
    encoded = text.replace("|", "\x01") + "\x02"
    assert encode_trace(record) == encoded
    assert decode_traces(encoded.encode()) == [record]


def test_many_records_in_one_body_and_what_is_none_between_them() -> None:
    parts = [encode_trace(record) for record, _ in TEXTS]
    odd = ["Pub\x011\x02", "Sub\x01x\x02", "\x02", "SubAfter\x01R\x01M\x01late\x01true\x01k\x02"]
    body = "".join(part for pair in zip(parts, odd, strict=True) for part in pair)
    assert decode_traces(body.encode()) == [record for record, _ in TEXTS]


def test_older_and_newer_records() -> None:
    fields = encode_trace(PUB)[:-1].split("\x01")
    without_offset_id = "\x01".join(fields[:12] + fields[13:])
    (old,) = decode_traces(without_offset_id.encode())
    assert isinstance(old, PubTrace)
    assert (old.offset_msg_id, old.success) == ("", True)
    (new,) = decode_traces("\x01".join([*fields, "192.0.2.1"]).encode())
    assert isinstance(new, PubTrace)
    assert (new.offset_msg_id, new.client_host) == (PUB.offset_msg_id, "192.0.2.1")
    (short,) = decode_traces(b"SubAfter\x01R\x01M\x015\x01true\x01null\x02")
    assert short == SubAfterTrace("R", "M", 5, True, "")


def test_an_absent_value_never_ends_a_record() -> None:
    record = SubBeforeTrace(1, "", "G", "R", "M", 0, "")
    text = encode_trace(record)
    assert text.endswith("\x01null\x02")  # Java's split drops empty fields at the end
    assert decode_traces(text.encode()) == [record]


def test_a_record_is_found_by_id_and_keys() -> None:
    assert trace_keys(PUB) == [PUB.msg_id, "k1", "k2"]
    assert trace_keys(END) == ["M1"]


def test_separators_of_a_foreign_peer_break_no_record() -> None:
    record = SubBeforeTrace(1, "R\x01x", "G", "R", "M", 0, "a\x02b")
    (read,) = decode_traces(encode_trace(record).encode())
    assert read == SubBeforeTrace(1, "R x", "G", "R", "M", 0, "a b")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(body: bytes) -> None:
    for front in (b"", b"Pub\x01", b"SubAfter\x01", b"EndTransaction\x01", b"SubBefore\x01"):
        decode_traces(front + body.replace(b"|", b"\x01"))
