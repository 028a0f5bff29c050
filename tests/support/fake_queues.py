"""The queues of a scripted broker: messages in lists, and the records that stand for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import encode_record

HOST = HostAddress("192.0.2.20", 10911).pack()
STORE_MS = 1_700_000_000_000
QUEUE_SPAN = 1_000_000
"""A message's physical offset here is its queue's number times this, plus its queue offset."""


@dataclass
class Stored:
    """One message in a queue."""

    body: bytes
    properties: dict[str, str]
    reconsume_times: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    flag: int = 0
    store_timestamp: int | None = None


@dataclass
class Topic:
    """Queues of one topic on one broker; the first offset still there of each."""

    queues: list[list[Stored]]
    perm: int = 6
    min_offset: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def record(queue_key: int, topic: str, queue_id: int, offset: int, stored: Stored) -> bytes:
    return encode_record(
        queue_id=queue_id,
        flag=stored.flag,
        queue_offset=offset,
        physical_offset=queue_key * QUEUE_SPAN + offset,
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=HOST,
        store_timestamp=STORE_MS + offset
        if stored.store_timestamp is None
        else stored.store_timestamp,
        store_host=HOST,
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=0,
        body=stored.body,
        topic=topic.encode(),
        properties=encode_properties(stored.properties).encode(),
    )
