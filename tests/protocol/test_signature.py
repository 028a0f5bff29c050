"""Signatures: the bytes that are signed, against one that RocketMQ's own classes made."""

from __future__ import annotations

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.signature import SIGNATURE, UNIQUE_KEY_QUERY, sign, signed_content
from tests.protocol.message_vectors import FRAMES

SECRET = b"secret-demo"


def test_the_signature_of_the_golden_frame_is_made_again() -> None:
    (frame,) = FrameDecoder().feed(bytes.fromhex(FRAMES["route_request_acl_json"]["hex"]))
    command = decode_command(frame)
    fields = command.ext_fields
    assert signed_content(fields, command.body) == b"rocketmq-demoTopicTest"
    assert sign(SECRET, fields, command.body) == fields[SIGNATURE] == "kpme5wb6wliSb92aHG5gcD3crNc="


def test_values_stand_in_the_order_of_their_names_with_the_body_behind() -> None:
    fields = {"b": "2", "a": "1", "AccessKey": "key", "bname": "broker", "Z": "0", SIGNATURE: "x"}
    assert signed_content(fields, b"\xffbody") == b"key012broker\xffbody"


def test_the_mark_of_queries_by_unique_id_is_not_covered() -> None:
    assert signed_content({"topic": "t", UNIQUE_KEY_QUERY: "true"}, b"") == b"t"


def test_names_are_ordered_as_java_orders_strings() -> None:
    # U+10000 is written with surrogates (D800 DC00), which Java puts before U+FF5E.
    assert signed_content({"\uff5e": "2", "\U00010000": "1"}, b"") == b"12"


@given(
    fields=st.dictionaries(st.text(alphabet="abcXYZ_09", min_size=1), st.text(max_size=9)),
    body=st.binary(max_size=64),
    secret=st.binary(min_size=1, max_size=80),
)
def test_it_is_hmac_sha1_of_the_content(fields: dict[str, str], body: bytes, secret: bytes) -> None:
    mac = hmac.new(secret, signed_content(fields, body), hashlib.sha1)
    assert sign(secret, fields, body) == base64.b64encode(mac.digest()).decode()
