"""Records for tests: written by hand, by hypothesis, and what a row must say of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.record import encode_record

V4, V6 = HostAddress("10.1.2.3", 10911), HostAddress("2001:db8::7", 5)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@dataclass
class Written:
    """A record to be written."""

    queue_offset: int = 0
    topic: bytes = b"flights"
    body: bytes = b"hello"
    properties: bytes = b"TAGS\x01late\x02KEYS\x01k1 k2\x02UNIQ_KEY\x017F000001"
    queue_id: int = 3
    sys_flag: int = 0
    born: HostAddress = V4
    store: HostAddress = V4
    numbers: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        flag = self.sys_flag & ~0x30
        flag |= 0x10 if ":" in self.born.ip else 0
        flag |= 0x20 if ":" in self.store.ip else 0
        return encode_record(
            queue_id=self.queue_id,
            flag=self.numbers.get("flag", 7),
            queue_offset=self.queue_offset,
            physical_offset=self.numbers.get("physical", 4096 + 100 * abs(self.queue_offset)),
            sys_flag=flag,
            born_timestamp=self.numbers.get("born", 1_700_000_000_123),
            born_host=self.born.pack(),
            store_timestamp=self.numbers.get("stored", 1_700_000_000_456),
            store_host=self.store.pack(),
            reconsume_times=self.numbers.get("reconsume", 2),
            prepared_transaction_offset=self.numbers.get("prepared", 0),
            body=self.body,
            topic=self.topic,
            properties=self.properties,
        )


def block(*records: Written) -> bytes:
    return b"".join(record.encode() for record in records)


def row_of(message: MessageExt, broker_name: str = "broker-a") -> dict[str, Any]:
    """What the batch must say of a message, made from the slow decoder's view of it."""
    offset_id = offset_message_id(message.store_host.pack(), message.physical_offset)
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.properties.get("UNIQ_KEY", offset_id),
        "offsetMsgId": offset_id,
        "keys": message.properties.get("KEYS"),
        "tags": message.properties.get("TAGS"),
        "body": decompress(message.body, message.sys_flag, 2**20),
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def rows_in(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for column in batch.schema:
        values: Any = batch.column(column.name)
        if pa.types.is_timestamp(column.type):
            micros = values.cast(pa.int64()).to_pylist()
            columns[column.name] = [None if value is None else value // 1000 for value in micros]
        elif column.name == "properties":
            pairs = values.to_pylist()
            assert all(len(dict(row)) == len(row) for row in pairs), "a name comes twice"
            columns[column.name] = [dict(row) for row in pairs]
        else:
            columns[column.name] = values.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def sane_time(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("bornTimestamp", "storeTimestamp"):
        if name in row and abs(row[name]) > (2**63 - 1) // 1000:
            row[name] = None
    return row


PAIR_TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=5)
PROPERTY_BYTES = st.one_of(
    st.lists(
        st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a"]) | PAIR_TEXT, PAIR_TEXT)
    ).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()),
    st.lists(st.sampled_from([b"\x01", b"\x02", b"TAGS", b"x", b"\xff", b""])).map(b"".join),
    st.just(b"TAGS\x01late\x02KEYS\x01k\x02"),
)
RECORDS = st.builds(
    Written,
    queue_offset=INT64,
    topic=st.sampled_from([b"flights", b"", b"t" * 127, "é".encode(), b"\xff"]),
    body=st.binary(max_size=40),
    properties=PROPERTY_BYTES,
    queue_id=INT32,
    sys_flag=INT32.map(lambda flag: flag & ~1),
    born=st.sampled_from([V4, V6]),
    store=st.sampled_from([V4, V6]),
    numbers=st.fixed_dictionaries(
        {
            "flag": INT32,
            "physical": st.integers(0, 2**63 - 1),
            "born": INT64,
            "stored": INT64,
            "reconsume": INT32,
            "prepared": INT64,
        }
    ),
)
