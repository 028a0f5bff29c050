"""Signed requests that somebody changed on the way: none does what its account may not do.

Half of the changes are to fields and body, which are then laid out anew; the others are to the
bytes of the frame. What a signature does not cover (names of fields, the code, the flags, where one
value ends and the next begins) may change what a request says: then the rights are those of what it
says, and what it stores is what was signed. Some are signed by an account that lacks the right from
the beginning. `make faults` makes many more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from skylarkmq.broker.access.accounts import read_rules
from skylarkmq.protocol.batch import encode_batch
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.signature import sign_request, signed_content
from tests.support.crash_explorer import seeds
from tests.support.hostile_rig import HostileRig
from tests.support.raw_client import pull_fields, send_fields

SEND, BATCH, PULL, CREATE_TOPIC = 310, 320, 11, 17
SECRET = "secret-of-all"
DENIED = "org.apache.rocketmq.acl.common.AclException: "
BODIES = {b"order 1", b"order 2"}
HIDDEN = b"of others"
TOPIC_FIELDS = {
    "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
ACCOUNTS = f"""
accounts:
- {{accessKey: publisher, secretKey: {SECRET}, topicPerms: [Mine=PUB]}}
- {{accessKey: subscriber, secretKey: {SECRET}, topicPerms: [Mine=SUB], groupPerms: [readers=SUB]}}
- {{accessKey: administrator, secretKey: {SECRET}-too, admin: true}}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostileRig]:
    with HostileRig(acl_enable=True, rocketmq_home=tmp_path) as made:
        assert made.parts.access_files is not None
        made.parts.access_files.stop()  # there are no files
        made.parts.access_files._use(read_rules([(tmp_path / "plain_acl.yml", ACCOUNTS.encode())]))
        told = signed(SEND, send_fields("Other"), HIDDEN, SerializeType.JSON, "administrator")
        assert made.ask(SEND, told.ext_fields, HIDDEN).code == 0
        yield made


def signed(code: int, fields: dict[str, str], body: bytes, kind: int, key: str) -> RemotingCommand:
    command = RemotingCommand.request(code, fields, body, opaque=7, serialize_type=kind)
    secret = f"{SECRET}-too" if key == "administrator" else SECRET
    sign_request(command, key, secret.encode())
    return command


def sound(rng: Random) -> tuple[RemotingCommand, bool]:
    """A signed request, and whether it passes as it is."""
    kind = rng.choice(list(SerializeType))
    body = rng.choice(sorted(BODIES))
    match rng.randrange(8):
        case 0:
            batch = encode_batch([Message("Mine", each) for each in sorted(BODIES)])
            fields = {**send_fields("Mine"), "m": "true"}
            return signed(BATCH, fields, batch, kind, "publisher"), True
        case 1:
            fields = {**pull_fields("Mine", 0), "consumerGroup": "readers"}
            return signed(PULL, fields, b"", kind, "subscriber"), True
        case 2:
            fields = {**pull_fields("Other", 0), "consumerGroup": "readers"}
            return signed(PULL, fields, b"", kind, "subscriber"), False
        case 3:
            key = rng.choice(("publisher", "subscriber"))
            return signed(SEND, send_fields("Other"), body, kind, key), False
        case 4:
            return signed(CREATE_TOPIC, TOPIC_FIELDS, b"", kind, "publisher"), False
        case _:
            fields = {**send_fields("Mine"), "l": "3", "i": "KEYS\x01k\x02"}
            return signed(SEND, fields, body, kind, "publisher"), True


