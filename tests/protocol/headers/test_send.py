"""Send headers under both sets of names, against the golden frames."""

import pytest

from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    decode_send_header,
    encode_send_header_v2,
)
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import only_frame

V2 = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
FULL = SendMessageRequestHeader(
    producer_group="g",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=-1,
    sys_flag=0x301,
    born_timestamp=1700000000000,
    flag=7,
    properties="KEYS\x01k",
    reconsume_times=2,
    unit_mode=True,
    max_reconsume_times=16,
    batch=True,
    broker_name="broker-a",
)


@pytest.mark.parametrize("name", ["send_v2_json", "send_v2_rocketmq", "send_batch_rocketmq"])
def test_golden_sends(name: str) -> None:
    command = decode_command(only_frame(bytes.fromhex(FRAMES[name]["hex"])))
    header = decode_send_header(command.code, command.ext_fields)
    assert (header.producer_group, header.topic, header.queue_id) == ("pg_test", "TopicTest", 0)
    assert header.batch is (command.code == 320)
    assert header.max_reconsume_times is None
    written = encode_send_header_v2(header)
    assert written == command.ext_fields
    assert list(written) == sorted(written)  # the order of the binary header


def test_two_names_for_every_field() -> None:
    v1, v2 = encode_fields(FULL), encode_send_header_v2(FULL)
    assert {V2[letter]: text for letter, text in v2.items()} == v1
    assert list(v2) == list(V2)
    for code in (10, 324):
        assert decode_send_header(code, v1) == FULL
    for code in (310, 320, 325):
        assert decode_send_header(code, v2) == FULL


def test_the_code_decides_over_the_names() -> None:
    with pytest.raises(RemoteProtocolError, match=r"SendMessageRequestHeader\.a"):
        decode_send_header(310, encode_fields(FULL))
    with pytest.raises(RemoteProtocolError, match=r"SendMessageRequestHeader\.producerGroup"):
        decode_send_header(10, encode_send_header_v2(FULL))


@pytest.mark.parametrize("letter", "abcdefgh")
def test_what_a_send_must_have(letter: str) -> None:
    fields = encode_send_header_v2(FULL)
    del fields[letter]
    with pytest.raises(RemoteProtocolError, match=rf"SendMessageRequestHeader\.{letter} "):
        decode_send_header(310, fields)


def test_what_a_send_may_leave_out() -> None:
    fields = encode_send_header_v2(FULL)
    for letter in "ijklmn":
        del fields[letter]
    header = decode_send_header(310, fields)
    assert (header.properties, header.reconsume_times, header.unit_mode) == ("", 0, False)
    assert (header.max_reconsume_times, header.batch, header.broker_name) == (None, False, None)


def test_the_golden_answer() -> None:
    command = decode_command(only_frame(bytes.fromhex(FRAMES["send_response_json"]["hex"])))
    header = decode_fields(SendMessageResponseHeader, command.ext_fields)
    assert header == SendMessageResponseHeader(
        msg_id="C000021400002A9F0000000000001000", queue_id=0, queue_offset=7
    )


def test_sending_back() -> None:
    fields = {"offset": "4096", "group": "g", "delayLevel": "0", "originMsgId": "A"}
    fields |= {"originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16", "bname": "b"}
    header = decode_fields(ConsumerSendMsgBackRequestHeader, fields)
    del fields["bname"]
    assert encode_fields(header) == fields
