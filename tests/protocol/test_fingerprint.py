"""Whether two looks at a queue offset have found the same message."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.record import decode_message, encode_record

READ = Fingerprint(100, 1_700_000_000_000, 7)


@pytest.mark.parametrize(
    ("there", "same"),
    [
        (READ, True),
        (READ._replace(physical_offset=5), True),  # of a log that was repaired
        (READ._replace(checksum=8), True),
        (READ._replace(physical_offset=5, checksum=8), False),
        (READ._replace(store_timestamp=READ.store_timestamp + 1), False),
    ],
)
def test_same(there: Fingerprint, same: bool) -> None:
    assert READ.is_same(there) is there.is_same(READ) is same


def stored(properties: str, born_ms: int = 5) -> Fingerprint:
    record = encode_record(
        queue_id=0,
        flag=0,
        queue_offset=3,
        physical_offset=100,
        sys_flag=0,
        born_timestamp=born_ms,
        born_host=bytes(8),
        store_timestamp=9,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"x",
        topic=b"T",
        properties=properties.encode(),
    )
    return Fingerprint.of(decode_message(record))


def test_of_a_message() -> None:
    one = stored("UNIQ_KEY\x01order-7")
    assert one[:2] == (100, 9) and one == stored("UNIQ_KEY\x01order-7")
    others = {stored("UNIQ_KEY\x01order-8"), stored(""), stored("", 6), one}
    assert len({each.checksum for each in others}) == 4
    assert Fingerprint.from_json(list(one)) == one


@pytest.mark.parametrize("value", [None, 5, "1,2,3", [1, 2], [1, 2, 3.0], [1, 2, -1], [1, 2, True]])
def test_no_fingerprint(value: object) -> None:
    with pytest.raises(ValueError, match="no fingerprint"):
        Fingerprint.from_json(value)


def test_from_which_time_on_messages_are_new() -> None:
    read = Fingerprint(100, 1_000, 7)
    assert read.new_since(Fingerprint(900, 1_000, 7)) is None, "the same, at another place"
    assert read.new_since(Fingerprint(100, 1_001, 8)) == 1_001
    assert read.new_since(Fingerprint(100, 5_000, 7)) == 1_001
    assert read.new_since(Fingerprint(101, 1_000, 8)) == 0, "of the same time: it tells nothing"
    assert read.new_since(Fingerprint(100, 999, 7)) == 0