def with_other_fields(command: RemotingCommand, rng: Random) -> None:
    """Change fields, signature or body, in the way of somebody who writes requests by hand."""
    fields = command.ext_fields
    name = rng.choice(sorted(fields))
    match rng.randrange(8):
        case 0:
            command.body = rng.randbytes(rng.randrange(1, 9))
        case 1:
            del fields[name]
        case 2:
            fields[rng.choice(("zzz", "topic", "b", "a", "consumerGroup", "_"))] = "Other"
        case 3:
            fields[name] = rng.choice(("", "Other", "administrator", "0", "%RETRY%x", "\u4e2d"))
        case 4:  # the value of another field
            fields[name] = fields[rng.choice(sorted(fields))]
        case 5:
            text = fields[name]
            place = rng.randrange(len(text) + 1)
            fields[name] = text[:place] + chr(rng.randrange(33, 0x250)) + text[place + 1 :]
        case 6:
            fields["Signature"] = fields["Signature"][: rng.randrange(28)]
        case _:
            command.code = rng.choice((SEND, BATCH, PULL, CREATE_TOPIC, 10, 36, 215, 4711))


def with_other_bytes(frame: bytes, rng: Random) -> bytes:
    """Change a frame after its length, which stays true."""
    changed = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                changed[place] = rng.choice(b'"{}:,\\0bmO\x00\xff')
            case 2:
                del changed[place]
                changed += b"}"
            case _:
                changed.insert(place, rng.randrange(256))
    return len(changed).to_bytes(4, "big") + bytes(changed)


def signs(command: RemotingCommand) -> tuple[bytes, str | None]:
    """What is signed of a request, and how."""
    fields = command.ext_fields
    return signed_content(fields, command.body), fields.get("Signature")


def attack(rig: HostileRig, seed: int) -> str:
    """Send one request and return what came of it."""
    rng = Random(seed)
    command, passes = sound(rng)
    before = signs(command)
    by_hand = rng.random() < 0.5
    if by_hand:
        with_other_fields(command, rng)
    try:
        data = encode_command(command)
    except WireError:
        return "not sent"
    is_allowed = passes and before == signs(command)
    if not by_hand:
        data = with_other_bytes(data, rng)
    answers = rig.feed(data)
    rig.check_defects()
    for answer in answers:
        assert SECRET not in (answer.remark or "")
        assert HIDDEN not in answer.body
        assert answer.code != 0 or is_allowed or not by_hand, answer
    if not answers:
        return "no answer"
    if answers[0].code == 0:
        return "passed"
    return "denied" if (answers[0].remark or "").startswith(DENIED) else "refused"


def stored(rig: HostileRig) -> dict[str, list[bytes]]:
    """The bodies of each topic."""
    found: dict[str, list[bytes]] = {}
    for topic, queue in sorted(rig.parts.store.queues.queues):
        offset, bodies = 0, found.setdefault(topic, [])
        while True:
            fields = {**pull_fields(topic, queue, offset), "consumerGroup": "readers"}
            command = signed(PULL, fields, b"", SerializeType.JSON, "administrator")
            messages = decode_messages(rig.ask(PULL, command.ext_fields).body)
            if not messages:
                break
            bodies += [message.body for message in messages]
            offset = messages[-1].queue_offset + 1
    return found


@pytest.mark.parametrize("count", [900, pytest.param(100_000, marks=pytest.mark.fault)])
def test_no_change_of_a_signed_request_does_what_its_account_may_not(
    rig: HostileRig, count: int
) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds(count):
        try:
            seen[attack(rig, seed)] += 1
        except Exception as error:
            raise AssertionError(f"replay with SKYLARKMQ_SEED={seed}") from error
    assert len(seeds(count)) == 1 or min(seen["denied"], seen["refused"], seen["passed"]) > 0, seen
    found = stored(rig)
    assert found.pop("Other") == [HIDDEN]
    assert set(found) <= {"Mine"}
    assert {body for bodies in found.values() for body in bodies} <= BODIES | batches()
    assert "New" not in rig.parts.topics.table
    honest = signed(SEND, send_fields("Mine"), b"honest", SerializeType.JSON, "publisher")
    assert rig.ask(SEND, honest.ext_fields, b"honest").code == 0


def batches() -> set[bytes]:
    """What a batch holds when it is sent as one message: a code is not signed."""
    return {encode_batch([Message("Mine", body) for body in sorted(BODIES)])}
