"""Messages of every kind, as commands that both our store and RocketMQ's can be told, and what must
be read back of each.

A command is a JSON object: `op` is put or batch, the rest are a message's fields; a batch has
`messages`, and its own properties are those of the batch. Hosts are `ip port`. So that a few
kilobytes fill several files, bodies are long and repeat themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, Final

from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.tags_code import tags_code

Command = dict[str, Any]
Fields = dict[str, Any]

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
DELAY_LEVEL: Final = 18
DELAY_MS: Final = 7_200_000  # of that level
BORN_MS: Final = 1_700_000_000_000
LONG_BODY: Final = "the quick brown fox jumps over the lazy dog; " * 60

# Small files of each kind, so that a few messages fill several of them.
SIZES: Final = {
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 400,
    "maxMessageSize": 32 * 1024,
    "maxHashSlotNum": 40,
    "maxIndexNum": 61,  # full between two rounds, so time may pass before the next file
}

# Their hashes go over UTF-16 units, of which the last one has two.
ODD_KEYS: Final = ("schlüssel-ß", "鍵", "😀")


def put(topic: str, queue_id: int, body: str, **fields: Any) -> Command:
    """The command that stores one message."""
    return {
        "op": "put",
        "topic": topic,
        "queue_id": queue_id,
        "body": body,
        "properties": {},
        "born_host": "192.0.2.7 40000",
        "store_host": "127.0.0.1 10911",
        "born_timestamp": BORN_MS,
        **fields,
    }


def sample_commands(rounds: int = 40, first: int = 0) -> Iterator[Command]:
    """Messages of all kinds; `first` numbers them, so that a later call goes on."""
    for number in range(first, first + rounds):
        yield from _plain(number)
        if number % 5 == 1:
            yield from _kinds(number)
        if number % 6 == 2:
            yield from _transaction(number)


def _plain(number: int) -> Iterator[Command]:
    yield put("Plain", number % 2, f"plain-{number} {LONG_BODY}", flag=number)
    yield put(
        "Tagged",
        0,
        f"tagged-{number} {LONG_BODY}",
        properties={"TAGS": "TagA" if number % 3 else "Tag-ß", "WAIT": "true"},
        reconsume_times=number % 4,
    )
    keys = f"key-{number} every" if number % 4 else f"key-{number} {ODD_KEYS[number // 4 % 3]}"
    yield put(
        "Keyed",
        0,
        f"keyed-{number} {LONG_BODY}",
        properties={"KEYS": keys, "UNIQ_KEY": f"7F00000100000000{number:016X}"},
    )


def _kinds(number: int) -> Iterator[Command]:
    yield {
        **put("Batched", 1, "", properties={"PGROUP": "P_sample", "TRACE_ON": "true"}),
        "op": "batch",
        "messages": [
            {
                "body": f"batch-{number}-{part}",
                "flag": part,
                "properties": {"KEYS": f"batch-{number}", "TAGS": f"Tag{part}"} if part else {},
            }
            for part in range(4)
        ],
    }
    yield put("Hosts", 0, f"born-{number}", born_host="2001:db8::7 40000")
    yield put("Hosts", 0, f"stored-{number}", store_host="2001:db8::1 10911")
    yield put(
        "Hosts", 0, f"both-{number}", born_host="fe80::1 1", store_host="2001:db8::ffff 65535"
    )
    yield put(
        "Later",
        3,
        f"delayed-{number}",
        properties={"DELAY": str(DELAY_LEVEL), "TAGS": "Slow", "KEYS": f"delayed-{number}"},
    )
    yield put("Empty", 0, "")


def _transaction(number: int) -> Iterator[Command]:
    half = {"TRAN_MSG": "true", "PGROUP": "P_tran", "REAL_TOPIC": "Deals", "REAL_QID": "0"}
    named = {**half, "KEYS": f"deal-{number}"}
    yield put(HALF_TOPIC, 0, f"half-{number}", properties=named)
    yield put("Deals", 0, f"prepared-{number}", properties=named, sys_flag=PREPARED)
    yield put(
        "Deals",
        0,
        f"committed-{number}",
        properties=named,
        sys_flag=COMMIT,
        prepared_transaction_offset=number * 1000,
    )
    yield put("Deals", 0, f"rolled-back-{number}", properties=named, sys_flag=ROLLBACK)


def expected(command: Command, result: Fields) -> list[Fields]:
    """What must be read back of a command's messages.

    Args:
        result: queue_offset and physical_offset of the first one, and store_timestamp.
    """
    if command["op"] == "put":
        return [_expected(command, result["queue_offset"], result["physical_offset"], result)]
    messages: list[Fields] = []
    physical_offset = result["physical_offset"]
    for index, part in enumerate(command["messages"]):
        properties = {**part["properties"], **command["properties"]}
        one = {**command, **part, "properties": properties}
        messages.append(_expected(one, result["queue_offset"] + index, physical_offset, result))
        physical_offset += record_size(messages[-1])
    return messages


def _expected(message: Command, queue_offset: int, physical_offset: int, result: Fields) -> Fields:
    properties = dict(message["properties"])
    topic, queue_id = message["topic"], message["queue_id"]
    code = tags_code(properties["TAGS"]) if "TAGS" in properties else 0
    if "DELAY" in properties:
        properties |= {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        topic, queue_id = SCHEDULE_TOPIC, DELAY_LEVEL - 1
        code = result["store_timestamp"] + DELAY_MS
    return {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "body": message["body"],
        "properties": properties,
        "flag": message.get("flag", 0),
        "sys_flag": message.get("sys_flag", 0)
        | (0x10 if ":" in message["born_host"] else 0)
        | (0x20 if ":" in message["store_host"] else 0),
        "born_timestamp": message["born_timestamp"],
        "store_timestamp": result["store_timestamp"],
        "born_host": message["born_host"],
        "store_host": message["store_host"],
        "reconsume_times": message.get("reconsume_times", 0),
        "prepared_transaction_offset": message.get("prepared_transaction_offset", 0),
        "tags_code": code,
    }


def record_size(message: Fields) -> int:
    """Bytes of the record that a message becomes."""
    pairs = message["properties"].items()
    text = sum(len(f"{name}{value}".encode()) + 2 for name, value in pairs)
    hosts = 12 * (":" in message["born_host"]) + 12 * (":" in message["store_host"])
    return (
        91 + hosts + len(message["body"].encode()) + len(message["topic"]) + max(0, text - 1)
    )  # fmt: skip


def from_java(event: Fields) -> Fields:
    """The same of a message that the Java program printed; without a queue it has no tags code."""
    fields = {"properties": {}, **{name: event[name] for name in FIELDS if name in event}}
    for name in ("born_host", "store_host"):
        ip, port = fields[name].split(" ")
        fields[name] = f"{ip_address(ip)} {port}"
    return fields


def from_ours(message: MessageExt, code: int | None) -> Fields:
    """The same of a message that we decoded."""
    fields = {name: getattr(message, name) for name in FIELDS[:-1]}
    fields["body"] = message.body.decode()
    for name in ("born_host", "store_host"):
        fields[name] = f"{fields[name].ip} {fields[name].port}"
    return fields if code is None else {**fields, "tags_code": code}


FIELDS: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "body",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "tags_code",
)


def is_queued(message: Fields) -> bool:
    """Whether the message can be read from its queue."""
    return message["sys_flag"] & ROLLBACK in (0, COMMIT)


def by_queue(messages: list[Fields]) -> dict[tuple[str, int], list[Fields]]:
    """The messages that are in queues, by queue and in order."""
    queues: dict[tuple[str, int], list[Fields]] = {}
    for message in messages:
        if is_queued(message):
            queues.setdefault((message["topic"], message["queue_id"]), []).append(message)
    return queues


def by_key(messages: list[Fields]) -> dict[tuple[str, str], list[int]]:
    """Physical offsets by topic and key, oldest first; rolled-back messages are not indexed."""
    keys: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        if message["sys_flag"] & ROLLBACK == ROLLBACK:
            continue
        properties = message["properties"]
        names = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        for name in filter(None, names):
            keys.setdefault((message["topic"], name), []).append(message["physical_offset"])
    return keys
