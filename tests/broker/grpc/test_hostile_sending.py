"""Whatever a client fills into its requests, it gets a code, and the broker keeps nothing of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import (
    EndTransactionRequest,
    Message,
    RecallMessageRequest,
    SendMessageRequest,
)
from tests.broker.grpc.sending_rig import ID, TOPIC, SendingRig, half, message, sending_rig

LONG_MAX = (1 << 63) - 1
TEXTS = [
    "",
    " ",
    "a",
    TOPIC,
    "others",
    "\x00",
    "\x01\x02",
    "é" * 70,
    "👍",
    "x" * 40_000,
    "%RETRY%g",
]
NUMBERS = [0, 1, -1, 7, LONG_MAX, -LONG_MAX - 1, 1 << 40, 1_700_000_000]
INTS = [0, 1, 2, 3, 4, 5, 99, -1, 2_147_483_647, -2_147_483_648]
KNOWN = {int(code) for code in Code}


def fill(rng: random.Random, made: Any) -> None:
    """Put something into some fields of a protobuf message, whatever they are."""
    for field in made.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            continue
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(rng.choice((0, 1, 3, 130))):
                getattr(made, name)[f"{rng.choice(TEXTS)}{rng.randrange(200)}"] = rng.choice(TEXTS)
        elif field.message_type is not None and field.is_repeated:
            for _ in range(rng.choice((0, 1, 2))):
                fill(rng, getattr(made, name).add())
        elif field.message_type is not None:
            fill(rng, getattr(made, name))
        elif field.is_repeated:
            getattr(made, name).extend(rng.choices(TEXTS, k=rng.choice((0, 1, 3))))
        else:
            setattr(made, name, value(rng, field))


def value(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        text = rng.choice(TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    return rng.choice(NUMBERS if kind == field.CPPTYPE_INT64 else INTS)


def nearly_sound(rng: random.Random) -> Message:
    """A message of which one part is odd."""
    made = rng.choice((message, half))()
    odd = Message()
    fill(rng, odd)
    name = rng.choice([field.name for field in odd.system_properties.DESCRIPTOR.fields])
    if odd.system_properties.DESCRIPTOR.fields_by_name[name].is_repeated:
        made.system_properties.keys.extend(odd.system_properties.keys)
    elif odd.system_properties.HasField(name) if name in PRESENT else True:
        copied = type(made.system_properties)()
        copied.CopyFrom(odd.system_properties)
        for other in copied.DESCRIPTOR.fields:
            if other.name != name:
                copied.ClearField(other.name)
        made.system_properties.MergeFrom(copied)
    return made


PRESENT = {
    field.name for field in Message().system_properties.DESCRIPTOR.fields if field.has_presence
}


async def answered(rig: SendingRig, name: str, request: Any) -> int:
    answer = await rig.call(name, request)
    assert answer.status.code in KNOWN
    assert len(answer.status.message) <= 1024
    return int(answer.status.code)


@pytest.mark.parametrize("seed", range(6))
async def test_any_filling_is_answered(seed: int) -> None:
    rng = random.Random(seed)
    rig = await sending_rig(message_index_enable=True)
    rig.add_topic()
    codes, topics = set[int](), {*rig.topics.table}
    for _ in range(60):
        request = SendMessageRequest()
        fill(rng, request)
        codes.add(await answered(rig, "SendMessage", request))
        sound = SendMessageRequest(messages=[nearly_sound(rng)])
        codes.add(await answered(rig, "SendMessage", sound))
        for name, made in (
            ("EndTransaction", EndTransactionRequest()),
            ("RecallMessage", RecallMessageRequest()),
        ):
            fill(rng, made)
            if rng.random() < 0.5:
                made.topic.name = TOPIC
            codes.add(await answered(rig, name, made))
    assert {Code.OK, Code.ILLEGAL_TOPIC, Code.BAD_REQUEST} <= codes
    assert Code.INTERNAL_SERVER_ERROR not in codes
    assert rig.topics.table.keys() - topics <= {"RMQ_SYS_TRANS_HALF_TOPIC"}
    await rig.stop_all()
    again = await sending_rig(rig.files, message_index_enable=True)
    assert again.store.recovery is not None and again.store.recovery.clean
    await again.send_one(message())


async def test_verdicts_about_nothing_keep_nothing() -> None:
    rig = await sending_rig()
    rig.add_topic()
    await rig.send_one(half())
    for number in range(500):
        assert (await rig.end_key(f"nobody's {number}"))[0] == Code.INVALID_TRANSACTION_ID
    assert len(rig.ledger.keys) == 1
    assert await rig.end_key(ID) == (Code.OK, "OK")
