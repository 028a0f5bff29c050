"""The golden vectors that concern messages, as Python values.

`golden-store.json` holds bytes that RocketMQ 4.9.8 wrote or read, `golden-frames.json` bytes that
its classes encoded; each file says so in its own head.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

from skylarkmq.protocol.message import HostAddress

_GOLDEN = Path(__file__).parent.parent / "golden"

STORE: dict[str, Any] = json.loads((_GOLDEN / "golden-store.json").read_text("utf-8"))
FRAMES: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads((_GOLDEN / "golden-frames.json").read_text("utf-8"))["vectors"]
}


class RecordFields(TypedDict):
    """The arguments of `encode_record`."""

    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes


def record_fields(vector: dict[str, Any]) -> RecordFields:
    """Return what stands in a record vector of the store file, host addresses packed."""
    body = vector.get("bodyHex")
    pairs = [f"{name}\x01{value}" for name, value in vector["properties"]]
    hosts = HostAddress(*vector["bornHost"]), HostAddress(*vector["storeHost"])
    return RecordFields(
        queue_id=vector["queueId"],
        flag=vector["flag"],
        queue_offset=vector["queueOffset"],
        physical_offset=vector["physicalOffset"],
        sys_flag=_sys_flag(vector),
        born_timestamp=vector["bornTimestamp"],
        born_host=hosts[0].pack(),
        store_timestamp=vector["storeTimestamp"],
        store_host=hosts[1].pack(),
        reconsume_times=vector["reconsumeTimes"],
        prepared_transaction_offset=vector["preparedTransactionOffset"],
        body=bytes.fromhex(body) if body else b"",
        topic=vector["topic"].encode(),
        properties="\x02".join(pairs).encode(),
    )


def _sys_flag(vector: dict[str, Any]) -> int:
    # The vectors give the flag as the producer sent it; the broker adds the address families.
    flag: int = vector["sysFlag"]
    if ":" in vector["bornHost"][0]:
        flag |= 0x10
    if ":" in vector["storeHost"][0]:
        flag |= 0x20
    return flag


RECORDS: list[dict[str, Any]] = [
    *STORE["messages"],
    *STORE["brokerTrace"],
    *STORE["batch"]["stored"],
]
"""Every whole record of the store file."""

PLAIN_RECORD = bytes.fromhex(STORE["messages"][0]["recordHex"])
IPV6_RECORD = bytes.fromhex(STORE["messages"][2]["recordHex"])
